"""A file as a table of texts, whatever wrote it: CSV in its dialects, JSON, or a workbook."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from app.datasets import delimited, workbooks
from app.datasets.decoding import decode
from app.datasets.personal import personal_columns
from app.domain.errors import DatasetError

MAX_BYTES: Final = 64 * 1024 * 1024
MAX_ROWS: Final = 200_000
MAX_COLUMNS: Final = 1_000
MAX_CELL: Final = 100_000
"""Characters in a cell."""

MAX_CELLS: Final = delimited.MAX_CELLS

_NOT_STORABLE: Final = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Detected:
    """What was found out about a file.

    Attributes:
        format: "csv", "json" (a list), "jsonl" or "workbook".
        encoding: "utf-8", "utf-16-le", "utf-16-be", "cp1252", or what was asked for; None for a
            workbook.
        delimiter: None for a single column, for JSON and for a workbook.
        header_rows: rows above the first answer.
        source: "qualtrics", "surveymonkey", "google-forms" or "plain".
        dropped_columns: personal columns that were left out.
        questions: column -> the question asked there, where the file tells.
        sheet: name of the workbook's sheet.
    """

    format: str
    encoding: str | None
    delimiter: str | None
    header_rows: int
    source: str
    dropped_columns: tuple[str, ...]
    questions: dict[str, str]
    sheet: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Every row has every column; an absent cell is "".

    Attributes:
        columns: their names, each once.
        rows: column -> text.
        detected: what was found out.
        sha256: of the file's content, the same that the rows are from.
    """

    columns: list[str]
    rows: list[dict[str, str]]
    detected: Detected
    sha256: str = ""


def read_table(
    source: Path | str | bytes,
    *,
    name: str | None = None,
    header_rows: int | None = None,
    sheet: str | None = None,
    encoding: str | None = None,
    drop_personal: bool = True,
    max_bytes: int = MAX_BYTES,
    max_rows: int = MAX_ROWS,
) -> Table:
    """Read a file (a path, read once) or its content (bytes).

    Args:
        source: where the file is, or what is in it.
        name: of the file, where `source` is its content; an ending may tell its format.
        header_rows: how many rows are headers; None to detect it, 0 for none.
        sheet: of a workbook; None for its first visible sheet that has rows.
        encoding: of a text; None to detect it.
        drop_personal: leave out columns that identify people.
        max_bytes: of the file.
        max_rows: of the table, which has `MAX_CELLS` cells at most as well.

    Raises:
        DatasetError: naming the line, and what to do about it.
    """
    if header_rows is not None and header_rows < 0:
        raise DatasetError(f"{header_rows} header rows; give 0 for none, or leave it out")
    content = _content(source, max_bytes)
    if workbooks.is_workbook(content):
        if encoding is not None:
            raise DatasetError(f"no encoding {encoding!r}: a workbook has its own")
        records, name = workbooks.sheet_records(content, sheet, max_rows)
        place = Place("row", format="workbook", sheet=name)
        table = _table(records, header_rows, max_rows, place)
    elif sheet is not None:
        raise DatasetError(f"no sheet {sheet!r}: this is no workbook")
    else:
        text, found = decode(content, encoding)
        table = _text_table(
            text,
            found,
            header_rows,
            max_rows,
            is_json_lines=_is_json_lines(source if name is None else name),
        )
    table = replace(table, sha256=hashlib.sha256(content).hexdigest())
    return _without_personal(table) if drop_personal else table


def _text_table(
    text: str, encoding: str, header_rows: int | None, max_rows: int, *, is_json_lines: bool
) -> Table:
    if not text.strip():
        raise _empty()
    items = _json_items(text, max_rows)
    if items is not None:
        return _json_table(enumerate(items, 1), Place("item", "json", encoding), max_rows)
    if text.lstrip().startswith("{") or is_json_lines:
        return _json_table(_json_lines(text), Place("line", "jsonl", encoding), max_rows)
    records, delimiter = delimited.records(text, max_rows)
    place = Place("line", format="csv", encoding=encoding, delimiter=delimiter)
    return _table(records, header_rows, max_rows, place)


def _empty() -> DatasetError:
    return DatasetError("line 1: the file is empty")


def _content(source: Path | str | bytes, max_bytes: int) -> bytes:
    if isinstance(source, bytes):
        data = source
    else:
        try:
            with Path(source).open("rb") as file:
                data = file.read(max_bytes + 1)
        except OSError as error:
            raise DatasetError(f"{source}: cannot be read: {error.strerror}") from error
    if len(data) > max_bytes:
        raise DatasetError(f"more than {max_bytes} bytes; split the file")
    return data


