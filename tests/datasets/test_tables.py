import codecs
import csv
import hashlib
import io
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.datasets import delimited, read_answers, read_table, tables
from app.domain.errors import DatasetError

QUALTRICS = (
    "StartDate,IPAddress,ResponseId,RecipientEmail,QID1_TEXT\n"
    'Start Date,IP Address,Response ID,Recipient Email,"What, if anything,\ncould be better?"\n'
    '"{""ImportId"":""startDate""}","{""ImportId"":""ip""}","{""ImportId"":""_recordId""}",'
    '"{""ImportId"":""mail""}","{""ImportId"":""QID1_TEXT""}"\n'
    "2026-01-01,127.0.0.1,R_1,a@example.org,More parking\n"
    '2026-01-02,127.0.0.1,R_2,b@example.org,"Shorter\nqueues"\n'
)
SURVEYMONKEY = (
    "Respondent ID,Collector ID,First Name,Why did you come?,Which of these?,\n"
    ",,,Open-Ended Response,Food,Parking\n"
    "1,7,Ann,By chance I must say,Yes,\n"
    "2,7,Bob,My friend told me,,Yes\n"
)


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        ("text\nCaf\u00e9\n".encode(), "utf-8"),
        (codecs.BOM_UTF8 + "text\nCaf\u00e9\n".encode(), "utf-8"),
        (codecs.BOM_UTF16_LE + "text\nCaf\u00e9\n".encode("utf-16-le"), "utf-16-le"),
        (codecs.BOM_UTF16_BE + "text\nCaf\u00e9\n".encode("utf-16-be"), "utf-16-be"),
        ("text\nCaf\u00e9\n".encode("cp1252"), "cp1252"),
    ],
)
def test_the_encoding_is_found_and_told(data: bytes, encoding: str) -> None:
    table = read_table(data)
    assert table.columns == ["text"]
    assert table.rows == [{"text": "Caf\u00e9"}]
    assert table.detected.encoding == encoding


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found_and_told(delimiter: str) -> None:
    rows = [["id", "text"], ["1", "a, b; c | d\te"], ["2", "two\nlines"], ["3", 'say "hi"']]
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, lineterminator="\r\n").writerows(rows)
    table = read_table(file.getvalue().encode())
    assert table.detected.delimiter == delimiter
    assert [list(row.values()) for row in table.rows] == rows[1:]


def test_two_lines_with_a_cell_over_several_lines_do_not_confuse_it() -> None:
    table = read_table(b'id;text\n1;"several\nlines and\nmore, with commas, in it"\n')
    assert table.detected.delimiter == ";"
    assert table.rows == [{"id": "1", "text": "several\nlines and\nmore, with commas, in it"}]


def test_a_file_of_one_column_is_no_table() -> None:
    table = read_table(b"What do you like\nfood, mostly\nnothing\nstaff, food, parking\nit all\n")
    assert table.detected.delimiter is None
    assert table.rows[0] == {"What do you like": "food, mostly"}
    assert len(table.rows) == 4


def test_a_file_without_header_can_be_read() -> None:
    assert read_table(b"good\nbad\n", header_rows=0).rows == [{"text": "good"}, {"text": "bad"}]
    assert read_table(b"1,good\n2,bad\n", header_rows=0).columns == ["column_1", "column_2"]


def test_qualtrics_writes_three_header_rows_and_personal_columns() -> None:
    answers = read_answers(QUALTRICS.encode())
    detected = answers.table.detected
    assert (detected.source, detected.header_rows) == ("qualtrics", 3)
    assert detected.dropped_columns == ("IPAddress", "RecipientEmail")
    assert (answers.text_column, answers.id_column) == ("QID1_TEXT", "ResponseId")
    assert answers.question == "What, if anything, could be better?"
    assert [row["QID1_TEXT"] for row in answers.table.rows] == ["More parking", "Shorter\nqueues"]
    assert "example.org" not in str(answers.table)


