"""Workbooks made by hand, sound and hostile ones."""

import io
import struct
import zipfile
from collections.abc import Mapping
from typing import Final

_MAIN: Final = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE: Final = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE: Final = "http://schemas.openxmlformats.org/package/2006/relationships"
_ODF: Final = "urn:oasis:names:tc:opendocument:xmlns:"
_DATES: Final = (
    f'<styleSheet xmlns="{_MAIN}"><cellXfs count="3"><xf numFmtId="0"/><xf numFmtId="14"/>'
    '<xf numFmtId="22"/></cellXfs></styleSheet>'
)


def archive(entries: Mapping[str, str | bytes], packing: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", packing) as packed:
        for name, content in entries.items():
            packed.writestr(name, content)
    return file.getvalue()


def lying(archive_of_one: bytes, stated_bytes: int) -> bytes:
    """An archive whose one entry claims to unpack to so many bytes."""
    book = bytearray(archive_of_one)
    for mark, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = book.index(mark) + offset
        book[at : at + 4] = struct.pack("<I", stated_bytes)
    return bytes(book)


def replaced(book: bytes, ending: str, content: bytes) -> bytes:
    """The archive with other content where an entry's name ends so."""
    with zipfile.ZipFile(io.BytesIO(book)) as old:
        return archive(
            {
                entry.filename: content if entry.filename.endswith(ending) else old.read(entry)
                for entry in old.infolist()
            }
        )


def with_entry(book: bytes, name: str, content: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(book)) as old:
        return archive(
            {**{entry.filename: old.read(entry) for entry in old.infolist()}, name: content}
        )


def links_of(sheets: int) -> str:
    """The relations of a workbook with so many sheets."""
    links = "".join(
        f'<Relationship Id="r{n}" Type="{_OFFICE}/worksheet" Target="worksheets/sheet{n}.xml"/>'
        for n in range(1, sheets + 1)
    )
    links += f'<Relationship Id="styles" Type="{_OFFICE}/styles" Target="styles.xml"/>'
    links += f'<Relationship Id="texts" Type="{_OFFICE}/sharedStrings" Target="sharedStrings.xml"/>'
    return f'<Relationships xmlns="{_PACKAGE}">{links}</Relationships>'


def xlsx(
    *sheets: str,
    names: tuple[str, ...] = ("One", "Two"),
    states: tuple[str, ...] = ("visible", "visible"),
    strings: str = "",
    start: str = "",
) -> bytes:
    """A workbook of these sheets, each the inside of a `worksheet` element after `start`."""
    numbers = range(1, len(sheets) + 1)
    listed = "".join(
        f'<sheet name="{name}" sheetId="{n}" state="{state}" r:id="r{n}"/>'
        for n, name, state in zip(numbers, names, states, strict=False)
    )
    return archive(
        {
            "[Content_Types].xml": "<Types/>",
            "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}"><Relationship Id="book" '
            f'Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
            "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}">'
            f"<sheets>{listed}</sheets></workbook>",
            "xl/_rels/workbook.xml.rels": links_of(len(sheets)),
            "xl/styles.xml": _DATES,
            "xl/sharedStrings.xml": f'<sst xmlns="{_MAIN}">{strings}</sst>',
            "xl/media/image1.png": b"\x89PNG<c >\x00",
            **{
                f"xl/worksheets/sheet{n}.xml": f'{start}<worksheet xmlns="{_MAIN}">{sheet}'
                "</worksheet>"
                for n, sheet in zip(numbers, sheets, strict=True)
            },
        }
    )


def table(rows: list[list[str]]) -> str:
    """A sheet of texts."""
    lines = []
    for number, cells in enumerate(rows, start=1):
        line = "".join(text(f"{chr(65 + at)}{number}", cell) for at, cell in enumerate(cells))
        lines.append(f'<row r="{number}">{line}</row>')
    return f"<sheetData>{''.join(lines)}</sheetData>"


def text(place: str, content: str) -> str:
    return f'<c r="{place}" t="inlineStr"><is><t xml:space="preserve">{content}</t></is></c>'


def ods(rows: str) -> bytes:
    """A document of one table with these rows."""
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    return archive(
        {
            "mimetype": kind,
            "META-INF/manifest.xml": f'<manifest:manifest xmlns:manifest="{_ODF}manifest:1.0">'
            f'<manifest:file-entry manifest:full-path="/" manifest:media-type="{kind}"/>'
            "</manifest:manifest>",
            "content.xml": f'<office:document-content xmlns:office="{_ODF}office:1.0" '
            f'xmlns:table="{_ODF}table:1.0" xmlns:text="{_ODF}text:1.0"><office:body>'
            f'<office:spreadsheet><table:table table:name="One">{rows}</table:table>'
            "</office:spreadsheet></office:body></office:document-content>",
        }
    )


def ods_row(*cells: str, repeated: int = 1) -> str:
    times = f'table:number-rows-repeated="{repeated}"'
    return f"<table:table-row {times}>{''.join(cells)}</table:table-row>"


def ods_text(content: str, repeated: int = 1) -> str:
    return (
        f'<table:table-cell office:value-type="string" table:number-columns-repeated="{repeated}">'
        f"<text:p>{content}</text:p></table:table-cell>"
    )