def _is_json_lines(source: Path | str | bytes) -> bool:
    return not isinstance(source, bytes) and Path(source).suffix in (".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class Place:
    """Where records are from; `unit` is what they are counted in: line, row or item."""

    unit: str
    format: str
    encoding: str | None = None
    delimiter: str | None = None
    sheet: str | None = None


def _table(
    records: list[delimited.Record], header_rows: int | None, max_rows: int, place: Place
) -> Table:
    if not records:
        raise _empty()
    header = delimited.header(records, header_rows)
    columns = header.columns
    for name in columns:
        _check_cell(name, 1, place.unit)
    if len(columns) > MAX_COLUMNS:
        raise DatasetError(
            f"{place.unit} 1: {len(columns)} columns; at most {MAX_COLUMNS} are read"
        )
    # Both, because a row may be wider than the header, and reading stops where the bound is passed.
    last = f"{place.unit} {records[-1].line}"
    _check_size(len(records), len(columns), last)
    _check_size(1, sum(len(record.cells) for record in records), last)
    if len(records) > header.rows + max_rows:
        line = records[header.rows + max_rows].line
        raise DatasetError(f"{place.unit} {line}: more than {max_rows} rows; split the file")
    rows = [
        dict(zip(columns, _cells(record, len(columns), place.unit), strict=True))
        for record in records[header.rows :]
    ]
    detected = Detected(
        format=place.format,
        encoding=place.encoding,
        delimiter=place.delimiter,
        header_rows=header.rows,
        source=header.source,
        dropped_columns=(),
        questions=header.questions,
        sheet=place.sheet,
    )
    return Table(columns, rows, detected)


def _cells(record: delimited.Record, width: int, unit: str) -> list[str]:
    cells = record.cells
    # Spreadsheets pad rows with empty cells; anything else beyond the header is a broken row.
    if len(cells) != width and (len(cells) < width or any(cells[width:])):
        raise DatasetError(
            f"{unit} {record.line}: {len(cells)} cells under {width} columns; "
            "quote cells that hold the delimiter"
        )
    for cell in cells:
        _check_cell(cell, record.line, unit)
    return cells[:width]


def _check_size(rows: int, columns: int, where: str) -> None:
    if rows * columns > MAX_CELLS:
        raise DatasetError(
            f"{where}: rows times columns are more than {MAX_CELLS} cells; split the file or leave "
            "out columns"
        )


def _check_cell(cell: str, line: int, unit: str = "line") -> None:
    if len(cell) > MAX_CELL:
        raise DatasetError(f"{unit} {line}: a cell of {len(cell)} characters; at most {MAX_CELL}")
    if _NOT_STORABLE.search(cell):
        raise DatasetError(f"{unit} {line}: a NUL sign or half a surrogate pair; remove it")


_JSON: Final = json.JSONDecoder()
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_NO_CSV: Final = re.compile(r"\s*\[\s*[{\"]")
"""How a list of objects or texts begins; column names never do."""


def _json_items(text: str, max_rows: int) -> list[Any] | None:
    """The items of a JSON list; None where the text is none, but a CSV with such a beginning.

    Reading ends a little after `max_rows`, so that a caller sees that there are more.
    """
    at = _after_space(text, 0)
    if not text.startswith("[", at):
        return None
    items: list[Any] = []
    try:
        while text[at] != "]" or not items:
            item, at = _JSON.raw_decode(text, _after_space(text, at + 1))
            items.append(item)
            at = _after_space(text, at)
            if len(items) > max_rows:
                return items
            if text[at : at + 1] not in {",", "]"}:
                raise ValueError("a comma or the end of the list is missing")  # noqa: TRY301
        if text[at + 1 :].strip():
            raise ValueError("there is more after the end of the list")  # noqa: TRY301
    except (ValueError, RecursionError) as error:
        if _NO_CSV.match(text) is None:
            return None
        raise DatasetError(
            f"item {len(items) + 1}: no valid JSON list: {error}; give a list of objects, or an "
            "object on each line"
        ) from error
    return items


def _after_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing as well


def _json_lines(text: str) -> Iterator[tuple[int, Any]]:
    # Not splitlines: it would break a text at every Unicode line separator within it.
    for line, raw in enumerate(text.split("\n"), start=1):
        if raw.strip():
            try:
                yield line, json.loads(raw)
            except (ValueError, RecursionError) as error:
                raise DatasetError(f"line {line}: no valid JSON: {error}") from error


def _json_table(values: Iterable[tuple[int, Any]], place: Place, max_rows: int) -> Table:
    rows: list[dict[str, str]] = []
    columns: dict[str, None] = {}
    for number, value in values:
        where = f"{place.unit} {number}"
        if len(rows) == max_rows:
            raise DatasetError(f"{where}: more than {max_rows} rows; split the file")
        rows.append(_json_row(value, number, place.unit))
        columns.update(dict.fromkeys(rows[-1]))
        if len(columns) > MAX_COLUMNS:
            raise DatasetError(f"{where}: {len(columns)} columns; at most {MAX_COLUMNS} are read")
        _check_size(len(rows), len(columns), where)
    detected = Detected(
        format=place.format,
        encoding=place.encoding,
        delimiter=None,
        header_rows=0,
        source="plain",
        dropped_columns=(),
        questions={},
    )
    return Table(list(columns), [{**dict.fromkeys(columns, ""), **row} for row in rows], detected)


def _json_row(value: Any, number: int, unit: str) -> dict[str, str]:
    if isinstance(value, str):
        value = {"text": value}
    if not isinstance(value, dict):
        raise DatasetError(f"{unit} {number}: give an object or a text as each {unit}")
    for name in value:
        _check_cell(name, number, unit)
    return {name: _json_cell(name, cell, number, unit) for name, cell in value.items()}


def _json_cell(name: str, cell: Any, number: int, unit: str) -> str:
    if isinstance(cell, dict | list):
        raise DatasetError(f"{unit} {number}: {name!r} holds a list or an object; give a text")
    text = cell if isinstance(cell, str) else "" if cell is None else json.dumps(cell)
    _check_cell(text, number, unit)
    return text


def _without_personal(table: Table) -> Table:
    found = table.detected
    dropped = personal_columns(table.columns, found.questions, table.rows)
    if not dropped:
        return table
    columns = [name for name in table.columns if name not in dropped]
    detected = replace(
        found,
        dropped_columns=tuple(dropped),
        questions={name: found.questions[name] for name in found.questions if name in columns},
    )
    rows = [{name: row[name] for name in columns} for row in table.rows]
    return replace(table, columns=columns, rows=rows, detected=detected)