def test_surveymonkey_writes_two() -> None:
    answers = read_answers(SURVEYMONKEY.encode())
    detected = answers.table.detected
    assert (detected.source, detected.header_rows) == ("surveymonkey", 2)
    assert answers.table.columns == [
        "Respondent ID",
        "Collector ID",
        "Why did you come?",
        "Which of these? [Food]",
        "Which of these? [Parking]",
    ]
    assert (answers.text_column, answers.id_column) == ("Why did you come?", "Respondent ID")
    assert answers.question == "Why did you come?"
    assert detected.dropped_columns == ("First Name",)


def test_old_qualtrics_exports_have_names_over_names() -> None:
    data = (
        "V1,V2,V5,Q1\n"
        "ResponseID,Name,EmailAddress,What could be better?\n"
        "R_1,Ann Smith,a@example.org,More parking\n"
    )
    answers = read_answers(data.encode(), text_column="Q1")
    detected = answers.table.detected
    assert (detected.source, detected.header_rows) == ("qualtrics", 2)
    assert detected.dropped_columns == ("V2", "V5")
    assert answers.question == "What could be better?"


def test_qualtrics_workbooks_have_names_over_names_too() -> None:
    data = (
        "StartDate,IPAddress,ResponseId,Q1\n"
        "Start Date,IP Address,Response ID,Any comments on our service\n"
        "2026-01-02,127.0.0.1,R_1,More parking\n"
    )
    answers = read_answers(data.encode(), text_column="Q1")
    assert (answers.table.detected.header_rows, answers.id_column) == (2, "ResponseId")
    assert answers.question == "Any comments on our service"


def test_google_forms_have_questions_as_names() -> None:
    data = (
        "Timestamp,Username,What could we do better?\n"
        "1/2/2026 10:00:00,a@example.org,More parking please\n"
    )
    answers = read_answers(data.encode())
    assert answers.table.detected.source == "google-forms"
    assert answers.table.detected.dropped_columns == ("Username",)
    assert answers.question == "What could we do better?"


def test_consultations_have_names_over_questions() -> None:
    data = (
        "id,Q1,Q2\n"
        ",Do you agree with the proposal?,Why do you say so?\n"
        "1,Yes,It will help us all\n"
        "2,No,It costs too much\n"
    )
    answers = read_answers(data.encode())
    assert answers.table.detected.header_rows == 2
    assert (answers.text_column, answers.question) == ("Q2", "Why do you say so?")
    assert len(answers.table.rows) == 2


def test_answers_that_are_questions_are_no_header() -> None:
    data = "id,text\n1,Why is it so far?\n2,Where can one park?\n3,All fine\n"
    assert read_table(data.encode()).detected.header_rows == 1


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"comment,group\nWhen will it open again?,\nGood service,A\n", 2),
        (b"comment,age,sex\nWhy was I kept waiting so long?,,\nKind staff,34,F\n", 2),
        (b"id,comment\n,When will the new car park open?\n2,Good\n3,Too slow\n", 3),
        (b"good,bad,other\nWhat went well?,What did not?,What else?\nstaff,food,all\n", 1),
        (b"id,QID3_TEXT\n,What went well?\n1,staff\n2,all of it\n", 2),
    ],
)
def test_a_first_answer_that_is_a_question_is_no_header(data: bytes, rows: int) -> None:
    assert len(read_table(data).rows) == rows


def test_the_number_of_header_rows_can_be_given() -> None:
    data = b"likes,dislikes\nWhat is there to like?,Where shall I start?\nstaff,price\n"
    assert len(read_table(data).rows) == 1
    assert len(read_table(data, header_rows=1).rows) == 2


@pytest.mark.parametrize("delimiter", [";", ",", "\t", "^"])
def test_a_line_for_excel_names_the_delimiter(delimiter: str) -> None:
    data = f"sep={delimiter}\r\nid{delimiter}text\r\n1{delimiter}a, b | c\r\n"
    if delimiter != ",":
        table = read_table(data.encode())
        assert table.rows == [{"id": "1", "text": "a, b | c"}]
        assert table.detected.delimiter == delimiter
    with pytest.raises(DatasetError, match="line 4"):
        read_table(f"{data}2\r\n3{delimiter}x\r\n4{delimiter}x\r\n".replace("a, b", "a").encode())


