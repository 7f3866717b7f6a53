"""Answers with people's labels, read from a CSV file: what is analysed and what it is held against.

A cell may hold several labels, joined by ";" or "|". A label wholly in parentheses, such as
"(no codable content)", is a coder's note and no label.
"""

import csv
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_JOINED = re.compile(r"[;|]")


@dataclass(frozen=True, slots=True)
class Labelled:
    """Answers in the order of the file; `questions` has one per answer, or none at all."""

    texts: list[str]
    labels: list[list[str]]
    questions: list[str]

    def of_one_label(self, min_count: int = 1) -> "Labelled":
        """The answers with exactly one label, one that at least `min_count` of these have."""
        single = [at for at, labels in enumerate(self.labels) if len(labels) == 1]
        times = Counter(self.labels[at][0] for at in single)
        return self.only([at for at in single if times[self.labels[at][0]] >= min_count])

    def only(self, chosen: list[int]) -> "Labelled":
        """The answers at these places."""
        return Labelled(
            texts=[self.texts[at] for at in chosen],
            labels=[self.labels[at] for at in chosen],
            questions=[self.questions[at] for at in chosen] if self.questions else [],
        )


def read(
    path: Path, *, text_column: str, label_column: str, question_column: str | None = None
) -> Labelled:
    """The rows of a UTF-8 CSV file; a note or an empty cell is a row without labels.

    Raises:
        SystemExit: a column is missing.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    for column in filter(None, (text_column, label_column, question_column)):
        if not rows or column not in rows[0]:
            raise SystemExit(f"{path.name}: no column {column!r}; there is {', '.join(rows[0])}")
    return Labelled(
        texts=[row[text_column] for row in rows],
        labels=[_labels(row[label_column]) for row in rows],
        questions=[row[question_column] for row in rows] if question_column else [],
    )


def _labels(cell: str) -> list[str]:
    labels = dict.fromkeys(label.strip() for label in _JOINED.split(cell))
    return [label for label in labels if label and not re.fullmatch(r"\(.*\)", label)]
