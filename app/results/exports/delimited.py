"""A table as CSV that spreadsheets open as it is, and that they do not run."""

import csv
import io
import re
from typing import BinaryIO, Final

from app.results.exports.tables import Cell, Table

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
"""Without it, Excel takes UTF-8 for the code page of its country."""

_PASSED_OVER: Final = r"[\s\x00-\x20\ufeff\u200b-\u200f\u2060'\"\u2018-\u201f]*+"
_SIGN: Final = r"[=+\-@\uff1d\uff0b\uff0d\uff20]"
_FORMULA: Final = re.compile(_PASSED_OVER + _SIGN)
# Where Excel's country divides lists by semicolons it divides this file by them, so a cell may
# begin in the middle of a text. What is passed over is matched also without a sign: tried anew from
# each of its characters it would take quadratic time.
_INNER: Final = re.compile(f"([;\t\r\n]{_PASSED_OVER})({_SIGN})?")
_CONTROL: Final = ("\t", "\r", "\n")


def is_formula_like(text: str) -> bool:
    """Whether a spreadsheet may take a text for a formula, or split it so that it becomes one.

    Spaces, quotes and invisible signs in front do not help; a tab or a line's end may begin a cell.
    """
    return text.startswith(_CONTROL) or _FORMULA.match(text) is not None


def write_csv(table: Table, file: BinaryIO) -> None:
    """Write a table (RFC 4180, UTF-8 with a mark); texts like formulas get an apostrophe.

    So does what would be one in a cell of its own, behind a semicolon, a tab or a line's end.
    """
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
    if isinstance(cell, str):
        text = _INNER.sub(_with_apostrophe, cell)
        return "'" + text if is_formula_like(cell) else text
    return cell


def _with_apostrophe(found: re.Match[str]) -> str:
    return f"{found[1]}'{found[2]}" if found[2] else found[0]
