"""Files in over HTTP: what comes back of them, and what is left when something goes wrong."""

import asyncio
import io
import sys
import zipfile
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx2
import pytest
from api.conftest import client_of, web_server
from datasets.workbooks import ods, ods_row, ods_text, table, xlsx

from app.api import datasets, receiving
from app.api.datasets import MAX_FORM_BYTES, MAX_UPLOADS_OF_ONE
from app.api.server import NoScheduler, WebServer
from app.datasets.tables import MAX_BYTES
from app.db.ids import new_id
from app.db.postgres.adapter import PostgresJobsDB

QUALTRICS = (
    'ResponseId,Q1\r\nResponse ID,"What could be\nbetter?"\r\n'
    '"{""ImportId"":""_recordId""}","{""ImportId"":""QID1""}"\r\n'
    "R_1,Shorter waits please\r\nR_2,Nothing\r\n"
)
SURVEYMONKEY = (
    "Respondent ID,What did you like?,Email Address\n,Open-Ended Response,\n"
    '1,"Kind, patient staff",a@b.example\n2,The garden,c@d.example\n'
)
ROWS = [["id", "text"], ["1", "a cell of words"], ["2", "another one of them"]]
PLAIN = "id,text\n1,the staff were kind\n2,the food was cold\n"


def form(content: bytes | str, file_name: str = "answers.csv", /, **fields: str) -> dict[str, Any]:
    """The arguments of a POST that sends this file."""
    return {"files": {"file": (file_name, content)}, "data": fields}


async def upload(client: httpx2.AsyncClient, content: bytes | str, **fields: str) -> dict[str, Any]:
    response = await client.post("/datasets", **form(content, **fields))
    assert response.status_code == 201, response.text
    told: dict[str, Any] = response.json()
    return told


async def test_a_file_becomes_a_dataset(client: httpx2.AsyncClient, db: PostgresJobsDB) -> None:
    response = await client.post("/v1/datasets", **form(SURVEYMONKEY, "Umfrage ä.csv"))

    assert response.status_code == 201, response.text
    told = response.json()
    question = "What did you like?"
    assert told == {
        "id": told["id"],
        "name": "Umfrage ä.csv",
        "created_at": told["created_at"],
        "row_count": 2,
        "columns": [
            {"name": "Respondent ID", "question": "Respondent ID"},
            {"name": question, "question": question},
        ],
        "text_column": question,
        "id_column": "Respondent ID",
        "format": "csv",
        "encoding": "utf-8",
        "delimiter": ",",
        "header_rows": 2,
        "source": "surveymonkey",
        "sheet": None,
        "dropped_columns": ["Email Address"],
        "sha256": told["sha256"],
        "preview": [["1", "Kind, patient staff"], ["2", "The garden"]],
    }
    assert response.headers["location"] == f"/v1/datasets/{told['id']}"
    stored = await db.list_dataset_rows(told["id"], [0, 1])
    assert [cells for _, cells in stored] == told["preview"]

    preview = told.pop("preview")
    assert (await client.get(response.headers["location"])).json() == told
    assert (await client.get(f"/datasets/{told['id']}/rows")).json() == {
        "columns": ["Respondent ID", question],
        "items": [{"row": n, "cells": cells} for n, cells in enumerate(preview, start=1)],
        "next": None,
    }


