"""Exports hold what the result holds, and nothing in them comes to life."""

import csv
import io
import json
import re
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import python_calamine
from jinja2 import UndefinedError
from pydantic import ValidationError
from support.analysis import HOSTILE, NAME, analysis

from app.domain.errors import ExportError
from app.results.exports import workbook
from app.results.exports.delimited import is_formula_like
from app.results.exports.forms import PARTS
from app.results.exports.page import _template
from app.results.exports.writing import write_export
from app.results.themes import ThemesResult

# -- formulas ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "=1+1",
        "+1",
        "-1",
        "- too slow",
        "@SUM(A1)",
        "\tx",
        "\rx",
        "\nx",
        "  =1",
        "\u00a0=1",
        "\ufeff=1",
        "\u200b=1",
        "'=1",
        '"=1',
        " \" ' =1",
        "“=1",
        "\x00=1",
        "\uff1d1+1",
        "\uff0b1",
    ],
)
def test_formulas_are_known_for_what_they_are(text: str) -> None:
    assert is_formula_like(text)
    row = next(csv.reader(io.StringIO(csv_of([{"a": text}]).split("\r\n", 1)[1], newline="")))
    assert row == ["'" + text]


@pytest.mark.parametrize("text", ["", "x", "a=b", "1-2", "café", "no -1", "(=1)", "5", "#1"])
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert not is_formula_like(text)


@pytest.mark.parametrize(
    "text",
    [
        "foo;=cmd|' /C calc'!A0;bar",
        "nice\n=1+1;",
        "a;;\t \n@x",
        'a;"=1',
        "a;'=1\r-1",
        "a\t\ufeff+1",
        '"\n"";=1',
        "a; \uff1d1",
        'x"";""=1;=1',
    ],
)
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_no_formula_begins_a_cell_however_the_file_is_divided(text: str, delimiter: str) -> None:
    written = csv_of([{"id": 1, "text": text, "more": f"b,{text}"}])
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE):
        file = io.StringIO(written, newline="")
        for row in csv.reader(file, delimiter=delimiter, quoting=quoting):
            for cell in row:
                bare = cell.strip(' "\ufeff\t\r\n')
                assert not bare.startswith(("=", "+", "-", "@", "\uff1d")), row


