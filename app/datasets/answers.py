"""The answers of a file: which column holds them, which one their ids, and what was asked."""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from app.datasets.tables import MAX_BYTES, MAX_ROWS, Table, read_table
from app.domain.errors import DatasetError

TEXT_NAMES: Final = ("text", "answer", "response", "comment", "comments", "feedback", "verbatim")
ID_NAMES: Final = ("id", "responseid", "response id", "response_id", "respondent id")
FREE_TEXT: Final = 12.0  # mean characters of the filled cells; dates and codes are shorter or alike
DISTINCT: Final = 0.5


@dataclass(frozen=True, slots=True)
class AnswerTable:
    """A table with its roles.

    Attributes:
        table: all rows and columns, and what was detected.
        text_column: holds the answers.
        id_column: holds an id that no two rows share; None where there is no such column.
        question: what was asked, where the file tells.
    """

    table: Table
    text_column: str
    id_column: str | None
    question: str | None


def read_answers(
    source: Path | str | bytes,
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    header_rows: int | None = None,
    sheet: str | None = None,
    encoding: str | None = None,
    max_bytes: int = MAX_BYTES,
    max_rows: int = MAX_ROWS,
) -> AnswerTable:
    """Read a file of answers; columns that are not named are found by name, then by content.

    Raises:
        DatasetError: the file cannot be read, a named column is not in it, or none holds texts.
    """
    table = read_table(
        source,
        header_rows=header_rows,
        sheet=sheet,
        encoding=encoding,
        max_bytes=max_bytes,
        max_rows=max_rows,
    )
    if not table.rows:
        raise DatasetError("there is a header and no row below it")
    for name in (text_column, id_column):
        if name in table.detected.dropped_columns:
            raise DatasetError(
                f"column {name!r} identifies people and is left out; rename it, or remove the "
                "addresses and numbers in it"
            )
        if name is not None and name not in table.columns:
            raise DatasetError(f"no column {name!r}; found: {', '.join(table.columns)}")
    if id_column is not None and not _is_unique(table, id_column):
        raise DatasetError(f"column {id_column!r} is empty somewhere or repeats an id")
    text = text_column or _text_column(table)
    return AnswerTable(
        table=table,
        text_column=text,
        id_column=id_column or _id_column(table, text),
        question=table.detected.questions.get(text),
    )


def likely_columns(table: Table) -> tuple[str | None, str | None]:
    """The columns that most likely hold the answers and their ids; None where none does."""
    try:
        text = _text_column(table)
    except DatasetError:
        return None, None
    return text, _id_column(table, text)


def _text_column(table: Table) -> str:
    """One with a telling name, else the one with the longest texts, most of them different."""
    if len(table.columns) == 1:
        return table.columns[0]
    by_name = {name.casefold(): name for name in table.columns}
    for wanted in TEXT_NAMES:
        if wanted in by_name:
            return by_name[wanted]
    lengths = {name: _mean_length(table, name) for name in table.columns}
    best = max(lengths, key=lambda name: lengths[name], default="")
    if not best or lengths[best] < FREE_TEXT:
        raise DatasetError(
            f"no column looks like free text; name one of {', '.join(table.columns)}"
        )
    return best


def _mean_length(table: Table, column: str) -> float:
    filled = [row[column].strip() for row in table.rows if row[column].strip()]
    wordy = [cell for cell in filled if " " in cell]
    if not filled or len(set(filled)) < DISTINCT * len(filled) or len(wordy) < len(filled) / 2:
        return 0.0
    return fmean(map(len, filled))


def _id_column(table: Table, text_column: str) -> str | None:
    for name in table.columns:
        if name != text_column and name.casefold() in ID_NAMES and _is_unique(table, name):
            return name
    return None


def _is_unique(table: Table, column: str) -> bool:
    ids = [row[column] for row in table.rows]
    return all(ids) and len(set(ids)) == len(ids)