def test_an_encoding_can_be_given() -> None:
    data = "text\nza\u017c\u00f3\u0142\u0107\n".encode("cp1250")
    table = read_table(data, encoding="windows-1250")
    assert table.rows == [{"text": "za\u017c\u00f3\u0142\u0107"}]
    assert table.detected.encoding == "cp1250"
    assert read_table(codecs.BOM_UTF8 + b"a\nb\n", encoding="UTF8").columns == ["a"]
    for unknown in ("no-such", "base64", "idna\x00", "undefined"):
        with pytest.raises(DatasetError, match="no encoding"):
            read_table(data, encoding=unknown)
    with pytest.raises(DatasetError, match="line 2: byte 7 is not valid utf-8"):
        read_table(data, encoding="utf-8")


PERSONAL_NAMES = [
    "Email",
    "E-mail",
    "e_mail address",
    "Name",
    "First Name",
    "Surname",
    "IP Address",
    "IP",
    "User IP",
    "userIp",
    "client_ip_addr",
    "IPv4 address",
    "Latitude",
    "Latitude (deg)",
    "LocationLongitude",
    "GPS coordinates",
    "lat",
    "Postcode",
    "Date of birth",
    "What is your name?",
    "Email Address [Open-Ended Response]",
    "External Data Reference",
    "Please give your contact details [Name]",
    "Please give your contact details [Email Address]",
    "Please give your contact details [Phone Number]",
    "Please give your contact details [Address]",
    "Contact details - Email",
    "Contact details: Full name",
    "Name (optional)",
    "Email (optional)",
    "Optional: your name",
    "Phone (if applicable)",
    "Your name*",
    "Address",
    "Your address",
    "ZIP/Postal Code",
    "Cell phone",
    "tel",
    "Contact email address",
    "E-Mail-Adresse",
    "Vorname",
    "Nachname",
    "Telefon",
]
HARMLESS_NAMES = [
    "Service name",
    "Hospital",
    "Location",
    "Region",
    "City",
    "Age",
    "Gender",
    "Emailed us before?",
    "Named nurse",
    "Contact",
    "Comments on our phone service",
    "UserLanguage",
    "Optional",
    "Name of the service",
    "Our web address",
    "Which of these? [Website]",
    "What could be better? - Phone service",
    "Hotel",
    "Shipping",
    "Trip",
    "VoIP",
    "What do you think of our IP policy?",
    "Latitude that staff give you at work",
]


@pytest.mark.parametrize("name", PERSONAL_NAMES)
def test_columns_that_identify_people_are_dropped_and_listed(name: str) -> None:
    table = read_table(f'id,"{name}",text\n1,x,y\n'.encode())
    assert table.columns == ["id", "text"]
    assert table.detected.dropped_columns == (name,)


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_columns_that_identify_nobody_are_kept(name: str) -> None:
    table = read_table(f'id,"{name}",text\n1,x,y\n'.encode())
    assert table.columns == ["id", name, "text"]
    assert table.detected.dropped_columns == ()


@pytest.mark.parametrize(
    "cells",
    [
        ("a.b@example.org", "c@d.example.com", "none"),
        ("07700 900123", "+44 (0)20 7946 0018", ""),
        ("(555) 123-4567", "555-123-4567", "1 555 123 4567"),
        ("030/1234567", "0049 30 1234567", "no"),
        ("192.168.0.1", "2001:db8::ff00:42:8329", "unknown"),
        ("10.0.0.1:51324", "203.0.113.7, 10.0.0.1", ""),
        ("51.50123,-0.14123", "(48.85661; 2.35222)", ""),
    ],
)
def test_columns_of_addresses_and_numbers_are_dropped_and_listed(cells: tuple[str, ...]) -> None:
    rows = "".join(f'{number},"{cell}",fine\n' for number, cell in enumerate(cells))
    assert read_table(f"id,how,text\n{rows}".encode()).detected.dropped_columns == ("how",)