@pytest.fixture
async def inline(database_url: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a server that reads files in its own process, which is quicker to start."""
    server = WebServer(PostgresJobsDB(database_url), NoScheduler())
    async with server._lifespan(server.app), client_of(server) as requests:
        yield requests


# What is sent under which name, and what of it is told.
FILES: dict[str, tuple[bytes, str, dict[str, Any]]] = {
    "Qualtrics": (
        QUALTRICS.encode(),
        "q.csv",
        {
            "header_rows": 3,
            "source": "qualtrics",
            "columns": [
                {"name": "ResponseId", "question": "Response ID"},
                {"name": "Q1", "question": "What could be better?"},
            ],
        },
    ),
    "a mark": (b"\xef\xbb\xbf" + PLAIN.encode(), "a.csv", {"encoding": "utf-8"}),
    "UTF-16": (PLAIN.encode("utf-16"), "a.csv", {"encoding": "utf-16-le"}),
    "cp1252": ("id;text\n1;Geräusche überall hier\n".encode("cp1252"), "a.csv",
               {"encoding": "cp1252", "delimiter": ";"}),
    "tabs": (PLAIN.replace(",", "\t").encode(), "a.tsv", {"delimiter": "\t"}),
    "lines of texts": (b'"first"\n"second"\n', "a.jsonl", {"format": "jsonl"}),
    "a list": (b'[{"id": 1, "text": "first of them"}, {"id": 2, "text": null}]', "a.json",
               {"format": "json", "encoding": "utf-8"}),
    "XLSX": (xlsx(table(ROWS)), "a.xlsx",
             {"format": "workbook", "encoding": None, "delimiter": None}),
    "ODS": (ods("".join(ods_row(*map(ods_text, row)) for row in ROWS)), "a.ods",
            {"format": "workbook"}),
}  # fmt: skip


async def test_files_of_all_kinds_are_read(
    inline: httpx2.AsyncClient, subtests: pytest.Subtests
) -> None:
    for kind, (content, name, expected) in FILES.items():
        with subtests.test(kind):
            response = await inline.post("/datasets", **form(content, name))

            assert response.status_code == 201, response.text
            told = response.json()
            assert {key: told[key] for key in expected} == expected
            assert told["row_count"] == len(told["preview"]) == 2 - (kind == "cp1252")


async def test_wishes_are_followed(inline: httpx2.AsyncClient) -> None:
    told = await upload(
        inline,
        "Ger\u00e4t\nkaputt gegangen\n".encode("cp1250"),
        name="From the desk",
        header_rows="0",
        encoding="cp1250",
    )
    assert (told["name"], told["encoding"], told["header_rows"]) == ("From the desk", "cp1250", 0)
    assert told["preview"] == [["Ger\u00e4t"], ["kaputt gegangen"]]

    book = xlsx(table(ROWS), table([["only"], ["the other sheet"]]))
    told = await upload(inline, book, sheet="Two")
    assert (told["sheet"], told["preview"]) == ("Two", [["the other sheet"]])


async def test_a_preview_is_short(inline: httpx2.AsyncClient) -> None:
    text = "text\n" + "".join(f"{'word ' * 100}{n}\n" for n in range(30))
    told = await upload(inline, text)

    assert told["row_count"] == 30
    assert [len(row[0]) for row in told["preview"]] == [200] * 20


BAD: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "no file": ({"files": {"name": (None, "x")}}, 422, "/file"),
    "two files": ({"files": [("file", ("a", PLAIN)), ("file", ("b", PLAIN))]}, 422, "/file"),
    "an unknown field": (form(PLAIN, column="text"), 422, "/column"),
    "a field twice": (
        {"files": [("file", ("a", PLAIN)), ("name", (None, "x")), ("name", (None, "y"))]},
        422,
        "/name",
    ),
    "no name": (form(PLAIN, name=""), 422, "/name"),
    "a long name": (form(PLAIN, name="x" * 256), 422, "/name"),
    "a name with NUL": (form(PLAIN, name="a\x00"), 422, "/name"),
    "a very long field": (form(PLAIN, sheet="x" * 100_000), 422, "/sheet"),
    "four header rows": (form(PLAIN, header_rows="4"), 422, "/header_rows"),
    "header rows no number": (form(PLAIN, header_rows="1 "), 422, "/header_rows"),
    "no encoding": (form(PLAIN, encoding="klingon"), 422, "/file"),
    "an encoding that is a codec": (form(PLAIN, encoding="zip"), 422, "/file"),
    "a sheet of a text": (form(PLAIN, sheet="One"), 422, "/file"),
    "an empty file": (form(""), 422, "/file"),
    "a header alone": (form("id,text\n"), 422, "/file"),
    "broken quotes": (form('id,text\n1,"open\n'), 422, "/file"),
    "a zero byte": (form("id,text\n1,a\x00b\n"), 422, "/file"),
    "only what identifies people": (form("email\na@b.example\n"), 422, "/file"),
    "an archive that is no workbook": (form(b"PK\x03\x04" + b"x" * 100), 422, "/file"),
    "JSON": ({"json": {"file": PLAIN}}, 415, None),
    "nothing": ({}, 415, None),
    "a form without a boundary": (
        {"content": b"x", "headers": {"content-type": "multipart/form-data"}},
        400,
        None,
    ),
    "a form that breaks off": (
        {
            "content": b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nid,te',
            "headers": {"content-type": "multipart/form-data; boundary=b"},
        },
        400,
        None,
    ),
}


async def test_a_bad_upload_is_a_problem_and_nothing_is_stored(
    inline: httpx2.AsyncClient, database_url: str, subtests: pytest.Subtests
) -> None:
    for name, (sent, status, pointer) in BAD.items():
        with subtests.test(name):
            response = await inline.post("/datasets", **sent)

            assert response.status_code == status, response.text
            assert response.headers["content-type"] == "application/problem+json"
            problem = response.json()
            assert problem["instance"] == "/datasets"
            pointers = [error["pointer"] for error in problem.get("errors", [])]
            assert pointers == ([] if pointer is None else [pointer])
    assert await counted(database_url) == (0, 0)


async def counted(database_url: str) -> tuple[int, int]:
    """How many datasets there are, and rows of them."""
    connection = await asyncpg.connect(database_url)
    try:
        found = await connection.fetchrow(
            "select (select count(*) from haulage.datasets),"
            " (select count(*) from haulage.dataset_rows)"
        )
    finally:
        await connection.close()
    assert found is not None
    return found[0], found[1]


async def test_an_error_of_the_reading_process_is_told_as_it_is(
    client: httpx2.AsyncClient, database_url: str
) -> None:
    broken = "id,text\n" + "1,a\n" * 1_500 + "1,a,b\n"
    response = await client.post("/datasets", **form(broken))

    assert response.status_code == 422
    assert response.json()["detail"].startswith("line 1502: 3 cells under 2 columns")
    assert await counted(database_url) == (0, 0)


def bomb() -> bytes:
    """A workbook of some kilobytes whose sheet unpacks to 300 MB."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
        with archive.open("xl/worksheets/sheet1.xml", "w") as sheet:
            sheet.write(b"<worksheet>")
            for _ in range(300):
                sheet.write(b" " * 1_000_000)
    return packed.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(bomb(), id="zip bomb"),
        pytest.param(b"," * 20_000_000 + b"\n" + b"," * 20_000_000, id="columns"),
        pytest.param(b"[" * 20_000_000, id="depth"),
        pytest.param(b'id,text\n1,"' + b"x" * 20_000_000 + b'"\n', id="one cell"),
    ],
)
async def test_a_file_that_is_made_to_take_much_is_refused(
    client: httpx2.AsyncClient, database_url: str, content: bytes
) -> None:
    response = await client.post("/datasets", **form(content))

    assert response.status_code in {413, 422}, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert [error["pointer"] for error in response.json()["errors"]] == ["/file"]
    assert await counted(database_url) == (0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count less")
async def test_a_file_that_takes_more_memory_than_a_reader_may_have_is_refused(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "READ_MEMORY_BYTES", 256 * 1024**2)
    web = web_server(database_url)
    large = "id,text\n" + "1,x\n" * 199_000 + f"2,{'y' * 90_000}\n" * 500
    async with web._lifespan(web.app), client_of(web) as client:
        refused = await client.post("/datasets", **form(large))
        assert (await client.post("/datasets", **form(PLAIN))).status_code == 201

    assert refused.status_code == 413, refused.text
    problem = refused.json()
    assert problem["type"] == "urn:haulage:problem:too-large"
    assert "256 MiB" in problem["detail"]
    assert await counted(database_url) == (1, 2)


async def test_a_large_body_is_refused_before_it_is_read(inline: httpx2.AsyncClient) -> None:
    asked = 0

    async def never_ending() -> AsyncIterator[bytes]:
        nonlocal asked
        head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        yield head
        while True:
            asked += 1
            yield b"x" * 1024 * 1024

    headers = {"content-type": "multipart/form-data; boundary=b"}
    declared = {**headers, "content-length": str(MAX_FORM_BYTES + 1)}
    response = await inline.post("/datasets", content=never_ending(), headers=declared)
    assert (response.status_code, asked) == (413, 0)

    response = await inline.post("/datasets", content=never_ending(), headers=headers)
    assert response.status_code == 413
    assert response.json()["type"] == "urn:haulage:problem:too-large"
    assert response.headers["connection"] == "close"
    assert asked == MAX_BYTES // 1024**2 + 1


async def test_no_more_uploads_are_taken_in_than_may_be_at_once(
    inline: httpx2.AsyncClient,
) -> None:
    go_on = asyncio.Event()
    begun = asyncio.Queue[None]()

    async def slow() -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
        begun.put_nowait(None)
        await go_on.wait()
        yield PLAIN.encode() + b"\r\n--b--\r\n"

    def sent() -> asyncio.Future[httpx2.Response]:
        headers = {"content-type": "multipart/form-data; boundary=b"}
        return asyncio.ensure_future(inline.post("/datasets", content=slow(), headers=headers))

    waiting = [sent() for _ in range(MAX_UPLOADS_OF_ONE)]
    for _ in waiting:
        await begun.get()
    refused = await inline.post("/datasets", **form(PLAIN))
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "2"
    assert refused.json()["type"] == "urn:haulage:problem:busy"

    go_on.set()
    assert [response.status_code for response in await asyncio.gather(*waiting)] == [
        201
    ] * MAX_UPLOADS_OF_ONE
    await upload(inline, PLAIN)


async def test_a_client_that_sends_nothing_is_told_so(
    inline: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "STALL_SECONDS", 0.05)

    async def silent() -> AsyncIterator[bytes]:
        yield b"--b\r\n"
        await asyncio.Event().wait()

    headers = {"content-type": "multipart/form-data; boundary=b"}
    response = await inline.post("/datasets", content=silent(), headers=headers)

    assert response.status_code == 408
    assert response.json()["type"] == "urn:haulage:problem:stalled"


async def test_datasets_are_listed_by_pages_the_newest_first(inline: httpx2.AsyncClient) -> None:
    made = [(await upload(inline, PLAIN, name=str(n)))["id"] for n in range(5)]

    seen, url = [], "/v1/datasets?limit=2"
    while url:
        response = await inline.get(url)
        page = response.json()
        seen += page["items"]
        url = page["next"]
        linked = f'<{url}>; rel="next"' if url else None
        assert response.headers.get("link") == linked
        assert len(page["items"]) <= 2

    assert [item["id"] for item in seen] == made[::-1]
    assert seen[0] == {
        "id": made[-1],
        "name": "4",
        "row_count": 2,
        "column_count": 2,
        "created_at": seen[0]["created_at"],
    }
    for query in ("limit=0", "limit=201", "after=x"):
        assert (await inline.get(f"/datasets?{query}")).status_code == 422


async def test_rows_come_by_pages(inline: httpx2.AsyncClient) -> None:
    lines = [f"{n},text {n}" for n in range(1, 6)]
    told = await upload(inline, "id,text\n" + "\n".join(lines))

    seen, url = [], f"/datasets/{told['id']}/rows?limit=2"
    while url:
        response = await inline.get(url)
        page = response.json()
        seen += page["items"]
        url = page["next"]
        assert response.headers.get("link") == (f'<{url}>; rel="next"' if url else None)
    assert [row["row"] for row in seen] == [1, 2, 3, 4, 5]
    assert [",".join(row["cells"]) for row in seen] == lines

    beyond = await inline.get(f"/datasets/{told['id']}/rows?after=5")
    assert beyond.json() == {"columns": ["id", "text"], "items": [], "next": None}


async def test_a_page_of_long_rows_is_cut(inline: httpx2.AsyncClient) -> None:
    told = await upload(inline, "text\n" + "\n".join("ä" * 90_000 for _ in range(12)))

    page = (await inline.get(f"/datasets/{told['id']}/rows")).json()

    assert [row["row"] for row in page["items"]] == [1, 2, 3, 4, 5]
    assert page["next"] == f"/datasets/{told['id']}/rows?after=5"


@pytest.mark.parametrize("dataset_id", [new_id(), "no-id", "%25", "1" * 500, "X:%20y"])
async def test_an_unknown_dataset_is_told(inline: httpx2.AsyncClient, dataset_id: str) -> None:
    for method, path in (("GET", ""), ("GET", "/rows"), ("DELETE", "")):
        response = await inline.request(method, f"/datasets/{dataset_id}{path}")
        assert response.status_code == 404, response.text
        assert response.json()["type"] == "urn:haulage:problem:no-such-dataset"


async def test_a_dataset_is_removed_unless_a_job_needs_it(
    inline: httpx2.AsyncClient, database_url: str
) -> None:
    kept, gone = (await upload(inline, PLAIN))["id"], (await upload(inline, PLAIN))["id"]
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        "insert into haulage.jobs (id, pipeline, dataset_id) values"
        " (gen_random_uuid(), 'demo-echo', $1::text::uuid)",
        kept,
    )
    await connection.close()

    response = await inline.delete(f"/datasets/{kept}")
    assert response.status_code == 409
    assert response.json()["type"] == "urn:haulage:problem:dataset-in-use"
    response = await inline.delete(f"/datasets/{gone}")
    assert (response.status_code, response.content) == (204, b"")
    assert (await inline.delete(f"/datasets/{gone}")).status_code == 404
    assert [item["id"] for item in (await inline.get("/datasets")).json()["items"]] == [kept]


