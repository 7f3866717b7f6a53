"""Rows of a workbook (XLSX, ODS) as texts, as a person sees them there.

A workbook is a zip archive of XML, so a small file may ask for a great deal of memory: unpacked, as
a sheet whose first and last cell are a billion cells apart, or by one long text that a million
cells refer to. All this is measured before the reader (calamine) sees it, and the reader gets a
copy that holds nothing but what was measured.
"""

import io
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any, Final

from app.datasets.delimited import MAX_CELLS, Record
from app.datasets.extents import OdsExtent, XlsxExtent, damaged, parse
from app.domain.errors import DatasetError

ZIP_MARK: Final = b"PK\x03\x04"
OLD_MARK: Final = b"\xd0\xcf\x11\xe0"
"""Of XLS, and of any Office file with a password."""

MAX_UNZIPPED: Final = 256 * 1024 * 1024
MAX_ENTRIES: Final = 5_000
_PIECE_BYTES: Final = 64 * 1024
_ENTRY_MARK: Final = b"PK\x01\x02"  # before each entry of an archive's directory
_PACKINGS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""How spreadsheet programs pack. Of the others one step may unpack to any size."""

MAX_TEXT: Final = 128 * 1024 * 1024
"""Bytes of all cells, each counted as often as it is shown."""

_XLSX_MAIN: Final = "xl/workbook.xml"
_ODS_MAIN: Final = "content.xml"
_ODS_PARTS: Final = frozenset({"mimetype", "META-INF/manifest.xml", _ODS_MAIN})
_XLSX_PARTS: Final = (".xml", ".rels")
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
        sheet: name of the sheet; None for the first that is not hidden and has rows.
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
            visible = [
                found.name
                for found in workbook.sheets_metadata
                if found.visible == python_calamine.SheetVisibleEnum.Visible
            ]
            for name in visible if sheet is None else [sheet]:
                found = workbook.get_sheet_by_name(name)
                rows = found.to_python(skip_empty_area=False, nrows=None)
                records = _records(rows, found.merged_cell_ranges or (), max_rows)
                if records:
                    return records, name
    except (python_calamine.CalamineError, OSError, ValueError) as error:
        raise DatasetError(f"the workbook cannot be read: {error}") from error
    raise DatasetError(
        "the workbook has no row in it that is not hidden"
        if sheet is None
        else f"{sheet!r} is empty"
    )


def _records(rows: Sequence[Sequence[Cell]], merged: Iterable[Any], max_rows: int) -> list[Record]:
    heading: dict[tuple[int, int], tuple[int, int]] = {}
    for start, end in merged:
        if start[0] == end[0] and start[0] < _HEADER_ROWS:
            for column in range(start[1], end[1] + 1):
                # Merged cells never overlap, except in a file that is made to take long.
                if (start[0], column) in heading:
                    break
                heading[start[0], column] = start
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
    if len(names) < len(entries) or not names & {_ODS_MAIN, _XLSX_MAIN}:
        raise DatasetError("this archive is no XLSX or ODS workbook; save it as XLSX or CSV")
    # Each kind is measured in its own way, so nothing is left that could be read as the other.
    if _XLSX_MAIN in names:
        entries = [entry for entry in entries if _is_of_xlsx(entry[0])]
        _measure_xlsx([content for _, content in entries])
    else:
        entries = [entry for entry in entries if entry[0] in _ODS_PARTS]
        _measure_ods(dict(entries)[_ODS_MAIN])
    copied = io.BytesIO()
    with zipfile.ZipFile(copied, "w", zipfile.ZIP_STORED) as copy:
        for name, content in entries:
            copy.writestr(name, content)
    return copied.getvalue()


def _is_of_xlsx(name: str) -> bool:
    """Drawings of old (VML) are no sound XML, and what users attach need not be."""
    plain = name.casefold()
    return plain.endswith(_XLSX_PARTS) and not plain.startswith(("customxml/", _ODS_MAIN))


def _entries(data: bytes) -> Iterator[tuple[str, bytes]]:
    # Before the directory is read, since each of its entries takes ten times its bytes.
    if data.count(_ENTRY_MARK) > MAX_ENTRIES:
        raise _too_large()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > MAX_UNZIPPED:
                raise _too_large()
            for entry in entries:
                yield entry.filename, _unpacked(archive, entry)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise DatasetError(f"the workbook is damaged: {error}") from error
    except RuntimeError as error:
        # The archive's own word for a password, and for a version or packing that it cannot read.
        raise _not_readable() from error


def _not_readable() -> DatasetError:
    return DatasetError(
        "the workbook is protected or packed in a way that is not supported; save it anew"
    )


def _too_large() -> DatasetError:
    return DatasetError(
        f"the workbook unpacks to more than {MAX_UNZIPPED} bytes or {MAX_ENTRIES} files; save the "
        "sheet as CSV"
    )


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """The stated size and no more, whatever the entry holds; the checksum tells a lie.

    By pieces: asked for all of it, the archive unpacks up to 2 GiB and then cuts.
    """
    if entry.compress_type not in _PACKINGS:
        raise _not_readable()
    with archive.open(entry) as file:
        return b"".join(iter(lambda: file.read(_PIECE_BYTES), b""))


def _refuse_large(rows: int, columns: int, text: int) -> None:
    """Both counted from the sheet's first cell to its last filled one."""
    if rows * columns > MAX_CELLS:
        raise DatasetError(
            f"a sheet spans {rows} rows and {columns} columns, more than {MAX_CELLS} cells; delete "
            "what is empty or not needed, or save the sheet as CSV"
        )
    if text > MAX_TEXT:
        raise DatasetError(f"a sheet holds more than {MAX_TEXT} bytes of text; split it")


def _measure_xlsx(contents: Iterable[bytes]) -> None:
    extents = []
    for content in contents:
        extent = XlsxExtent()
        parse(content, extent)
        extents.append(extent)
    lists = [extent.strings for extent in extents if extent.strings]
    if len(lists) > 1:
        raise damaged("it has several lists of texts")
    strings = lists[0] if lists else []
    for extent in extents:
        if any(number >= len(strings) for number in extent.references):
            raise damaged("a cell refers to a text that is not there")
        text = sum(strings[number] * times for number, times in extent.references.items())
        _refuse_large(extent.rows, extent.columns, text)


def _measure_ods(content: bytes) -> None:
    extent = OdsExtent()
    parse(content, extent)
    _refuse_large(extent.rows, extent.columns, extent.bytes)