@pytest.mark.parametrize(
    "cells",
    [
        ("114523456789", "114523456790", "114523456791"),
        ("2026-01-02", "2026-01-02 10:30:00", "01.02.2026"),
        ("20260102103000", "1767348600", "1767348600.25"),
        ("000000123", "000000124", "000000125"),
        ("a@b.example", "write to me: c@d.example", "call 07700 900123"),
        ("51.5012345", "-0.1412345", "1,234,567.89"),
        ("10-15", "100-200-3000", "0.123456789"),
        ("1.2.3", "1.2", "3.4.5.6.7"),
        ("4,5", "3.5, 4.5", "1.234,5"),
        ("", "", ""),
    ],
)
def test_columns_of_other_numbers_are_kept(cells: tuple[str, ...]) -> None:
    rows = "".join(f'{number},"{cell}",fine\n' for number, cell in enumerate(cells))
    assert read_table(f"id,how,text\n{rows}".encode()).detected.dropped_columns == ()


@pytest.mark.parametrize("ticks", [("Email", ""), ("1", "0"), ("Yes", "No")])
def test_options_to_tick_are_kept(ticks: tuple[str, str]) -> None:
    rows = "".join(f"{number},{tick},fine\n" for number, tick in enumerate(ticks))
    data = f"id,How may we reach you? [Email],text\n{rows}"
    assert read_table(data.encode()).detected.dropped_columns == ()


def test_contact_details_below_a_question_are_dropped() -> None:
    data = (
        "ResponseId,Q1,Q2_1,Q2_2\n"
        "Response ID,Why?,Contact details - Name,Contact details - Email\n"
        "R_1,because,Ann,a@b.example\n"
    )
    assert read_table(data.encode()).detected.dropped_columns == ("Q2_1", "Q2_2")


def test_personal_columns_can_be_kept() -> None:
    assert "Email" in read_table(b"id,Email\n1,a\n", drop_personal=False).columns


def test_a_personal_column_cannot_be_the_answers() -> None:
    with pytest.raises(DatasetError, match="identifies people and is left out"):
        read_answers(b"id,Name\n1,a\n", text_column="Name")


def test_json_lines_are_texts_or_objects() -> None:
    table = read_table(b'{"id": 1, "text": "a"}\n\n{"text": null, "ok": true}\n"b"\n')
    assert table.detected.format == "jsonl"
    assert table.columns == ["id", "text", "ok"]
    assert table.rows == [
        {"id": "1", "text": "a", "ok": ""},
        {"id": "", "text": "", "ok": "true"},
        {"id": "", "text": "b", "ok": ""},
    ]


def test_json_lines_may_hold_line_separators() -> None:
    assert read_table('{"text": "a\u2028b"}\n'.encode()).rows == [{"text": "a\u2028b"}]


ITEMS = '{"id": 1, "text": "a [b"},\n {"id": 2, "text": "c"}'


@pytest.mark.parametrize("data", [f"[{ITEMS}]", f"\n[\n{ITEMS}\n]\n", f"\ufeff[ {ITEMS} ]"])
def test_a_json_list_is_read_as_its_items(data: str) -> None:
    table = read_table(data.encode())
    assert (table.detected.format, table.detected.encoding) == ("json", "utf-8")
    assert table.rows == [{"id": "1", "text": "a [b"}, {"id": "2", "text": "c"}]
    assert read_table(b'["a", {"text": "b"}]').rows == [{"text": "a"}, {"text": "b"}]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("[1, 2]", "item 1: give an object or a text as each item"),
        ("[[1, 2], [3, 4]]", "item 1: give an object"),
        ('["a", 7]', "item 2: give an object"),
        ('[{"a": 1}, {"a": [1]}]', "item 2: 'a' holds a list"),
        ('[{"a": 1}, {"a": ', "item 2: no valid JSON list"),
        ('[{"a": 1} {"a": 2}]', "item 2: no valid JSON list"),
        ('[{"a": 1}] and more', "item 2: no valid JSON list"),
        ('["a"', "item 2: no valid JSON list"),
        ('[{"a": "b"}, {"a": "c"}, {"a": "d"}]', "item 3: more than 2 rows"),
        ('[{"a": ' + "[" * 100_000, "item 1: no valid JSON list"),
    ],
)
def test_a_json_list_that_cannot_be_read_is_refused(data: str, said: str) -> None:
    with pytest.raises(DatasetError, match=said):
        read_table(data.encode(), max_rows=2)


