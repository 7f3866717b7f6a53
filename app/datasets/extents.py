"""How far the cells of a workbook's XML reach, and how much text they show, without a reader.

The handlers see the XML as the reader of workbooks will. What it might see in another way than they
do is refused.
"""

import re
from collections import Counter
from typing import Final, Protocol
from xml.parsers import expat

from app.domain.errors import DatasetError

_LONGEST_NUMBER: Final = 12  # digits of a count that are looked at; more is too much anyway
_REFERENCE: Final = re.compile(r"([A-Za-z]{1,3})([0-9]{1,7})")


class _Handler(Protocol):
    def start(self, name: str, attributes: dict[str, str]) -> None: ...

    def end(self, name: str) -> None: ...

    def text(self, text: str) -> None: ...


def parse(content: bytes, handler: _Handler) -> None:
    """Have a handler see the XML as the reader will: as UTF-8, whatever encoding it claims."""
    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler = handler.start
    parser.EndElementHandler = handler.end
    parser.CharacterDataHandler = handler.text
    parser.StartDoctypeDeclHandler = _refuse_declarations
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise damaged(str(error)) from error


def damaged(reason: str) -> DatasetError:
    """The error that says what is wrong with the workbook, and what to do."""
    return DatasetError(
        f"the workbook is damaged: {reason}; save it anew with a spreadsheet program"
    )


def _refuse_declarations(*_: object) -> None:
    raise DatasetError(
        "the workbook declares a document type or entities; save it anew with a spreadsheet program"
    )


class XlsxExtent:
    """How far the filled cells of one part reach, its shared strings and references to them.

    The reader goes by local names and forgives much; what it might see in another way than this
    does is refused.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.columns = 0
        self.strings: list[int] = []
        """Bytes of each."""

        self.references: Counter[int] = Counter()
        self._row: str | None = None
        self._cell: dict[str, str] | None = None
        self._is_string = False
        self._value: list[str] | None = None
        """Pieces of the number of a shared string."""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """An element begins."""
        local = _local(name)
        if self._value is not None:
            raise damaged("a value has elements in it")
        if self._cell is not None:
            if local == "c":
                raise damaged("a cell has a cell in it")
            self._fill(self._cell)
            if local == "v" and self._cell.get("t") == "s":
                self._value = []
        elif local == "row":
            self._row = attributes.get("r")
        elif local == "c":
            self._cell = attributes
        elif local == "si":
            if self._is_string:
                raise damaged("a text has a text in it")
            self._is_string = True
            self.strings.append(0)

    def text(self, text: str) -> None:
        """Text within the last element."""
        if self._is_string:
            self.strings[-1] += len(text.encode())
        if self._value is not None:
            self._value.append(text)

    def end(self, name: str) -> None:
        """An element ends."""
        local = _local(name)
        if local == "c":
            self._cell = None
        elif local == "si":
            self._is_string = False
        elif local == "v" and self._value is not None:
            # The reader stops at a comment or takes a sign for a zero, so only plain digits do.
            if len(self._value) > 1 or not _is_number("".join(self._value)):
                raise damaged("a cell refers to no text")
            self.references[int(self._value[0][:_LONGEST_NUMBER])] += 1
            self._value = None

    def _fill(self, cell: dict[str, str]) -> None:
        place = _REFERENCE.fullmatch(cell.get("r", ""))
        if place is None:
            raise DatasetError(
                "the workbook has cells without a place; save it anew with a spreadsheet program"
            )
        row = self._row or "0"
        if not _is_number(row):
            raise damaged("a row has no number")
        self.rows = max(self.rows, int(place[2]), int(row[:_LONGEST_NUMBER]))
        self.columns = max(self.columns, _column(place[1]))


def _local(name: str) -> str:
    return name.rpartition(":")[2]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _column(letters: str) -> int:
    number = 0
    for letter in letters.upper():
        number = 26 * number + ord(letter) - ord("A") + 1
    return number


class OdsExtent:
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
        """An element begins."""
        local = _local(name)
        if local == "table":
            self._row = 0
        elif local == "table-row":
            self._row_repeated = _times(attributes, "number-rows-repeated")
            self._column = self._cell_repeated = self._row_bytes = 0
            self._is_row_filled = False
        elif local in ("table-cell", "covered-table-cell"):
            self._cell_repeated = _times(attributes, "number-columns-repeated")
            self._column += self._cell_repeated
            if any(_local(key) == "value-type" for key in attributes):
                self._fill(sum(map(len, attributes.values())))
        elif local in ("s", "tab"):
            self._fill(_times(attributes, "c"))

    def text(self, text: str) -> None:
        """Text within the last element."""
        if text.strip():
            self._fill(len(text.encode()))

    def end(self, name: str) -> None:
        """An element ends."""
        if _local(name) == "table-row":
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
    """How often; the most where attributes differ in their prefixes alone."""
    times = [value for key, value in attributes.items() if _local(key) == wanted]
    if not all(map(_is_number, times)):
        raise damaged("something is repeated an unclear number of times")
    return max((int(value[:_LONGEST_NUMBER]) for value in times), default=1)
