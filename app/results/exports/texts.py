"""What people wrote, found again by the ids that a result has for it: a result holds no answers."""

from collections.abc import Iterable, Mapping
from typing import Any

from app.results.themes import ThemesResult

Texts = Mapping[str, str]
"""Response id -> the whole answer; what is not known is missing."""


def text_columns(result: ThemesResult) -> list[str]:
    """The columns that the answers were in."""
    return [question.column for question in result.input.questions]


def inline_texts(result: ThemesResult, answers: Any, id_column: str | None) -> Texts:
    """The texts of answers that the payload of the job carried itself."""
    if not isinstance(answers, list):
        return {}
    columns = text_columns(result)
    rows = [item if isinstance(item, dict) else {columns[0]: item} for item in answers]
    return rows_texts(result, rows, id_column)


def rows_texts(
    result: ThemesResult, rows: Iterable[Mapping[str, Any]], id_column: str | None
) -> Texts:
    """The texts of rows by their ids: those of a column, else numbers from 1.

    None at all where a quote is not in the answer that it is said to be from: these are other rows.
    """
    columns = text_columns(result)
    texts: dict[str, str] = {}
    for number, row in enumerate(rows, start=1):
        key = str(number if id_column is None else row.get(id_column))
        for column in columns:
            text = row.get(column)
            texts[f"{key}/{column}" if len(columns) > 1 else key] = (
                text if isinstance(text, str) else ""
            )
    return texts if _hold_their_quotes(result, texts) else {}


def _hold_their_quotes(result: ThemesResult, texts: Texts) -> bool:
    return all(
        texts.get(quote.response_id, "")[quote.start : quote.end] == quote.text
        for theme in result.themes
        for quote in theme.quotes
    )
