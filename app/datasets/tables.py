"""A file as a table of texts, whatever wrote it: CSV in its dialects, JSON lines, or a workbook."""

import json
import re
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

_NOT_STORABLE: Final = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Detected:
    """What was found out about a file.

    Attributes:
        format: "csv", "jsonl" or "workbook".
        encoding: "utf-8", "utf-16-le", "utf-16-be" or "cp1252"; None for a workbook.
        delimiter: None for a single column, for JSON lines and for a workbook.
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
    """Every row has every column; an absent cell is ""."""

    columns: list[str]
    rows: list[dict[str, str]]
    detected: Detected


def read_table(
    source: Path | str | bytes,
    *,
    header_rows: int | None = None,
    sheet: str | None = None,
    drop_personal: bool = True,
    max_bytes: int = MAX_BYTES,
    max_rows: int = MAX_ROWS,
) -> Table:
    """Read a file (a path) or its content (bytes).

    Args:
        source: where the file is, or what is in it.
        header_rows: how many rows are headers; None to detect it, 0 for none.
        sheet: of a workbook; None for its first sheet that has rows.
        drop_personal: leave out columns that identify people.
        max_bytes: of the file.
        max_rows: of the table.

    Raises:
        DatasetError: naming the line, and what to do about it.
    """
    content = _content(source, max_bytes)
    if workbooks.is_workbook(content):
        records, name = workbooks.sheet_records(content, sheet, max_rows)
        table = _table(records, header_rows, max_rows, Place("row", format="workbook", sheet=name))
        return _without_personal(table) if drop_personal else table
    if sheet is not None:
        raise DatasetError(f"no sheet {sheet!r}: this is no workbook")
    text, encoding = decode(content)
    if not text.strip():
        raise DatasetError("line 1: the file is empty")
    if text.lstrip().startswith("{") or _is_json_lines(source):
        table = _json_lines(text, encoding, max_rows)
    else:
        records, delimiter = delimited.records(text, max_rows)
        place = Place("line", format="csv", encoding=encoding, delimiter=delimiter)
        table = _table(records, header_rows, max_rows, place)
    return _without_personal(table) if drop_personal else table


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
    """Where records are from; `unit` is what they are counted in, "line" or "row"."""

    unit: str
    format: str
    encoding: str | None = None
    delimiter: str | None = None
    sheet: str | None = None


def _table(
    records: list[delimited.Record], header_rows: int | None, max_rows: int, place: Place
) -> Table:
    header = delimited.header(records, header_rows)
    columns = header.columns
    for name in columns:
        _check_cell(name, 1, place.unit)
    if len(columns) > MAX_COLUMNS:
        raise DatasetError(
            f"{place.unit} 1: {len(columns)} columns; at most {MAX_COLUMNS} are read"
        )
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


def _check_cell(cell: str, line: int, unit: str = "line") -> None:
    if len(cell) > MAX_CELL:
        raise DatasetError(f"{unit} {line}: a cell of {len(cell)} characters; at most {MAX_CELL}")
    if _NOT_STORABLE.search(cell):
        raise DatasetError(f"{unit} {line}: a NUL sign or half a surrogate pair; remove it")


def _json_lines(text: str, encoding: str, max_rows: int) -> Table:
    rows: list[dict[str, str]] = []
    columns: dict[str, None] = {}
    # Not splitlines: it would break a text at every Unicode line separator within it.
    for line, raw in enumerate(text.split("\n"), start=1):
        if not raw.strip():
            continue
        if len(rows) == max_rows:
            raise DatasetError(f"line {line}: more than {max_rows} rows; split the file")
        rows.append(_json_row(raw, line))
        columns.update(dict.fromkeys(rows[-1]))
    if len(columns) > MAX_COLUMNS:
        raise DatasetError(f"{len(columns)} columns; at most {MAX_COLUMNS} are read")
    detected = Detected(
        format="jsonl",
        encoding=encoding,
        delimiter=None,
        header_rows=0,
        source="plain",
        dropped_columns=(),
        questions={},
    )
    return Table(list(columns), [{**dict.fromkeys(columns, ""), **row} for row in rows], detected)


def _json_row(raw: str, line: int) -> dict[str, str]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"line {line}: no valid JSON: {error}") from error
    if isinstance(value, str):
        value = {"text": value}
    if not isinstance(value, dict):
        raise DatasetError(f"line {line}: give an object or a text on each line")
    for name in value:
        _check_cell(name, line)
    return {name: _json_cell(name, cell, line) for name, cell in value.items()}


def _json_cell(name: str, cell: Any, line: int) -> str:
    if isinstance(cell, dict | list):
        raise DatasetError(f"line {line}: {name!r} holds a list or an object; give a text")
    text = cell if isinstance(cell, str) else "" if cell is None else json.dumps(cell)
    _check_cell(text, line)
    return text


def _without_personal(table: Table) -> Table:
    found = table.detected
    dropped = personal_columns(table.columns, found.questions)
    if not dropped:
        return table
    columns = [name for name in table.columns if name not in dropped]
    detected = replace(
        found,
        dropped_columns=tuple(dropped),
        questions={name: found.questions[name] for name in found.questions if name in columns},
    )
    return Table(columns, [{name: row[name] for name in columns} for row in table.rows], detected)
