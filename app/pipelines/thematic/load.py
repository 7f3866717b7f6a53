"""Stage 1, load: the answers as ids, texts and groups, each checked, inline or of a dataset.

With several text columns every row gives one answer per column: the answers of row 7 are called
"7/liked" and "7/improve". A file's name or an address is never opened, only stored datasets are.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.pipelines.interface import PipelineContext
from app.pipelines.thematic.checking import kind
from app.pipelines.thematic.parameters import MAX_ANSWERS, ParameterError, Request
from app.results.themes import NO_GROUP

DEFAULT_COLUMN: Final = "text"
MAX_GROUPS: Final = 50
MAX_GROUP_NAME: Final = 200
"""Distinct values of a group_by column; more is a free text or an id, not a group."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers in the order in which they were given, those of one row side by side.

    Attributes:
        ids: unique; row numbers from "1" without an id column.
        texts: exactly as given, an absent one as "".
        groups: group_by column -> the group of each answer.
        columns: the text columns.
        questions: what was asked in each of `columns`, None where nothing tells.
        column_of: answer -> index in `columns`.
        source: facts of the dataset's file: id, encoding, header_rows, dropped_columns; empty for
            inline answers.
    """

    ids: list[str]
    texts: list[str]
    groups: dict[str, list[str]]
    columns: list[str]
    questions: list[str | None]
    column_of: list[int]
    source: dict[str, Any]


def asked(answers: Answers) -> str | None:
    """All that was asked, in one text."""
    return " ".join(question for question in answers.questions if question) or None


async def load(
    request: Request, context: PipelineContext, max_answers: int = MAX_ANSWERS
) -> Answers:
    """Take the answers out of a checked payload, or the dataset that it names.

    Raises:
        ParameterError: naming the first answer that is no text, has no id or repeats one.
        DatasetError: no dataset has this id.
    """
    if request.dataset_id is not None:
        return await _of_dataset(request, request.dataset_id, context, max_answers)
    if all(isinstance(item, str) for item in request.answers):
        _refuse_columns_without_objects(request)
        column = (request.text_columns or (DEFAULT_COLUMN,))[0]
        return Answers(
            ids=[str(number) for number in range(1, len(request.answers) + 1)],
            texts=list(request.answers),
            groups={},
            columns=[column],
            questions=[request.questions.get(column, request.question)],
            column_of=[0] * len(request.answers),
            source={},
        )
    rows = [_row(index, item) for index, item in enumerate(request.answers)]
    columns = request.text_columns or (DEFAULT_COLUMN,)
    _require_columns(
        [("text_column", name) for name in columns]
        + [("group_by", name) for name in request.group_by],
        dict.fromkeys(str(key) for row in rows for key in row),
    )
    return _answers(request, rows, columns, request.id_column, {}, {}, max_answers)


async def _of_dataset(
    request: Request, dataset_id: str, context: PipelineContext, max_answers: int
) -> Answers:
    dataset = await context.dataset(dataset_id)
    told = dataset.detected
    default = told.get("text_column") or DEFAULT_COLUMN
    columns = request.text_columns or (str(default),)
    id_column = request.id_column or told.get("id_column")
    wanted = [("text_column", name) for name in columns]
    wanted += [("group_by", name) for name in request.group_by]
    wanted += [("id_column", id_column)] if id_column is not None else []
    _require_columns(wanted, dataset.columns)
    _refuse_too_many(dataset.row_count * len(columns), max_answers)
    names = list(dict.fromkeys(name for _, name in wanted))
    rows = [row async for row in context.dataset_rows(dataset_id, names)]
    source = {
        "id": dataset_id,
        "encoding": told.get("encoding"),
        "header_rows": told.get("header_rows"),
        "dropped_columns": list(told.get("dropped_columns") or ()),
    }
    questions = dict(told.get("questions") or {})
    return _answers(request, rows, columns, id_column, questions, source, max_answers)


def _answers(
    request: Request,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    id_column: str | None,
    questions: Mapping[str, str],
    source: dict[str, Any],
    max_answers: int,
) -> Answers:
    _refuse_too_many(len(rows) * len(columns), max_answers)
    ids = _ids(rows, id_column)
    if len(columns) > 1:
        ids = [f"{row_id}/{column}" for row_id in ids for column in columns]
        _refuse_repeated(ids, id_column or "id_column")
    groups = {column: _groups(rows, column) for column in request.group_by}
    return Answers(
        ids=ids,
        texts=[_cell(at, row, column) for at, row in enumerate(rows) for column in columns],
        groups={
            name: [group for group in of_rows for _ in columns] for name, of_rows in groups.items()
        },
        columns=list(columns),
        questions=[
            request.questions.get(column) or request.question or questions.get(column)
            for column in columns
        ],
        column_of=[at for _ in rows for at in range(len(columns))],
        source=source,
    )


def _refuse_too_many(answers: int, max_answers: int) -> None:
    if answers > max_answers:
        raise ParameterError(
            "answers", f"{answers} answers", f"at most {max_answers}; split or sample them"
        )


def _refuse_columns_without_objects(request: Request) -> None:
    several = list(request.text_columns[1:])
    for name, value in (
        ("id_column", request.id_column),
        ("group_by", request.group_by),
        ("text_column", several),
    ):
        if value and request.answers:
            raise ParameterError(name, value, "answers are plain texts; give objects with columns")


def _row(index: int, item: object) -> Mapping[str, Any]:
    if not isinstance(item, Mapping):
        raise ParameterError(
            f"answers[{index}]", kind(item), "give all answers as texts or all as objects"
        )
    return item


def _require_columns(
    wanted: Sequence[tuple[str, str]], known: Mapping[str, Any] | Sequence[str]
) -> None:
    for name, column in wanted:
        if column not in known:
            found = ", ".join(sorted(known))
            raise ParameterError(name, column, f"no answer has this column; found: {found}")


def _cell(index: int, row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ParameterError(f"answers[{index}].{column}", value, "give a text")
    return value


def _ids(rows: Sequence[Mapping[str, Any]], column: str | None) -> list[str]:
    if column is None:
        return [str(number) for number in range(1, len(rows) + 1)]
    _require_columns([("id_column", column)], dict.fromkeys(key for row in rows for key in row))
    ids = []
    for index, row in enumerate(rows):
        value = row.get(column)
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise ParameterError(f"answers[{index}].{column}", value, "give an id, text or number")
        ids.append(str(value))
    _refuse_repeated(ids, column)
    return ids


def _refuse_repeated(ids: Sequence[str], column: str) -> None:
    for response_id, times in Counter(ids).items():
        if times > 1:
            raise ParameterError(
                column, response_id, f"{times} answers have this id; make ids unique"
            )


def _groups(rows: Sequence[Mapping[str, Any]], column: str) -> list[str]:
    values = []
    for index, row in enumerate(rows):
        value = row.get(column)
        if not isinstance(value, str | int | float | bool | None):
            raise ParameterError(f"answers[{index}].{column}", value, "give a text or a number")
        name = "" if value is None else str(value).strip()
        if len(name) > MAX_GROUP_NAME:
            remedy = f"the name of a group has at most {MAX_GROUP_NAME} characters"
            raise ParameterError(f"answers[{index}].{column}", kind(value), remedy)
        values.append(name or NO_GROUP)
    distinct = len(set(values))
    if distinct > MAX_GROUPS:
        raise ParameterError(
            "group_by", column, f"{distinct} different values; group by at most {MAX_GROUPS}"
        )
    return values
