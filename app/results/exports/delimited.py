"""A table as CSV that spreadsheets open as it is, and that they do not run."""

import csv
import io
import re
from typing import BinaryIO, Final

from app.results.exports.tables import Cell, Table

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
"""Without it, Excel takes UTF-8 for the code page of its country."""

_FORMULA: Final = re.compile(
    r"[\s\x00-\x20\ufeff\u200b-\u200f\u2060'\"\u2018-\u201f]*[=+\-@\uff1d\uff0b\uff0d\uff20]"
)
_CONTROL: Final = ("\t", "\r", "\n")


def is_formula_like(text: str) -> bool:
    """Whether a spreadsheet may take a text for a formula, or split it so that it becomes one.

    Spaces, quotes and invisible signs in front do not help; a tab or a line's end may begin a cell.
    """
    return text.startswith(_CONTROL) or _FORMULA.match(text) is not None


def write_csv(table: Table, file: BinaryIO) -> None:
    """Write a table (RFC 4180, UTF-8 with a mark); texts like formulas get an apostrophe."""
    file.write(BYTE_ORDER_MARK)
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=False)
    try:
        writer = csv.writer(text)
        writer.writerow([_safe(name) for name in table.columns])
        writer.writerows([_safe(cell) for cell in row] for row in table.rows)
    finally:
        text.flush()
        text.detach()  # the file stays open: it is its owner's


def _safe(cell: Cell) -> Cell:
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, str) and is_formula_like(cell):
        return "'" + cell
    return cell
