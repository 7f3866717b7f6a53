"""Stage 1, load: the payload's answers as ids, texts and groups, each checked."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.pipelines.thematic.parameters import ParameterError, Request

MAX_GROUPS: Final = 50
"""Distinct values of a group_by column; more is a free text or an id, not a group."""

NO_GROUP: Final = "(none)"


@dataclass(frozen=True, slots=True)
class Answers:
    """The rows in the order in which they were given.

    Attributes:
        ids: unique; row numbers from "1" without an id column.
        texts: exactly as given, an absent one as "".
        groups: group_by column -> the group of each row.
    """

    ids: list[str]
    texts: list[str]
    groups: dict[str, list[str]]


def load(request: Request) -> Answers:
    """Take the answers out of a checked payload.

    Raises:
        ParameterError: naming the first answer that is no text, has no id or repeats one.
    """
    if all(isinstance(item, str) for item in request.answers):
        _refuse_columns_without_objects(request)
        ids = [str(number) for number in range(1, len(request.answers) + 1)]
        return Answers(ids=ids, texts=list(request.answers), groups={})
    rows = [_row(index, item) for index, item in enumerate(request.answers)]
    _require_column(rows, "text_column", request.text_column)
    for column in request.group_by:
        _require_column(rows, "group_by", column)
    return Answers(
        ids=_ids(rows, request.id_column),
        texts=[_cell(index, row, request.text_column) for index, row in enumerate(rows)],
        groups={column: _groups(rows, column) for column in request.group_by},
    )


def _refuse_columns_without_objects(request: Request) -> None:
    for name, value in (("id_column", request.id_column), ("group_by", request.group_by)):
        if value and request.answers:
            raise ParameterError(name, value, "answers are plain texts; give objects with columns")


def _row(index: int, item: object) -> Mapping[str, Any]:
    if not isinstance(item, Mapping):
        raise ParameterError(
            f"answers[{index}]", item, "give all answers as texts or all as objects"
        )
    return item


def _require_column(rows: list[Mapping[str, Any]], name: str, column: str) -> None:
    if not any(column in row for row in rows):
        columns = sorted({str(key) for row in rows for key in row})
        raise ParameterError(
            name, column, f"no answer has this column; found: {', '.join(columns)}"
        )


def _cell(index: int, row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ParameterError(f"answers[{index}].{column}", value, "give a text")
    return value


def _ids(rows: list[Mapping[str, Any]], column: str | None) -> list[str]:
    if column is None:
        return [str(number) for number in range(1, len(rows) + 1)]
    _require_column(rows, "id_column", column)
    ids = []
    for index, row in enumerate(rows):
        value = row.get(column)
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise ParameterError(f"answers[{index}].{column}", value, "give an id, text or number")
        ids.append(str(value))
    for response_id, times in Counter(ids).items():
        if times > 1:
            raise ParameterError(
                column, response_id, f"{times} answers have this id; make ids unique"
            )
    return ids


def _groups(rows: list[Mapping[str, Any]], column: str) -> list[str]:
    values = []
    for index, row in enumerate(rows):
        value = row.get(column)
        if not isinstance(value, str | int | float | bool | None):
            raise ParameterError(f"answers[{index}].{column}", value, "give a text or a number")
        values.append(NO_GROUP if value is None else str(value).strip() or NO_GROUP)
    distinct = len(set(values))
    if distinct > MAX_GROUPS:
        raise ParameterError(
            "group_by", column, f"{distinct} different values; group by at most {MAX_GROUPS}"
        )
    return values
