"""Tables as a workbook (XLSX), one sheet each, with what people wrote as texts and nothing else."""

import re
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final

from app.domain.errors import ExportError
from app.results.exports.delimited import is_formula_like
from app.results.exports.tables import Cell, Table

MAX_ROWS: Final = 1_048_576

_LARGEST_NUMBER: Final = 10**15
"""More digits are lost there, so a larger one is written as a text."""

_NOT_IN_XML: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_LINE_END: Final = re.compile("\r\n?")
_RUNS: Final = "<r>"
"""What begins with it, and ends alike, the library takes for XML of its own and does not escape."""

_WIDE: Final = frozenset({"quote", "insight", "description", "text"})
_WIDTH, _WIDTH_OF_TEXT, _LEAST_WIDTH = 28, 90, 12


def write_workbook(tables: Sequence[Table], file: BinaryIO) -> None:
    """Write a workbook; ExportError where a table has more rows than a sheet."""
    from xlsxwriter import Workbook  # noqa: PLC0415  only in a process that writes one

    with TemporaryDirectory() as folder:
        # Row by row, by way of files; no text is looked at for what it could be else.
        options = {
            "constant_memory": True,
            "tmpdir": folder,
            "strings_to_formulas": False,
            "strings_to_numbers": False,
            "strings_to_urls": False,
        }
        with Workbook(file, options) as book:
            formats = _Formats(book)
            for table in tables:
                _write_sheet(book.add_worksheet(table.name), table, formats)


class _Formats:
    """How cells look.

    Attributes:
        formula_like: of a text that has to stay one when it is edited.
    """

    def __init__(self, book: Any) -> None:
        text = {"valign": "top", "text_wrap": True}
        self.heading = book.add_format({"bold": True})
        self.plain = book.add_format(text)
        self.share = book.add_format({"valign": "top", "num_format": "0.00%"})
        self.formula_like = book.add_format({**text, "num_format": "@", "quote_prefix": True})


def _write_sheet(sheet: Any, table: Table, formats: _Formats) -> None:
    sheet.freeze_panes(1, 0)  # the heading stays in sight
    for at, name in enumerate(table.columns):
        wide = _WIDTH_OF_TEXT if name in _WIDE else max(_LEAST_WIDTH, min(_WIDTH, len(name) + 4))
        sheet.set_column(at, at, wide)
        sheet.write_string(0, at, _text(name), formats.heading)
    styles = [formats.share if name == "share" else formats.plain for name in table.columns]
    for number, row in enumerate(table.rows, start=1):
        if number >= MAX_ROWS:
            raise ExportError(f"a sheet holds {MAX_ROWS} rows; take CSV")
        for at, (cell, style) in enumerate(zip(row, styles, strict=True)):
            _write_cell(sheet, (number, at), cell, style, formats)


def _write_cell(
    sheet: Any, place: tuple[int, int], cell: Cell, style: Any, formats: _Formats
) -> None:
    """A number in this style, a text in its own."""
    match cell:
        case None:
            pass
        case bool():
            sheet.write_boolean(*place, cell)
        case int() | float() if abs(cell) < _LARGEST_NUMBER:
            sheet.write_number(*place, cell, style)
        case _:
            text = str(cell)
            looks = formats.formula_like if is_formula_like(text) else formats.plain
            sheet.write_string(*place, _text(text), looks)


def _text(text: str) -> str:
    """What XML can hold of a text; the library cuts it to what a cell can."""
    kept = _LINE_END.sub("\n", _NOT_IN_XML.sub("\ufffd", text))
    # In front, since a sign behind it could be cut off.
    return f" {kept}" if kept.startswith(_RUNS) else kept
