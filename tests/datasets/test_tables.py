import codecs
import csv
import io
import random
from pathlib import Path

import pytest

from app.datasets import read_answers, read_table
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


PERSONAL_NAMES = [
    "Email",
    "E-mail",
    "e_mail address",
    "Name",
    "First Name",
    "Surname",
    "IP Address",
    "Latitude",
    "Postcode",
    "Date of birth",
    "What is your name?",
    "Email Address [Open-Ended Response]",
    "External Data Reference",
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


def test_columns_have_different_names() -> None:
    assert read_table(b"a,a,,a (2)\n1,2,3,4\n").columns == ["a", "a (2)", "column_3", "a (2) (2)"]


def test_padding_is_forgiven() -> None:
    assert read_table(b"a,b\n1,2,,\n3,4\n5,6\n").rows[0] == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "line 1: the file is empty"),
        (b" \n\n", "line 1: the file is empty"),
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
