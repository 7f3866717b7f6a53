"""Answers with people's labels, read from a CSV file: what is analysed and what it is held against.

A cell may hold several labels, joined by ";" or "|" or whatever is given. A label wholly in
parentheses, such as "(no codable content)", is a coder's note and no label.
"""

import csv
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

JOINED_BY = ";|"
_MOST_CHARACTERS = 2**31 - 1  # in a cell; the csv module's own bound is 131,072


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

    def left_out(self, min_count: int = 1) -> dict[str, int]:
        """How many answers `of_one_label` leaves out, by what is amiss with their labels."""
        none = sum(not labels for labels in self.labels)
        several = sum(len(labels) > 1 for labels in self.labels)
        kept = len(self.of_one_label(min_count).texts)
        rare = len(self.texts) - none - several - kept
        return {"without_label": none, "several_labels": several, "rare_label": rare}

    def only(self, chosen: list[int]) -> "Labelled":
        """The answers at these places."""
        return Labelled(
            texts=[self.texts[at] for at in chosen],
            labels=[self.labels[at] for at in chosen],
            questions=[self.questions[at] for at in chosen] if self.questions else [],
        )


def read(
    path: Path,
    *,
    text_column: str,
    label_column: str,
    question_column: str | None = None,
    joined_by: str = JOINED_BY,
) -> Labelled:
    """The rows of a UTF-8 CSV file; a note or an empty cell is a row without labels.

    Args:
        joined_by: signs between the labels of a cell; with none every cell is one label.

    Raises:
        SystemExit: the file cannot be read, or a column is missing.
    """
    csv.field_size_limit(_MOST_CHARACTERS)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = list(reader.fieldnames or ())
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SystemExit(f"{path}: cannot be read: {error}") from error
    for column in filter(None, (text_column, label_column, question_column)):
        if column not in columns:
            raise SystemExit(f"{path.name}: no column {column!r}; there is {', '.join(columns)}")
    # A row may be shorter than the header: spreadsheets leave out empty cells at its end.
    return Labelled(
        texts=[row[text_column] or "" for row in rows],
        labels=[_labels(row[label_column] or "", joined_by) for row in rows],
        questions=[row[question_column] or "" for row in rows] if question_column else [],
    )


def _labels(cell: str, joined_by: str) -> list[str]:
    parts = re.split(f"[{re.escape(joined_by)}]", cell) if joined_by else [cell]
    labels = dict.fromkeys(label.strip() for label in parts)
    return [label for label in labels if label and not re.fullmatch(r"\(.*\)", label)]