@pytest.mark.parametrize("path", ["/enqueue", "/jobs", "/jobs/batch"])
async def test_a_job_keeps_the_dataset_that_it_names_and_an_unknown_one_is_refused(
    client: httpx2.AsyncClient, database_url: str, path: str
) -> None:
    dataset_id = (await upload(client, PLAIN))["id"]

    async def submitted(named: str) -> httpx2.Response:
        job = {"pipeline": "thematic", "payload": {"dataset": {"id": named}}}
        body = [job] if path.endswith("batch") else job
        return await client.post(path, json=body)

    unknown = new_id()
    refused = await submitted(unknown)
    assert refused.status_code == 422
    assert refused.json()["type"].endswith(
        ":invalid-input" if path.endswith("batch") else ":unknown-dataset"
    )
    [place] = refused.json()["errors"]
    assert place["pointer"].endswith("/payload/dataset/id")
    assert unknown in place["detail"]

    answer = await submitted(dataset_id.upper())
    assert answer.status_code in {200, 202}, answer.text
    [row] = await rows(database_url, "select dataset_id::text from haulage.jobs")
    assert row["dataset_id"] == dataset_id
    assert (await client.delete(f"/datasets/{dataset_id}")).status_code == 409


async def test_what_other_pipelines_call_a_dataset_is_theirs(
    client: httpx2.AsyncClient, database_url: str
) -> None:
    job = {"pipeline": "demo-echo", "payload": {"dataset": {"id": new_id()}}}

    assert (await client.post("/enqueue", json=job)).status_code == 200

    [row] = await rows(database_url, "select dataset_id from haulage.jobs")
    assert row["dataset_id"] is None


async def rows(url: str, sql: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(sql)
    finally:
        await connection.close()