def test_a_csv_may_begin_with_a_bracket() -> None:
    assert read_table(b"[id],text\n1,a\n").columns == ["[id]", "text"]
    assert read_table(b"[1],text\n1,a\n").columns == ["[1]", "text"]
    assert read_table(b"[" * 100_000 + b"\na\n").rows


def test_rows_times_columns_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tables, delimited):
        monkeypatch.setattr(module, "MAX_CELLS", 1_000)
    lines = [f'{{"a{number}": 1}}' for number in range(60)]
    for text in (
        "\n".join(lines),
        f"[{','.join(lines)}]",
        "a,b\n" + "1,2\n" * 600,
        "a,b\n" + "1,2\n" * 200 + "1,2,,,,,,,\n" * 100,
        "a\n" * 1_002,
    ):
        with pytest.raises(DatasetError, match="more than 1000 cells"):
            read_table(text.encode())
    assert len(read_table(("a,b\n" + "1,2\n" * 499).encode()).rows) == 499


def test_a_thousand_keys_do_not_fill_the_memory() -> None:
    data = b"".join(b'{"a%d":1}\n' % (number % 1_000) for number in range(100_000))
    with pytest.raises(DatasetError, match="line 5001: rows times columns"):
        read_table(data)


def test_the_content_is_read_once(tmp_path: Path) -> None:
    fifo = tmp_path / "answers.jsonl"
    os.mkfifo(fifo)
    with ThreadPoolExecutor(1) as writer:
        writer.submit(fifo.write_bytes, b'"a"\n')
        table = read_table(fifo)
    assert table.rows == [{"text": "a"}]
    assert table.sha256 == hashlib.sha256(b'"a"\n').hexdigest()


def test_columns_have_different_names() -> None:
    assert read_table(b"a,a,,a (2)\n1,2,3,4\n").columns == ["a", "a (2)", "column_3", "a (2) (2)"]


