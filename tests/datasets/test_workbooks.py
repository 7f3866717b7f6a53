import re
import struct
import time
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from datasets.workbooks import (
    archive,
    links_of,
    lying,
    ods,
    ods_row,
    ods_text,
    replaced,
    table,
    text,
    with_entry,
    xlsx,
)

from app.datasets import read_answers, read_table
from app.datasets import workbooks as reading
from app.domain.errors import DatasetError

EMPTY = "<sheetData/>"
SURVEY = table([["id", "text"], ["1", "Caf\u00e9 &amp; cake"], ["2", " two\nlines "]])


def test_a_workbook_is_a_table_as_a_person_sees_it() -> None:
    read = read_table(xlsx(SURVEY))
    assert read.columns == ["id", "text"]
    assert read.rows == [
        {"id": "1", "text": "Caf\u00e9 & cake"},
        {"id": "2", "text": " two\nlines "},
    ]
    detected = read.detected
    assert (detected.format, detected.encoding, detected.sheet) == ("workbook", None, "One")


def test_values_are_texts() -> None:
    cells = (
        '<c r="A2"><v>7</v></c><c r="B2"><v>0.30000000000000004</v></c>'
        '<c r="C2" t="b"><v>1</v></c><c r="D2" s="1"><v>46024</v></c>'
        '<c r="E2" s="2"><v>46024.4375</v></c><c r="F2"><v>12345678901234567</v></c>'
        '<c r="G2" t="e"><v>#N/A</v></c><c r="H2" t="s"><v>0</v></c>'
    )
    names = "".join(text(f"{letter}1", letter) for letter in "ABCDEFGH")
    sheet = f'<sheetData><row r="1">{names}</row><row r="2">{cells}</row></sheetData>'
    strings = '<si><r><t xml:space="preserve">rich </t></r><r><t>text</t></r></si>'
    (row,) = read_table(xlsx(sheet, strings=strings)).rows
    assert list(row.values()) == [
        "7",
        "0.3",
        "TRUE",
        "2026-01-02",
        "2026-01-02 10:30:00",
        "1.23456789012346e+16",
        "",
        "rich text",
    ]


def test_the_first_sheet_with_rows_is_read_or_a_named_one() -> None:
    book = xlsx(EMPTY, SURVEY)
    assert read_table(book).detected.sheet == "Two"
    assert read_answers(xlsx(table([["a"], ["b"]]), SURVEY), sheet="Two").text_column == "text"
    with pytest.raises(DatasetError, match="no sheet 'Three'; found: One, Two"):
        read_table(book, sheet="Three")
    with pytest.raises(DatasetError, match="'One' is empty"):
        read_table(book, sheet="One")
    with pytest.raises(DatasetError, match="has no row"):
        read_table(xlsx(EMPTY))
    with pytest.raises(DatasetError, match="this is no workbook"):
        read_table(b"a\nb\n", sheet="One")


@pytest.mark.parametrize("state", ["hidden", "veryHidden"])
def test_a_hidden_sheet_is_read_only_when_it_is_named(state: str) -> None:
    book = xlsx(table([["a"], ["b"]]), SURVEY, states=(state, "visible"))
    assert read_table(book).detected.sheet == "Two"
    assert read_table(book, sheet="One").rows == [{"a": "b"}]


def test_blank_rows_and_margins_are_passed_over() -> None:
    sheet = (
        f'<sheetData><row r="3">{text("B3", "text")}</row><row r="5">{text("B5", "x")}</row>'
        '<row r="9"><c r="B9" s="1"/></row></sheetData>'
    )
    assert read_table(xlsx(sheet)).rows == [{"column_1": "", "text": "x"}]


def test_merged_headings_stand_over_each_of_their_columns() -> None:
    rows = [
        ["Respondent ID", "First Name", "Which of these?", "", "Why?"],
        ["", "", "Food", "Parking", "Open-Ended Response"],
        ["1", "Ann", "Yes", "", "By chance"],
    ]
    merged = '<mergeCells><mergeCell ref="C1:D1"/></mergeCells>'
    read = read_table(xlsx(table(rows) + merged))
    assert (read.detected.source, read.detected.header_rows) == ("surveymonkey", 2)
    assert read.columns == [
        "Respondent ID",
        "Which of these? [Food]",
        "Which of these? [Parking]",
        "Why?",
    ]
    assert read.detected.dropped_columns == ("First Name",)


def test_merged_answers_are_the_first_one() -> None:
    rows = [["a", "b"], ["1", "2"], ["3", "4"], ["5", ""]]
    merged = '<mergeCells><mergeCell ref="A4:B4"/></mergeCells>'
    assert read_table(xlsx(table(rows) + merged)).rows[-1] == {"a": "5", "b": ""}