@pytest.mark.parametrize("piece", ["\t", ";", "\n ", "; '", ";\u200b"])
def test_long_texts_take_no_time(piece: str) -> None:
    began = time.perf_counter()
    csv_of([{"a": piece * (200_000 // len(piece)) + "x"}])
    assert time.perf_counter() - began < 1.0


def csv_of(result: Any, part: str | None = None) -> str:
    file = io.BytesIO()
    write_export(result, "csv", part, file, name="job 1")
    assert not file.closed
    return file.getvalue().decode("utf-8-sig")


# -- tables -----------------------------------------------------------------------------------


def rows_of(result: Any, part: str | None = None) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(csv_of(result, part), newline="")))


def test_the_analysis_of_these_tests_is_sound() -> None:
    ThemesResult.model_validate(analysis())


def test_every_answer_is_a_row_with_its_themes() -> None:
    result = analysis()
    rows = rows_of(result)

    assert rows == rows_of(result, "responses")
    assert len(rows) == len(result["assignments"])
    assert rows[0] == {
        "response_id": "1",
        "status": "assigned",
        "theme_ids": "T01; T02",
        "themes": f"{NAME}; '-5% food",
        "subtheme_id": "T01.1",
        "subtheme": "Long waits",
        "score": "0.5",
        "method": "cluster",
        "stance": "T01: negative; T02: mixed",
        "reason": "",
    }
    assert rows[-1]["status"] == "non_answer"


def test_themes_are_rows_with_their_counts() -> None:
    rows = rows_of(analysis(), "themes")

    assert [(row["id"], row["parent"], row["responses"]) for row in rows] == [
        ("T01", "", "4"),
        ("T01.1", "T01", "4"),
        ("T02", "", "2"),
    ]
    assert rows[0]["keywords"] == "wait, <long>"
    assert rows[0]["negative"] == "1"
    assert rows[1]["negative"] == ""
    assert rows[0]["ward: A&E"] == "4"


def test_a_workbook_has_a_sheet_for_each_table() -> None:
    result = analysis()
    result["assignments"][5]["response_id"] = "_x000D_ \x01 \r\n end"
    file = io.BytesIO()
    write_export(result, "xlsx", None, file, name="job 1")

    book = python_calamine.load_workbook(io.BytesIO(file.getvalue()))
    assert book.sheet_names == ["themes", "quotes", "responses", "insights"]
    themes = book.get_sheet_by_name("themes").to_python()
    assert themes[1][:3] == ["T01", "", NAME]
    assert themes[3][2] == "-5% food"
    assert themes[1][7] == pytest.approx(0.5714)
    quotes = book.get_sheet_by_name("quotes").to_python()
    assert quotes[3] == ["T01", NAME, "3", HOSTILE]
    responses = book.get_sheet_by_name("responses").to_python()
    assert [row[0] for row in responses[1:]] == [
        *"1234",
        "=1+1",
        "_x000D_ \ufffd \n end",
        "y",
        "z",
    ]
    assert [len(row) for row in responses] == [10] * 9


def test_nothing_in_a_workbook_is_a_formula_or_a_link() -> None:
    file = io.BytesIO()
    write_export(analysis(), "xlsx", None, file, name="job 1")

    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        parts = {name: archive.read(name) for name in archive.namelist()}
    for name, content in parts.items():
        root = ET.fromstring(content)  # noqa: S314  our own
        kinds = {element.tag.rpartition("}")[2] for element in root.iter()}
        assert not kinds & {"f", "hyperlink", "hyperlinks", "oleObject", "externalReference"}
        if "worksheets" in name:
            cells = [element for element in root.iter() if element.tag.endswith("}c")]
            assert {cell.get("t") for cell in cells} <= {"inlineStr", None}
    types = parts["[Content_Types].xml"].decode()
    for name in parts:
        if name.startswith("xl/") and not name.endswith(".rels"):
            assert f'PartName="/{name}"' in types


def test_a_long_text_is_cut_to_what_a_cell_holds() -> None:
    file = io.BytesIO()
    write_export([{"a": "x" * 40_000, "n": 10**20}], "xlsx", None, file, name="job 1")

    rows = python_calamine.load_workbook(io.BytesIO(file.getvalue())).get_sheet_by_index(0)
    assert rows.to_python()[1] == ["x" * 32_767, str(10**20)]


INJECTED = '<r><t/></r></is></c><c r="B2"><f>1+1</f><v>2</v></c><c><is><r><t>{}</t></r>'


@pytest.mark.parametrize("text", [INJECTED.format(""), INJECTED.format("x" * 32_670) + "</r>"])
def test_xml_in_a_text_is_no_xml_of_the_sheet(text: str) -> None:
    file = io.BytesIO()
    write_export([{text: 1, "a": text}], "xlsx", None, file, name="job 1")

    sheet = python_calamine.load_workbook(io.BytesIO(file.getvalue())).get_sheet_by_index(0)
    cut = f" {text}"[:32_767]
    assert sheet.to_python() == [[cut, "a"], [1.0, cut]]
    with zipfile.ZipFile(file) as archive:
        assert b"<f>" not in archive.read("xl/worksheets/sheet1.xml")


def test_cells_keep_what_they_are() -> None:
    cells = {"yes": True, "no": False, "none": None, "nan": float("nan"), "empty": "", "n": -0.25}
    file = io.BytesIO()
    write_export(
        [cells, {"url": "http://a.example", "n": "007", "lone": "\ud800"}],
        "xlsx",
        None,
        file,
        name="job 1",
    )

    sheet = python_calamine.load_workbook(io.BytesIO(file.getvalue())).get_sheet_by_index(0)
    assert sheet.to_python()[1:] == [
        [True, False, "", "nan", "", -0.25, "", ""],
        ["", "", "", "", "", "007", "http://a.example", "\ufffd"],
    ]


def test_a_workbook_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(workbook, "MAX_ROWS", 3)
    for count in (2, 3):
        with ExitStack() as stack:
            if count == 3:
                stack.enter_context(pytest.raises(ExportError, match="a sheet holds 3 rows"))
            rows = [{"a": number} for number in range(count)]
            write_export(rows, "xlsx", None, io.BytesIO(), name="job 1")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["csv", "xlsx", "html"])
def test_a_result_that_only_says_to_be_an_analysis_is_refused(form: str) -> None:
    with pytest.raises(ExportError, match="no sound themes/1: /"):
        write_export({"schema": "themes/1"}, form, None, io.BytesIO(), name="job 1")


@pytest.mark.parametrize("result", [None, 1, "x", {}, [1], [[1]], [{"a": {}}]])
def test_what_is_no_list_of_flat_objects_is_no_table(result: Any) -> None:
    for form in ("csv", "xlsx", "html"):
        with pytest.raises(ExportError):
            write_export(result, form, None, io.BytesIO(), name="job 1")


def test_every_part_can_be_had_of_an_empty_analysis() -> None:
    result = analysis(1)
    for part in ("themes", "assignments", "insights", "warnings"):
        result[part] = []
    for part in PARTS:
        assert rows_of(result, part) == []
    for form in ("xlsx", "html"):
        write_export(result, form, None, io.BytesIO(), name="job 1")


# -- the page ---------------------------------------------------------------------------------


def page_of(result: Any) -> str:
    file = io.BytesIO()
    write_export(result, "html", None, file, name='job <1> "x"')
    return file.getvalue().decode()


class Elements(HTMLParser):
    """The elements of a page, and whether each that was opened is closed in its turn."""

    VOID = ("meta", "rect")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def elements_of(page: str) -> Elements:
    elements = Elements()
    elements.feed(page)
    elements.close()
    assert elements.open == []
    return elements


def test_a_page_shows_the_analysis() -> None:
    page = elements_of(page_of(analysis()))

    tags = [tag for tag, _ in page.found]
    assert ("html", {"lang": "en"}) in page.found
    assert ("meta", {"charset": "utf-8"}) in page.found
    assert ("blockquote", {"lang": "de"}) in page.found
    assert tags.count("h1") == 1
    for text in (NAME, "Long waits", "-5% food", HOSTILE, "57.1%", "People <em>wait</em>.", "A&E"):
        assert text in page.text
    links = [attributes["href"] for tag, attributes in page.found if tag == "a"]
    targets = [f"#{a['id']}" for _, a in page.found if "id" in a]
    assert links == ["#T01", "#T02", "#other", "#failed"]
    assert set(links) <= set(targets)


def test_nothing_in_a_page_runs_or_is_fetched() -> None:
    page = page_of(analysis())
    elements = elements_of(page)

    for tag, attributes in elements.found:
        assert tag not in {"script", "link", "img", "iframe", "object", "form", "base", "b>"}
        for name, value in attributes.items():
            assert not name.startswith("on")
            assert name not in {"src", "style", "srcdoc", "action"}
            assert name != "href" or (value or "").startswith("#")
    assert "http" not in page.replace(HOSTILE.split('"')[1], "")
    style = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert len(style) == 1
    assert "url(" not in style[0]
    assert "@import" not in style[0]


SIGNS = "<i>&\"'{{x}}"


def signed(value: Any) -> Iterator[Any]:
    """The value with signs in one of its strings, for each that it holds; keys are strings too."""
    match value:
        case str():
            yield value + SIGNS
        case list():
            for at, item in enumerate(value):
                yield from ([*value[:at], other, *value[at + 1 :]] for other in signed(item))
        case dict():
            for key, item in value.items():
                yield {name + SIGNS if name == key else name: it for name, it in value.items()}
                yield from ({**value, key: other} for other in signed(item))
        case _:
            pass


def test_no_value_gets_into_a_page_unescaped() -> None:
    shown = 0
    known = {(tag, *attributes) for tag, attributes in elements_of(page_of(analysis())).found}
    for result in signed(analysis()):
        try:
            ThemesResult.model_validate(result)
        except ValidationError:
            continue
        page = elements_of(page_of(result))
        if SIGNS in page.text or any(SIGNS in (v or "") for _, a in page.found for v in a.values()):
            shown += 1
            assert {(tag, *attributes) for tag, attributes in page.found} <= known
    assert shown > 25


def test_a_page_lists_what_there_is_more_than_one_of() -> None:
    result = analysis()
    result["failed"]["reasons"] = {"cut off": 1_000, "no": 2}
    result["non_answers"]["texts"] = [{"text": "n a", "responses": 1}, {"text": "", "responses": 2}]
    result["themes"][0]["by_group"] = {"items": {"values": {"responses": 4, "share": 0.25}}}
    page = elements_of(page_of(result))

    for text in (
        "cut off: 1,000; no: 2",
        "“n a” (1), empty (2)",
        "items",
        "values",
        "wait, <long>",
    ):
        assert text in page.text


def test_a_value_that_is_missing_is_no_empty_one() -> None:
    with pytest.raises(UndefinedError):
        _template().render()


def test_a_result_as_json_loads_it_gives_the_same(request: pytest.FixtureRequest) -> None:
    again = json.loads(json.dumps(analysis()))
    assert page_of(again) == page_of(analysis())