def test_padding_is_forgiven() -> None:
    assert read_table(b"a,b\n1,2,,\n3,4\n5,6\n").rows[0] == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "line 1: the file is empty"),
        (b" \n\n", "line 1: the file is empty"),
        (b'""', "line 1: the file is empty"),
        (b'"\n\n"', "line 1: the file is empty"),
        (b"sep=;\n", "line 1: the file is empty"),
        (
            "a\ncaf\u00e9 \u00fcn\u00ef\n".encode() + b"bad \xe9 byte\n",
            "line 3: byte 18 is not valid",
        ),
        (b"a,b\n1,\x00\n", "line 2: a zero byte"),
        (codecs.BOM_UTF8 + b"a\nb\n\xff", "line 3: byte 4 is not valid utf-8"),
        (b"a\n\x81", "line 2: byte 2 is not valid cp1252"),
        (b"a,b\n1,2\n3\n4,5\n", "line 3: 1 cells under 2 columns"),
        (b"a,b\n1,2\n3,4,5\n4,5\n", "line 3: 3 cells under 2 columns"),
        (b'a,b\n1,"x\ny"\n3,"open\n4,5\n', "line 4"),
        (b'{"a": 1}\n{"a": \n', "line 2: no valid JSON"),
        (b'{"a": 1}\n7\n', "line 2: give an object or a text"),
        (b'{"a": [1]}\n', "line 1: 'a' holds a list"),
        (b'{"a": "b\\u0000c"}\n', "line 1: a NUL sign"),
        (b'{"a": 1}\n{"a": "\\ud800"}\n', "line 2: a NUL sign or half a surrogate pair"),
        (b'{"\\udfff": 1}\n', "line 1: a NUL sign"),
        (b'{"a": ' + b"[" * 100_000, "line 1: no valid JSON"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_line(data: bytes, said: str) -> None:
    with pytest.raises(DatasetError, match=said):
        read_table(data)


@pytest.mark.parametrize("data", [b"a\nb\n", b'""', b'[{"a": "b"}]'])
def test_fewer_than_no_header_rows_are_refused(data: bytes) -> None:
    with pytest.raises(DatasetError, match="-1 header rows"):
        read_table(data, header_rows=-1)


def test_the_encoding_of_a_file_with_a_stray_byte_can_be_given() -> None:
    data = "text\ncaf\u00e9 \u00fc\n".encode() + b"\xe9\n"
    assert read_table(data, encoding="cp1252").rows[-1] == {"text": "\u00e9"}


def test_a_line_is_counted_through_cells_of_several_lines() -> None:
    with pytest.raises(DatasetError, match="line 5"):
        read_table(b'a,b\n1,"x\ny\nz"\n3\n4,5\n6,7\n')


def test_bounds_are_kept(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="more than 10 bytes"):
        read_table(b"text\nabcdefgh", max_bytes=10)
    with pytest.raises(DatasetError, match="line 4: more than 2 rows"):
        read_table(b"text\na\nb\nc\n", max_rows=2)
    with pytest.raises(DatasetError, match="line 3: more than 2 rows"):
        read_table(b'{"a": 1}\n{"a": 1}\n{"a": 1}\n', max_rows=2)
    with pytest.raises(DatasetError, match="line 2: a cell of 100001 characters"):
        read_table(b"text\n" + b"a" * 100_001)
    with pytest.raises(DatasetError, match="1001 columns"):
        read_table(b",".join([b"a"] * 1001) + b"\n" + b",".join([b"1"] * 1001))
    file = tmp_path / "big.csv"
    file.write_bytes(b"text\nabcdefgh")
    with pytest.raises(DatasetError, match="more than 10 bytes"):
        read_table(file, max_bytes=10)


def test_an_absent_file_is_a_dataset_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="cannot be read"):
        read_table(tmp_path / "absent.csv")


def test_the_longest_texts_are_the_answers() -> None:
    data = b"when,who,said\n2026-01-01,Ann,I came here by train\n2026-01-02,Bob,It was too late\n"
    answers = read_answers(data)
    assert (answers.text_column, answers.id_column, answers.question) == ("said", None, None)


def test_a_named_column_must_be_there() -> None:
    with pytest.raises(DatasetError, match="no column 'said'; found: id, text"):
        read_answers(b"id,text\n1,a\n", text_column="said")
    with pytest.raises(DatasetError, match="repeats an id"):
        read_answers(b"id,text\n1,a\n1,b\n", id_column="id")
    with pytest.raises(DatasetError, match="no column looks like free text"):
        read_answers(b"a,b\n1,2\n")
    with pytest.raises(DatasetError, match="no row below"):
        read_answers(b"id,text\n")


def test_the_bundled_survey_is_read() -> None:
    path = Path(__file__).resolve().parents[2] / "examples" / "nhs-fft" / "nhs-fft.csv"
    answers = read_answers(path)
    assert len(answers.table.rows) == 4282
    assert (answers.text_column, answers.id_column) == ("text", "id")


def test_any_table_written_as_csv_is_read_back() -> None:
    draw = random.Random(5)  # noqa: S311 - a repeatable variety of cells
    signs = ["a", "b c", ",", ";", '"', "\n", "\t", "\u00e9", "|", "'", "=1+1", " "]
    for _ in range(60):
        width, height = draw.randint(2, 5), draw.randint(2, 8)
        rows = [
            ["x" + "".join(draw.choices(signs, k=draw.randint(0, 6))) for _ in range(width)]
            for _ in range(height)
        ]
        file = io.StringIO()
        csv.writer(file, delimiter=";", quoting=csv.QUOTE_ALL).writerows(
            [[f"c{at}" for at in range(width)], *rows]
        )
        table = read_table(file.getvalue().encode())
        assert [list(row.values()) for row in table.rows] == rows
