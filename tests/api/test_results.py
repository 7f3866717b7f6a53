"""What a completed job has left, over HTTP."""

import asyncio
import csv
import errno
import io
import json
import tempfile
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import httpx2
import pytest
from api.conftest import client_of
from contract.steps import complete, new_job, new_node
from starlette.types import Message
from support.analysis import HOSTILE, NAME, analysis

from app.api.offloading import Offloading
from app.api.server import NoScheduler, WebServer
from app.api.slices import SLICE_BYTES
from app.datasets.tables import read_table
from app.db.ids import new_id
from app.db.postgres.adapter import PostgresJobsDB

PROBLEM = "urn:haulage:problem:"


async def completed(
    db: PostgresJobsDB, result: Any, payload: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """The path of a completed job's result."""
    job_id = await new_job(db, payload)
    job = await db.claim_next_pending_job(await new_node(db))
    assert job is not None
    assert job.id == job_id
    assert await complete(db, job, json.dumps(result))
    return f"/jobs/{job.id}/result"


def kind_of(response: httpx2.Response) -> str:
    assert response.headers["content-type"] == "application/problem+json", response.text
    kind: str = response.json()["type"]
    return kind.removeprefix(PROBLEM)


@pytest.fixture
def inline(web: WebServer, database_url: str) -> httpx2.AsyncClient:
    """A client of a server that makes exports in its own process."""
    return client_of(WebServer(PostgresJobsDB(database_url), NoScheduler()))


async def test_a_result_is_known_by_its_tag(client: httpx2.AsyncClient, db: PostgresJobsDB) -> None:
    path = await completed(db, {"n": 1})

    response = await client.get(path)
    tag = response.headers["etag"]
    assert response.headers["content-length"] == str(len(response.content))
    for known in (tag, f'"other", W/{tag}', "*"):
        again = await client.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
    assert (await client.get(path, headers={"If-None-Match": '"other"'})).status_code == 200
    head = await client.head(f"/v1{path}")
    assert (head.status_code, head.headers["etag"]) == (200, tag)
    assert head.headers["content-length"] == str(len(response.content))

    job_id = path.split("/")[2]
    await db.retry_job(job_id)
    gone = await client.get(path, headers={"If-None-Match": tag})
    assert (gone.status_code, kind_of(gone)) == (409, "no-result")
    again_job = await db.claim_next_pending_job(await new_node(db))
    assert again_job is not None
    await complete(db, again_job, '{"n": 2}')
    new = await client.get(path, headers={"If-None-Match": tag})
    assert new.json() == {"n": 2}
    assert new.headers["etag"] != tag


async def test_a_large_result_comes_whole(client: httpx2.AsyncClient, db: PostgresJobsDB) -> None:
    result = ["ü" * 1_000] * (2 * SLICE_BYTES // 1_000)
    path = await completed(db, result)

    response = await client.get(path)

    assert response.json() == result
    assert int(response.headers["content-length"]) == len(response.content) > 4 * SLICE_BYTES


async def test_parts_of_an_analysis(client: httpx2.AsyncClient, db: PostgresJobsDB) -> None:
    result = analysis()
    path = await completed(db, result)

    themes = (await client.get(f"{path}/themes")).json()
    assert themes["themes"] == result["themes"]
    assert "assignments" not in themes

    quotes = result["themes"][0]["quotes"]
    for theme in ("T01", "1", "01"):
        page = (await client.get(f"{path}/themes/{theme}/quotes")).json()
        assert (page["items"], page["next"]) == (quotes, None)
        assert page["theme"]["name"] == NAME
        assert "quotes" not in page["theme"]
    for theme in ("T01.1", "1.1"):
        page = (await client.get(f"{path}/themes/{theme}/quotes")).json()
        assert page["items"] == quotes[:1]

    for part, whole in (("responses", result["assignments"]), ("themes/1/quotes", quotes)):
        seen: list[Any] = []
        url: str | None = f"/v1{path}/{part}?limit=2"
        while url:
            response = await client.get(url)
            page = response.json()
            seen += page["items"]
            url = page["next"]
            assert response.headers.get("link") == (f'<{url}>; rel="next"' if url else None)
        assert seen == whole


async def test_what_is_not_there_is_told(client: httpx2.AsyncClient, db: PostgresJobsDB) -> None:
    path = await completed(db, analysis())
    other = await completed(db, {"themes": []})
    waiting = f"/jobs/{await new_job(db)}/result"
    parts = ("", "/themes", "/themes/1/quotes", "/responses", "?format=csv")

    for part in parts:
        for unknown in (new_id(), "no-id"):
            response = await client.get(f"/jobs/{unknown}/result{part}")
            assert (response.status_code, kind_of(response)) == (404, "no-such-job")
        response = await client.get(waiting + part)
        assert (response.status_code, kind_of(response)) == (409, "no-result")
        assert response.json()["job_status"] == "pending"
        assert "retry-after" in response.headers
    for part in ("/themes", "/responses"):
        response = await client.get(other + part)
        assert (response.status_code, kind_of(response)) == (404, "no-analysis")
    for theme in ("T99", "99", "0", "x", "X: y", '"', "T01%25"):
        response = await client.get(f"{path}/themes/{theme}/quotes")
        assert (response.status_code, kind_of(response)) == (404, "no-such-theme")
    for query in (
        "?format=pdf",
        "?format=csv&part=all",
        "?format=xlsx&part=themes",
        "/responses?limit=201",
        "/responses?after=-1",
        "/themes/1/quotes?after=9999999999",
        "/themes/" + "x" * 21 + "/quotes",
    ):
        assert (await client.get(path + query)).status_code == 422, query


async def test_an_analysis_as_csv(client: httpx2.AsyncClient, db: PostgresJobsDB) -> None:
    path = await completed(db, analysis())

    response = await client.get(f"{path}?format=csv")

    assert response.status_code == 200, response.text
    job_id = path.split("/")[2]
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    assert response.headers["content-disposition"] == (
        f'attachment; filename="result-{job_id}.csv"'
    )
    rows = list(csv.DictReader(io.StringIO(response.content.decode("utf-8-sig"))))
    assert [row["response_id"] for row in rows] == ["1", "2", "3", "4", "'=1+1", "x", "y", "z"]
    assert rows[0]["themes"] == f"{NAME}; '-5% food"
    assert rows[4]["themes"] == "'-5% food"
    assert rows[4]["score"] == "-0.25"
    # Another version may write it otherwise, and the texts go with the dataset.
    assert "etag" not in response.headers
    assert response.headers["cache-control"] == "no-store"
    known = await client.get(f"{path}?format=csv", headers={"If-None-Match": "*"})
    assert known.status_code == 200


def answered(**more: Any) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """Rows of answers, and an analysis of them whose quotes are in them."""
    result = analysis()
    texts = {entry["response_id"]: "" for entry in result["assignments"]}
    for theme in result["themes"]:
        texts |= {quote["response_id"]: quote["text"] + " !" for quote in theme["quotes"]}
    result["input"].update(more)
    return [{"key": key, "text": text} for key, text in texts.items()], result


async def test_what_people_wrote_is_exported_with_it(
    inline: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    rows, result = answered()
    inline_job = await completed(db, result, {"answers": rows, "id_column": "key"})
    dataset = await db.insert_dataset(
        "a", ["text", "key"], [[r["text"], r["key"]] for r in rows], sha256="ab" * 32, detected={}
    )
    _, of_dataset = answered(dataset=dataset.id)
    payload = {"dataset": {"id": dataset.id}, "id_column": "key"}
    dataset_job = await completed(db, of_dataset, payload)

    for path in (inline_job, dataset_job):
        response = await inline.get(f"{path}?format=csv")
        found = list(csv.DictReader(io.StringIO(response.content.decode("utf-8-sig"))))
        assert [row["text"].removeprefix("'") for row in found] == [row["text"] for row in rows]
    response = await inline.get(f"{dataset_job}?format=xlsx")
    table = read_table(response.content, sheet="responses", drop_personal=False)
    assert [row["text"] for row in table.rows] == [row["text"] for row in rows]

    await db.delete_dataset(dataset.id)
    response = await inline.get(f"{dataset_job}?format=csv")
    assert response.text.startswith("\ufeffresponse_id,status,")


@pytest.mark.parametrize(
    "payload",
    [
        {"answers": [{"key": "1", "text": "another one"}], "id_column": "key"},
        {"answers": ["a", "b"]},
        {"answers": [None, 7, []]},
        {"answers": "text"},
        {"answers": [{"text": "a"}], "id_column": ["key"]},
        {},
    ],
)
async def test_other_texts_are_not_taken_for_what_people_wrote(
    inline: httpx2.AsyncClient, db: PostgresJobsDB, payload: dict[str, Any]
) -> None:
    path = await completed(db, analysis(), payload)

    response = await inline.get(f"{path}?format=csv")

    assert response.status_code == 200, response.text
    assert response.text.startswith("\ufeffresponse_id,status,")


async def test_other_exports_of_an_analysis(inline: httpx2.AsyncClient, db: PostgresJobsDB) -> None:
    path = await completed(db, analysis())

    for part, first in (("themes", "id"), ("quotes", "theme_id"), ("insights", "insight")):
        response = await inline.get(f"{path}?format=csv&part={part}")
        assert response.content.decode("utf-8-sig").startswith(f"{first},")
        assert f"-{part}.csv" in response.headers["content-disposition"]
    response = await inline.get(f"{path}?format=xlsx")
    quotes = read_table(response.content, sheet="quotes", drop_personal=False)
    assert quotes.rows[2]["quote"] == HOSTILE
    response = await inline.get(f"{path}?format=html")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert response.text.startswith("<!DOCTYPE html>")
    assert (await inline.get(f"{path}?format=json")).json() == analysis()
    assert "etag" not in response.headers


async def test_a_list_of_flat_objects_is_a_table_too(
    inline: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    path = await completed(db, [{"a": 1, "b": "=x"}, {"b": None, "c": True}])

    response = await inline.get(f"{path}?format=csv")
    assert response.content == b"\xef\xbb\xbfa,b,c\r\n1,'=x,\r\n,,true\r\n"
    response = await inline.get(f"{path}?format=xlsx")
    assert read_table(response.content).rows == [
        {"a": "1", "b": "=x", "c": ""},
        {"a": "", "b": "", "c": "TRUE"},
    ]


async def test_a_result_that_fits_no_table_is_refused(
    client: httpx2.AsyncClient, inline: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    nested = await completed(db, [{"a": [1]}])
    broken = await completed(db, {**analysis(), "themes": [{"id": "T01"}]})
    text = await completed(db, "text")
    for path, query in (
        (nested, "format=csv"),
        (nested, "format=html"),
        (nested, "format=csv&part=themes"),
        (broken, "format=csv"),
        (text, "format=xlsx"),
    ):
        response = await inline.get(f"{path}?{query}")
        assert (response.status_code, kind_of(response)) == (406, "no-export")
    response = await client.get(f"{nested}?format=csv")
    assert (response.status_code, kind_of(response)) == (406, "no-export")
    assert response.json()["detail"] == "/0: 'a' holds a list or an object, no cell"


async def test_an_export_whose_client_has_gone_keeps_no_turn(
    web: WebServer, database_url: str, db: PostgresJobsDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await completed(db, analysis())
    begun, ended = asyncio.Event(), asyncio.Event()

    async def endless(*_: Any, **__: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(Offloading, "run", endless)
    messages: asyncio.Queue[Message] = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})

    async def send(_: Message) -> None:
        pass

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"format=csv",
        "headers": [(b"host", b"localhost")],
    }
    answering = asyncio.ensure_future(web.app(scope, messages.get, send))
    await asyncio.wait_for(begun.wait(), 5.0)
    assert not ended.is_set()
    messages.put_nowait({"type": "http.disconnect"})
    await asyncio.wait_for(ended.wait(), 5.0)
    await answering


async def test_a_full_disk_is_told(
    client: httpx2.AsyncClient, db: PostgresJobsDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = await completed(db, ["x" * 1_000] * (SLICE_BYTES // 500))
    monkeypatch.setattr(tempfile, "TemporaryFile", full)

    for response in (
        await client.get(path),
        await client.get(f"{path}?format=csv"),
        await client.post("/datasets", files={"file": ("a.csv", b"id,text\n1,a\n")}),
    ):
        assert (response.status_code, kind_of(response)) == (503, "no-space")
        assert "retry-after" in response.headers