def test_ods_is_read_as_well() -> None:
    date = '<table:table-cell office:value-type="date" office:date-value="2026-01-02"/>'
    rows = (
        ods_row(ods_text("when"), ods_text("text"), ods_text("more"))
        + ods_row(date, ods_text("a</text:p><text:p>b"), ods_text("c"))
        + ods_row('<table:table-cell table:number-columns-repeated="16384"/>', repeated=1_048_574)
    )
    read = read_table(ods(rows))
    assert read.rows == [{"when": "2026-01-02", "text": "a\nb", "more": "c"}]
    assert (read.detected.format, read.detected.sheet) == ("workbook", "One")


SHARED = '<sheetData><row r="1"><c r="A1" t="s">{}</c></row></sheetData>'
FAR = f'<sheetData><row r="1">{text("A1", "x")}</row><row r="1048576">{{}}</row></sheetData>'
LONG = "x" * 100_000


@pytest.mark.parametrize(
    "book",
    [
        xlsx(FAR.format(text("XFD1048576", "x"))),
        xlsx(FAR.format(text("XFD1048576", "x").replace("r=", "r = "))),
        xlsx(FAR.format(text("XFD1048576", "x").replace('"XFD1048576"', "'xfd1048576'"))),
        xlsx(FAR.format(text("Z2", "x"))),
        ods(ods_row(ods_text("x", 16_384), repeated=1_000)),
        ods(ods_row(ods_text("", 9_999), ods_text("x")) + ods_row(ods_text("x"), repeated=600)),
    ],
)
def test_a_sheet_that_spans_too_much_is_refused_unread(book: bytes) -> None:
    with pytest.raises(DatasetError, match="cells; delete what is empty"):
        read_table(book)


@pytest.mark.parametrize("prefix", ["a-b", "a.b", "\u00e9", "_"])
def test_a_prefix_hides_no_cell(prefix: str) -> None:
    sheet = re.sub(r"<(/?)(?=\w)", rf"<\1{prefix}:", FAR.format(text("XFD1048576", "x")))
    with pytest.raises(DatasetError, match="cells; delete what is empty"):
        read_table(xlsx(f'<x xmlns:{prefix}="x">{sheet}</x>'))


@pytest.mark.parametrize(
    "row",
    [
        'x:number-rows-repeated="1" table:number-rows-repeated="999999999"',
        'table:number-rows-repeated="+999999999"',
    ],
)
def test_no_repetition_is_hidden(row: str) -> None:
    cells = ods_text("x", 16_384)
    with pytest.raises(DatasetError, match=r"cells; delete|unclear number"):
        read_table(ods(f"<table:table-row {row}>{cells}</table:table-row>"))


@pytest.mark.parametrize("tag", ["<si>", "<row ", "<c ", '<c r="A1" t="s">'])
def test_open_tags_without_end_do_not_take_long(tag: str) -> None:
    began = time.process_time()
    with pytest.raises(DatasetError, match="damaged"):
        read_table(xlsx(SURVEY, strings=tag * 40_000))
    assert time.process_time() - began < 5


def test_a_part_that_is_read_in_another_encoding_is_refused() -> None:
    hidden = f"<worksheet>{FAR.format(text('XFD1048576', 'x'))}</worksheet> "
    disguised = "<a>".encode("utf-16-be") + hidden.encode() + "</a>".encode("utf-16-be")
    for mark in (b"", b"\xfe\xff"):
        with pytest.raises(DatasetError):
            read_table(replaced(xlsx(SURVEY), "sheet1.xml", mark + disguised))


def test_a_sheet_of_one_kind_cannot_pass_for_the_other() -> None:
    hidden = f"<worksheet>{FAR.format(text('XFD1048576', 'x'))}</worksheet>"
    links = re.sub("worksheets/sheet1.xml", "/content.xml", links_of(1))
    book = replaced(xlsx(SURVEY), "workbook.xml.rels", links.encode())
    with pytest.raises(DatasetError, match="cannot be read"):
        read_table(with_entry(book, "content.xml", hidden.encode()))


def test_parts_that_no_sheet_needs_may_be_unsound() -> None:
    book = with_entry(xlsx(SURVEY), "xl/drawings/vmlDrawing1.vml", b"<xml><br></xml>")
    book = with_entry(book, "customXml/item1.xml", "<a/>".encode("utf-16-le"))
    assert len(read_table(book).rows) == 2


def _repeated_text(monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setattr(reading, "MAX_TEXT", 1_000_000)
    cells = "".join(f'<row r="{n}"><c r="A{n}" t="s"><v>0</v></c></row>' for n in range(1, 12))
    return xlsx(f"<sheetData>{cells}</sheetData>", strings=f"<si><t>{LONG}</t></si>")


def test_a_text_that_many_cells_refer_to_counts_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DatasetError, match="more than 1000000 bytes of text"):
        read_table(_repeated_text(monkeypatch))


