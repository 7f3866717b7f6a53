"""Tables as a workbook (Office Open XML, ECMA-376), one sheet each.

Written directly, since little of the format is needed: texts stand in their cells as texts
(`inlineStr`), so none of them can be a formula or a link, and rows are written as they come.
"""

import re
import zipfile
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final
from xml.sax.saxutils import escape, quoteattr

from app.domain.errors import ExportError
from app.results.exports.delimited import is_formula_like
from app.results.exports.tables import Cell, Table

MAX_ROWS: Final = 1_048_576
MAX_CELL: Final = 32_767
"""Characters that a cell may hold there; longer texts are cut."""

_LARGEST_NUMBER: Final = 10**15
"""More digits are lost there, so a larger one is written as a text."""

_MAIN: Final = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE: Final = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE: Final = "http://schemas.openxmlformats.org/package/2006"
_TYPES: Final = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_HEADER: Final = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'

_NOT_IN_XML: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_LINE_END: Final = re.compile("\r\n?")
_ESCAPED: Final = re.compile("_(?=x[0-9A-Fa-f]{4}_)")
"""Stands for a sign of that number where it is not escaped itself."""

# Numbers of the styles below: plain, heading, share, and a text that stays one when it is edited.
_PLAIN, _HEADING, _SHARE, _TEXT = range(4)
_STYLES: Final = f"""{_HEADER}<styleSheet xmlns="{_MAIN}">
<fonts count="2"><font><sz val="11"/><name val="Calibri"/></font>
<font><b/><sz val="11"/><name val="Calibri"/></font></fonts>
<fills count="2"><fill><patternFill patternType="none"/></fill>
<fill><patternFill patternType="gray125"/></fill></fills>
<borders count="1"><border><left/><right/><top/><bottom/><diagonal/></border></borders>
<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>
<cellXfs count="4">
<xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0" applyAlignment="1">\
<alignment vertical="top" wrapText="1"/></xf>
<xf numFmtId="0" fontId="1" fillId="0" borderId="0" xfId="0" applyFont="1"/>
<xf numFmtId="10" fontId="0" fillId="0" borderId="0" xfId="0" applyNumberFormat="1" \
applyAlignment="1"><alignment vertical="top"/></xf>
<xf numFmtId="49" fontId="0" fillId="0" borderId="0" xfId="0" quotePrefix="1" \
applyNumberFormat="1" applyAlignment="1"><alignment vertical="top" wrapText="1"/></xf>
</cellXfs>
</styleSheet>"""

_WIDE: Final = frozenset({"quote", "insight", "description", "text"})
_WIDTH, _WIDTH_OF_TEXT, _LEAST_WIDTH = 28, 90, 12


def write_workbook(tables: Sequence[Table], file: BinaryIO) -> None:
    """Write a workbook; ExportError where a table has more rows than a sheet."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=3) as archive:
        for number, table in enumerate(tables, start=1):
            with archive.open(f"xl/worksheets/sheet{number}.xml", "w") as sheet:
                for piece in _sheet(table):
                    sheet.write(piece.encode())
        for name, content in _frame([table.name for table in tables]):
            archive.writestr(name, content)


def _sheet(table: Table) -> Iterator[str]:
    yield f'{_HEADER}<worksheet xmlns="{_MAIN}"><sheetViews><sheetView workbookViewId="0">'
    # The heading stays in sight.
    yield '<pane ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"/>'
    yield "</sheetView></sheetViews><cols>"
    for number, name in enumerate(table.columns, start=1):
        wide = _WIDTH_OF_TEXT if name in _WIDE else max(_LEAST_WIDTH, min(_WIDTH, len(name) + 4))
        yield f'<col min="{number}" max="{number}" width="{wide}" customWidth="1"/>'
    yield "</cols><sheetData>"
    places = [_column(at) for at, _ in enumerate(table.columns)]
    styles = [_SHARE if name == "share" else _PLAIN for name in table.columns]
    heading = "".join(
        _text(f"{place}1", name, _HEADING)
        for place, name in zip(places, table.columns, strict=True)
    )
    yield f'<row r="1">{heading}</row>'
    for number, row in enumerate(table.rows, start=2):
        if number > MAX_ROWS:
            raise ExportError(f"a sheet holds {MAX_ROWS} rows; take CSV")
        cells = "".join(
            _cell(f"{place}{number}", cell, style)
            for place, cell, style in zip(places, row, styles, strict=True)
        )
        yield f'<row r="{number}">{cells}</row>'
    yield "</sheetData></worksheet>"


def _cell(place: str, cell: Cell, style: int) -> str:
    """A number in this style, a text in its own."""
    match cell:
        case None:
            return ""
        case bool():
            return f'<c r="{place}" t="b"><v>{int(cell)}</v></c>'
        case int() | float() if abs(cell) < _LARGEST_NUMBER:
            return f'<c r="{place}" s="{style}"><v>{cell!r}</v></c>'
        case _:
            text = str(cell)
            return _text(place, text, _TEXT if is_formula_like(text) else _PLAIN)


def _text(place: str, text: str, style: int) -> str:
    kept = _LINE_END.sub("\n", _NOT_IN_XML.sub("\ufffd", text))[:MAX_CELL]
    shown = escape(_ESCAPED.sub("_x005F_", kept))
    held = f'<is><t xml:space="preserve">{shown}</t></is>'
    return f'<c r="{place}" s="{style}" t="inlineStr">{held}</c>'


def _column(at: int) -> str:
    """0 is A, 26 is AA."""
    name = ""
    at += 1
    while at:
        at, letter = divmod(at - 1, 26)
        name = chr(ord("A") + letter) + name
    return name


def _frame(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What makes sheets a workbook."""
    numbers = range(1, len(names) + 1)
    parts = "".join(
        f'<Override PartName="/xl/worksheets/sheet{n}.xml" ContentType="{_TYPES}.worksheet+xml"/>'
        for n in numbers
    )
    types = (
        f'<Default Extension="rels" ContentType="{_RELATIONS}"/>'
        f'<Default Extension="xml" ContentType="application/xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{_TYPES}.sheet.main+xml"/>'
        f'<Override PartName="/xl/styles.xml" ContentType="{_TYPES}.styles+xml"/>{parts}'
    )
    sheets = "".join(
        f'<sheet name={quoteattr(name)} sheetId="{n}" r:id="rId{n}"/>'
        for n, name in zip(numbers, names, strict=True)
    )
    book = f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>{sheets}</sheets></workbook>'
    yield "[Content_Types].xml", f'{_HEADER}<Types xmlns="{_PACKAGE}/content-types">{types}</Types>'
    yield "_rels/.rels", _relations([("rId1", "officeDocument", "xl/workbook.xml")])
    yield "xl/styles.xml", _STYLES
    yield "xl/workbook.xml", _HEADER + book
    links = [(f"rId{n}", "worksheet", f"worksheets/sheet{n}.xml") for n in numbers]
    links.append((f"rId{len(names) + 1}", "styles", "styles.xml"))
    yield "xl/_rels/workbook.xml.rels", _relations(links)


_RELATIONS: Final = "application/vnd.openxmlformats-package.relationships+xml"


def _relations(links: Sequence[tuple[str, str, str]]) -> str:
    listed = "".join(
        f'<Relationship Id="{key}" Type="{_OFFICE}/{kind}" Target="{target}"/>'
        for key, kind, target in links
    )
    return f'{_HEADER}<Relationships xmlns="{_PACKAGE}/relationships">{listed}</Relationships>'
