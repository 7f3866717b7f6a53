"""Rows of a workbook (XLSX, ODS) as texts, as a person sees them there.

A workbook is a zip archive of XML, so a small file may ask for a great deal of memory: unpacked, as
a sheet whose first and last cell are a billion cells apart, or by one long text that a million
cells refer to. All this is measured before the reader (calamine) sees it, and the reader gets a
copy that holds nothing but what was measured.
"""

import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any, Final
from xml.parsers import expat

from app.datasets.delimited import Record
from app.domain.errors import DatasetError

ZIP_MARK: Final = b"PK\x03\x04"
OLD_MARK: Final = b"\xd0\xcf\x11\xe0"
"""Of XLS, and of any Office file with a password."""

MAX_UNZIPPED: Final = 256 * 1024 * 1024
MAX_ENTRIES: Final = 5_000
MAX_CELLS: Final = 5_000_000
"""Rows times columns from the sheet's first cell to its last filled one."""

MAX_TEXT: Final = 128 * 1024 * 1024
"""Bytes of all cells, each counted as often as it is shown."""

_CELL: Final = re.compile(rb"<(?:\w+:)?c(?=[\s/>])[^>]*>")
_ROW: Final = re.compile(rb"<(?:\w+:)?row\s[^>]*?\br\s*=\s*[\"'](\d{1,9})[\"'][^>]*(?<!/)>")
_REFERENCE: Final = re.compile(rb"\sr\s*=\s*[\"']([A-Za-z]{1,3})(\d{1,7})[\"']")
_SHARED: Final = re.compile(rb"\st\s*=\s*[\"']s[\"']")
_STRING: Final = re.compile(rb"<(?:\w+:)?si(?=[\s/>])(?:[^>]*/>|.*?</(?:\w+:)?si\s*>)", re.DOTALL)
_VALUE: Final = re.compile(rb"<(?:\w+:)?(?:v(?:\s[^>]*)?>\s*(\d{1,9})\s*<|(v|c)(?=[\s/>]))")
_DIGITS: Final = 15  # that a spreadsheet keeps of a number

Cell = int | float | str | bool | date | datetime | time | timedelta


def is_workbook(data: bytes) -> bool:
    """Whether the content is to be read as one; an archive of another kind is refused there."""
    return data.startswith((ZIP_MARK, OLD_MARK))


def sheet_records(data: bytes, sheet: str | None, max_rows: int) -> tuple[list[Record], str]:
    """The rows of a sheet without blank ones, and the sheet's name.

    Merged cells count as their first one, except within the first rows, where each of them has the
    common heading.

    Args:
        data: the file's content.
        sheet: name of the sheet; None for the first that has rows.
        max_rows: reading ends a little after so many, so that a caller sees that there are more.

    Raises:
        DatasetError: it is no workbook of these kinds, or broken, or larger than the bounds.
    """
    try:
        import python_calamine  # noqa: PLC0415 - an optional package
    except ModuleNotFoundError as error:
        raise DatasetError(
            "workbooks need the package python-calamine; install haulage[thematic] or save the "
            "sheet as CSV"
        ) from error
    copy = _measured_copy(data)
    try:
        with python_calamine.load_workbook(io.BytesIO(copy)) as workbook:
            names = workbook.sheet_names
            if sheet is not None and sheet not in names:
                raise DatasetError(f"no sheet {sheet!r}; found: {', '.join(names)}")
            for name in names if sheet is None else [sheet]:
                found = workbook.get_sheet_by_name(name)
                rows = found.to_python(skip_empty_area=False, nrows=None)
                records = _records(rows, found.merged_cell_ranges or (), max_rows)
                if records:
                    return records, name
    except (python_calamine.CalamineError, OSError, ValueError) as error:
        raise DatasetError(f"the workbook cannot be read: {error}") from error
    raise DatasetError("the workbook has no row in it" if sheet is None else f"{sheet!r} is empty")


def _records(rows: Sequence[Sequence[Cell]], merged: Iterable[Any], max_rows: int) -> list[Record]:
    heading = {
        (row, column): start
        for start, end in merged
        if start[0] == end[0] and start[0] < _HEADER_ROWS
        for row in (start[0],)
        for column in range(start[1], end[1] + 1)
    }
    records = []
    for at, cells in enumerate(rows):
        texts = [shown(cell) for cell in cells]
        for column, _ in enumerate(texts):
            if (at, column) in heading:
                texts[column] = shown(cells[heading[at, column][1]])
        if any(text.strip() for text in texts):
            records.append(Record(at + 1, texts))
        if len(records) > max_rows + _HEADER_ROWS:
            break
    return records


_HEADER_ROWS: Final = 3


def shown(cell: Cell) -> str:
    """A value as a sheet shows it: 7 and not 7.0, TRUE, an ISO date without midnight."""
    if isinstance(cell, bool):
        return "TRUE" if cell else "FALSE"
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() and abs(cell) < 10**_DIGITS else f"{cell:.15g}"
    if isinstance(cell, datetime):
        return cell.isoformat(" ", "seconds").removesuffix(" 00:00:00")
    if isinstance(cell, time):
        return cell.isoformat("seconds").removesuffix(":00")
    return str(cell)


