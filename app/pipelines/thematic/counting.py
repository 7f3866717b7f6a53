"""Where the rows went, from where their texts went; all counts of a result come from here."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.pipelines.thematic.assigned import Assigned
from app.pipelines.thematic.joining import joined
from app.pipelines.thematic.load import Answers
from app.pipelines.thematic.prepare import Prepared, spans


@dataclass(frozen=True, slots=True)
class Tables:
    """What sentences and metrics are filled from, counted per row.

    Attributes:
        of_row: where each row belongs; None for a non-answer by rule.
        home: row -> the text that its primary theme is from, -1 for a non-answer by rule.
        analysed: rows with an answer.
        responses: theme -> rows that list it.
        others: rows in no theme.
        failed: rows that could not be judged.
    """

    of_row: list[Assigned | None]
    home: list[int]
    analysed: int
    responses: list[int]
    others: int
    failed: int

    @property
    def by_size(self) -> list[int]:
        """Themes, the largest first."""
        return sorted(range(len(self.responses)), key=lambda theme: (-self.responses[theme], theme))

    def shown(self, *, with_empty: bool) -> list[int]:
        """Themes that a result shows, the largest first.

        A discovered theme that the model put no answer in is none; a code without one is telling.

        Args:
            with_empty: the themes are the codes of a given codebook.
        """
        return [theme for theme in self.by_size if self.responses[theme] or with_empty]

    @property
    def silent(self) -> list[bool]:
        """By row, whether it says nothing, by rule or by the model's word."""
        return [each is None or each.status == "non_answer" for each in self.of_row]


def tables(
    answers: Answers,
    prepared: Prepared,
    assigned: Sequence[Assigned],
    themes: int,
    stances: Sequence[list[str]] | None = None,
) -> Tables:
    """Count where the rows went.

    Args:
        assigned: by text.
        themes: how many there are.
        stances: by text, one per theme; None where they are not known yet.
    """
    of_text = list(assigned)
    if stances is not None:
        of_text = [
            replace(each, stance=stance) for each, stance in zip(assigned, stances, strict=True)
        ]
    of_row: list[Assigned | None] = []
    home = []
    for said in spans(answers, prepared):
        each, text = joined(said, of_text, prepared.texts) if said else (None, -1)
        of_row.append(each)
        home.append(text)
    statuses = Counter(each.status for each in of_row if each is not None)
    listed = Counter(theme for each in of_row if each is not None for theme in each.themes)
    return Tables(
        of_row=of_row,
        home=home,
        analysed=statuses.total() - statuses["non_answer"],
        responses=[listed[theme] for theme in range(themes)],
        others=statuses["other"],
        failed=statuses["failed"],
    )


def theme_id(theme: int) -> str:
    """The id of the theme with this number: "T01" for 0."""
    return f"T{theme + 1:02d}"