@pytest.mark.parametrize(
    "rows",
    [
        ods_row(ods_text(LONG, 2), repeated=6),
        ods_row(ods_text('x<text:s text:c="2000000"/>')),
    ],
)
def test_a_repeated_text_counts_for_each(monkeypatch: pytest.MonkeyPatch, rows: str) -> None:
    monkeypatch.setattr(reading, "MAX_TEXT", 1_000_000)
    with pytest.raises(DatasetError, match="more than 1000000 bytes of text"):
        read_table(ods(rows))


def test_a_bomb_is_refused_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_UNZIPPED", 10_000_000)
    book = archive({f"xl/{number}.xml": b"<" + b"0" * 2_000_000 for number in range(6)})
    assert len(book) < 50_000
    with pytest.raises(DatasetError, match="unpacks to more than"):
        read_table(book)


@pytest.mark.parametrize(
    ("packing", "said"),
    [
        (zipfile.ZIP_DEFLATED, "damaged"),
        (zipfile.ZIP_BZIP2, "packed in a way"),
        (zipfile.ZIP_LZMA, "packed in a way"),
    ],
)
def test_a_bomb_that_lies_about_its_size_is_refused_in_little_memory(
    packing: int, said: str
) -> None:
    book = lying(archive({"xl/workbook.xml": b"<" + b"0" * 50_000_000}, packing), 10)
    with peak() as memory, pytest.raises(DatasetError, match=said):
        read_table(book)
    assert memory.most < 3_000_000


def test_a_long_directory_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    book = archive({f"{number}": "" for number in range(20_000)})
    monkeypatch.setattr(reading, "MAX_ENTRIES", 100)
    with peak() as memory, pytest.raises(DatasetError, match="or 100 files"):
        read_table(book)
    assert memory.most < 1_000_000


@dataclass
class Peak:
    most: int = 0
    """Bytes."""


@contextmanager
def peak() -> Iterator[Peak]:
    """The most memory that Python and zlib take within."""
    memory = Peak()
    tracemalloc.start()
    try:
        yield memory
    finally:
        memory.most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


def test_an_archive_with_a_wrong_directory_is_damaged() -> None:
    book = bytearray(xlsx(SURVEY))
    book[-6:-2] = struct.pack("<I", 0x7FFF_FFFF)
    with pytest.raises(DatasetError, match="damaged"):
        read_table(bytes(book))


def test_what_was_not_measured_is_never_read() -> None:
    hidden = FAR.format(text("XFD1048576", "x"))
    content = b"\x89PNG<worksheet>" + hidden.encode() + b"</worksheet>"
    with pytest.raises(DatasetError, match="cannot be read"):
        read_table(replaced(xlsx(SURVEY), "sheet1.xml", content))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"PK\x03\x04 and so on", "damaged"),
        (b"\xd0\xcf\x11\xe0 and so on", "old or a protected workbook"),
        (archive({"word/document.xml": "<a/>"}), "no XLSX or ODS workbook"),
        (archive({f"{n}": "<a/>" for n in range(reading.MAX_ENTRIES + 1)}), "unpacks to more"),
        (archive({"xl/workbook.xml": "<workbook"}), "damaged"),
        (xlsx("<sheetData><row><c><v>1</v></c></row></sheetData>"), "cells without a place"),
        (xlsx('<sheetData><row r="1"><c r="A1" t="s"><v>9</v></c></row></sheetData>'), "damaged"),
        (ods("<unclosed>"), "damaged"),
        (xlsx(SHARED.format("<v> 0</v>")), "damaged"),
        (xlsx(SHARED.format("<v>0<!-- -->1</v>")), "damaged"),
        (xlsx(SHARED.format("<c/>")), "damaged"),
        (xlsx("", strings="<si><si></si></si>"), "damaged"),
        (xlsx("<si/>", strings="<si/>"), "damaged"),
        (xlsx(SURVEY, start="<!DOCTYPE worksheet>"), "document type"),
        (xlsx(SURVEY, start='<!DOCTYPE a [<!ENTITY b "c">]>'), "entities"),
        (archive({"content.xml": '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'}), "entities"),
    ],
)
def test_what_cannot_be_read_is_said(data: bytes, said: str) -> None:
    with pytest.raises(DatasetError, match=said):
        read_table(data)


def test_a_sign_that_no_store_keeps_is_refused() -> None:
    with pytest.raises(DatasetError, match="row 3: a NUL sign"):
        read_table(xlsx(table([["text"], ["a"], ["b_x0000_"]])))


def test_bounds_of_tables_hold_for_workbooks() -> None:
    book = xlsx(table([["text"], ["a"], ["b"], ["c"]]))
    with pytest.raises(DatasetError, match="row 4: more than 2 rows"):
        read_table(book, max_rows=2)
    with pytest.raises(DatasetError, match="row 2: a cell of 100001 characters"):
        read_table(xlsx(table([["text"], ["x" * 100_001]])))
    with pytest.raises(DatasetError, match="more than 100 bytes"):
        read_table(book, max_bytes=100)