def _measured_copy(data: bytes) -> bytes:
    """The XML of a workbook that stays within the bounds, in an archive of its own."""
    if data.startswith(OLD_MARK):
        raise DatasetError(
            "this is an old or a protected workbook; save it as XLSX without a password, or as CSV"
        )
    entries = [
        (name, content)
        for name, content in _entries(data)
        if name == "mimetype" or content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")
    ]
    names = {name for name, _ in entries}
    if len(names) < len(entries) or not names & {"content.xml", "xl/workbook.xml"}:
        raise DatasetError("this archive is no XLSX or ODS workbook; save it as XLSX or CSV")
    strings = [len(string) for _, content in entries for string in _STRING.findall(content)]
    copied = io.BytesIO()
    with zipfile.ZipFile(copied, "w", zipfile.ZIP_STORED) as copy:
        for name, content in entries:
            extent = (
                _ods_extent(content) if name == "content.xml" else _xlsx_extent(content, strings)
            )
            _refuse_large(*extent)
            copy.writestr(name, content)
    return copied.getvalue()


def _entries(data: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if len(entries) > MAX_ENTRIES or sum(e.file_size for e in entries) > MAX_UNZIPPED:
                raise DatasetError(
                    f"the workbook unpacks to more than {MAX_UNZIPPED} bytes; save the sheet as CSV"
                )
            for entry in entries:
                # No more than the stated size is ever unpacked; the checksum tells a lie.
                yield entry.filename, archive.read(entry)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise DatasetError(f"the workbook is damaged: {error}") from error
    except (RuntimeError, NotImplementedError) as error:
        raise DatasetError(
            "the workbook is protected or packed in a way that is not supported; save it anew"
        ) from error


def _refuse_large(rows: int, columns: int, text: int) -> None:
    if rows * columns > MAX_CELLS:
        raise DatasetError(
            f"a sheet spans {rows} rows and {columns} columns, more than {MAX_CELLS} cells; delete "
            "what is empty or not needed, or save the sheet as CSV"
        )
    if text > MAX_TEXT:
        raise DatasetError(f"a sheet holds more than {MAX_TEXT} bytes of text; split it")


def _xlsx_extent(content: bytes, strings: Sequence[int]) -> tuple[int, int, int]:
    """Rows and columns that a sheet spans, and bytes of shared strings; zeros for other XML.

    Args:
        content: of one entry.
        strings: bytes of each shared string.
    """
    rows = max((int(number) for number in _ROW.findall(content)), default=0)
    columns = text = 0
    for tag in _CELL.finditer(content):
        if tag.group().endswith(b"/>"):
            continue
        reference = _REFERENCE.search(tag.group())
        if reference is None:
            raise DatasetError(
                "the workbook has cells without a place; save it anew with a spreadsheet program"
            )
        rows = max(rows, int(reference[2]))
        columns = max(columns, _column(reference[1]))
        if _SHARED.search(tag.group()):
            text += _shared(content, tag.end(), strings)
    return rows, columns, text


def _shared(content: bytes, at: int, strings: Sequence[int]) -> int:
    """Bytes of the shared string that the cell beginning before `at` refers to."""
    value = _VALUE.search(content, at)
    if value is None or value[2] == b"c":
        return 0
    if value[1] is None or int(value[1]) >= len(strings):
        raise DatasetError("the workbook is damaged: a cell refers to a text that is not there")
    return strings[int(value[1])]


def _column(letters: bytes) -> int:
    number = 0
    for letter in letters.upper():
        number = 26 * number + letter - ord("A") + 1
    return number


def _ods_extent(content: bytes) -> tuple[int, int, int]:
    extent = _Extent()
    parser = expat.ParserCreate()
    parser.StartElementHandler = extent.start
    parser.EndElementHandler = extent.end
    parser.CharacterDataHandler = extent.text
    parser.EntityDeclHandler = _refuse_entities
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise DatasetError(f"the workbook is damaged: {error}") from error
    return extent.rows, extent.columns, extent.bytes


def _refuse_entities(*_: object) -> None:
    raise DatasetError("the workbook declares entities; save it anew with a spreadsheet program")


class _Extent:
    """How far the filled cells of an ODS document reach, and their text, repetitions counted."""

    def __init__(self) -> None:
        self.rows = 0
        self.columns = 0
        self.bytes = 0
        self._row = 0
        self._column = 0
        self._row_repeated = 1
        self._cell_repeated = 0
        self._row_bytes = 0
        self._is_row_filled = False

    def start(self, name: str, attributes: dict[str, str]) -> None:
        local = name.rpartition(":")[2]
        if local == "table":
            self._row = 0
        elif local == "table-row":
            self._row_repeated = _times(attributes, "number-rows-repeated")
            self._column = self._cell_repeated = self._row_bytes = 0
            self._is_row_filled = False
        elif local in ("table-cell", "covered-table-cell"):
            self._cell_repeated = _times(attributes, "number-columns-repeated")
            self._column += self._cell_repeated
            if any(key.rpartition(":")[2] == "value-type" for key in attributes):
                self._fill(sum(map(len, attributes.values())))
        elif local in ("s", "tab"):
            self._fill(_times(attributes, "c"))

    def text(self, text: str) -> None:
        if text.strip():
            self._fill(len(text.encode()))

    def end(self, name: str) -> None:
        if name.rpartition(":")[2] == "table-row":
            self._row += self._row_repeated
            self.bytes += self._row_bytes * self._row_repeated
            self._cell_repeated = 0
            if self._is_row_filled:
                self.rows = max(self.rows, self._row)

    def _fill(self, size: int) -> None:
        if self._cell_repeated:
            self._is_row_filled = True
            self._row_bytes += size * self._cell_repeated
            self.columns = max(self.columns, self._column)


def _times(attributes: dict[str, str], wanted: str) -> int:
    for key, value in attributes.items():
        if key.rpartition(":")[2] == wanted and value.isascii() and value.isdigit():
            return int(value[:12])
    return 1
