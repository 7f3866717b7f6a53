"""Attempts, logs and checkpoints of a job over HTTP."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from api.conftest import client_of
from contract.steps import RAISED, claimed, complete, given_back, new_job, new_node
from support.proxy import Proxy
from support.streams import stream
from support.waiting import eventually

from app.api.following import MAX_QUEUED
from app.api.server import NoScheduler, WebServer
from app.db.ids import new_id
from app.db.postgres.adapter import PostgresJobsDB
from app.domain.following import LOG_PAGE_LINES, FoundLines, LogCursor
from app.domain.jobs import ClaimedJob, LogLine, Usage
from app.domain.lifecycle import decide

AT = datetime(2026, 11, 30, 9, 0, 0, 123_456, UTC)
AREAS = ("attempts", "logs", "checkpoints", "checkpoints/stage")


async def log(db: PostgresJobsDB, job: ClaimedJob, *levels: int, first: int = 1) -> None:
    lines = [LogLine(n, level, "stdout", f"line {n}", AT) for n, level in enumerate(levels, first)]
    await db.append_logs(job.claim, lines)


def numbers(response: httpx2.Response) -> list[int]:
    assert response.status_code == 200, response.text
    return [item["number"] for item in response.json()["items"]]


def next_link(response: httpx2.Response) -> str:
    following: str = response.json()["next"]
    assert response.headers["link"] == f'<{following}>; rel="next"'
    return following


async def test_an_attempt_is_told_in_full(client: httpx2.AsyncClient, db: PostgresJobsDB) -> None:
    job = await claimed(db)
    await db.report_started(job.claim, 4_711)
    await db.finish_job(job.claim, decide(RAISED, job), Usage(1_000_000, 1.5))

    response = await client.get(f"/jobs/{job.id}/attempts")

    [attempt] = await db.list_attempts(job.id)
    assert response.json() == {
        "items": [
            {
                "claim_no": 1,
                "attempt": 1,
                "node_id": attempt.node_id,
                "pid": 4_711,
                "started_at": attempt.started_at.isoformat().replace("+00:00", "Z"),
                "ended_at": response.json()["items"][0]["ended_at"],
                "outcome": "failed",
                "cause": "exception",
                "exit_code": None,
                "signal": None,
                "error_class": "ValueError",
                "error_message": "no",
                "traceback": "Traceback",
                "peak_memory_bytes": 1_000_000,
                "cpu_seconds": 1.5,
            }
        ],
        "next": None,
    }
    assert "link" not in response.headers


async def test_attempts_are_paged(client: httpx2.AsyncClient, db: PostgresJobsDB) -> None:
    node = await new_node(db)
    job = await claimed(db, node)
    for _ in range(3):
        await given_back(db, job)
        again = await db.claim_next_pending_job(node)
        assert again is not None
        job = again

    found: list[int] = []
    page = await client.get(f"/v1/jobs/{job.id}/attempts?limit=2")
    assert page.json()["next"] == f"/v1/jobs/{job.id}/attempts?after=2&limit=2"
    found += [item["claim_no"] for item in page.json()["items"]]
    page = await client.get(next_link(page))
    found += [item["claim_no"] for item in page.json()["items"]]
    assert found == [1, 2, 3, 4]
    assert page.json()["next"] is None


async def test_a_log_is_told_by_tail_level_and_place(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    await log(db, job, 10, 20, 30, 25, 50)
    url = f"/jobs/{job.id}/logs"

    everything = await client.get(url)
    assert everything.headers["content-type"] == "application/json"
    assert numbers(everything) == [1, 2, 3, 4, 5]
    items = everything.json()["items"]
    assert items[1] == {
        "id": items[1]["id"],
        "attempt": 1,
        "number": 2,
        "at": "2026-11-30T09:00:00.123456Z",
        "level": "info",
        "source": "stdout",
        "text": "line 2",
    }
    assert [item["level"] for item in items] == ["debug", "info", "warning", "info", "critical"]
    assert everything.json()["next"] is None
    assert "link" not in everything.headers

    assert numbers(await client.get(f"{url}?tail=2")) == [4, 5]
    assert numbers(await client.get(f"{url}?level=info")) == [2, 3, 4, 5]
    assert numbers(await client.get(f"{url}?level=WARNING&tail=1")) == [5]
    assert numbers(await client.get(f"{url}?level=debug&tail=10000")) == [1, 2, 3, 4, 5]
    page = await client.get(f"{url}?after=0&tail=2&level=info")
    assert numbers(page) == [2, 3]
    rest = await client.get(next_link(page))
    assert numbers(rest) == [4, 5]
    nothing = await client.get(next_link(rest))
    assert nothing.json() == {"items": [], "next": None}
    # A later look goes on there.
    await log(db, job, 20, first=6)
    assert numbers(await client.get(f"{url}?after={items[-1]['id']}")) == [6]


async def test_a_log_is_told_in_lines_of_text(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    line = LogLine(2, 30, "my.logger", "ü \N{SNOWMAN}", AT)
    await db.append_logs(job.claim, [LogLine(1, 20, "stdout", "first", AT), line])
    url = f"/jobs/{job.id}/logs"

    for accept in ("text/plain", "text/plain;q=0.9, application/json;q=0.1", "text/*"):
        response = await client.get(url, headers={"accept": accept})
        assert response.headers["content-type"] == "text/plain; charset=utf-8"
        assert response.headers["vary"] == "Accept"
        assert response.text == (
            "2026-11-30T09:00:00.123Z INFO     stdout: first\n"
            "2026-11-30T09:00:00.123Z WARNING  my.logger: ü \N{SNOWMAN}\n"
        )
    for accept in ("*/*", "application/json, text/plain", ""):
        response = await client.get(url, headers={"accept": accept})
        assert response.headers["content-type"] == "application/json"


async def test_a_long_log_comes_whole(client: httpx2.AsyncClient, db: PostgresJobsDB) -> None:
    job = await claimed(db)
    count = 2 * LOG_PAGE_LINES + 1
    await log(db, job, *[20] * count)
    url = f"/jobs/{job.id}/logs?tail="

    assert numbers(await client.get(f"{url}{count}")) == list(range(1, count + 1))
    assert numbers(await client.get(f"{url}{count - 1}")) == list(range(2, count + 1))
    assert len(numbers(await client.get(f"/jobs/{job.id}/logs"))) == 1_000


async def test_a_log_is_followed_to_its_end(web: WebServer, db: PostgresJobsDB) -> None:
    job = await claimed(db)
    await log(db, job, 20, 30, 20)
    url = f"/jobs/{job.id}/logs?follow=true"
    async with (
        stream(web.app, f"{url}&tail=2") as last,
        stream(web.app, f"{url}&level=warning") as warnings,
    ):
        told = await last.until("log", number=3)
        assert [event.data["number"] for event in told[1:]] == [2, 3]
        await warnings.until("log", number=2)
        await log(db, job, 20, 40, first=4)
        told = await last.until("log", number=5)
        assert [event.data["number"] for event in told] == [4, 5]
        assert told[-1].data["level"] == "error"
        # Written right before the end: none of it is lost.
        await log(db, job, *[40] * (2 * MAX_QUEUED + 5), first=6)
        await complete(db, job)
        rests = await last.rest(), await warnings.rest()

    numbers_ = list(range(6, 2 * MAX_QUEUED + 11))
    assert [event.data["number"] for event in rests[0][:-1]] == numbers_
    assert [event.data["number"] for event in rests[1][:-1]] == [5, *numbers_]
    for rest in rests:
        assert (rest[-1].name, rest[-1].id) == ("end", None)
        assert rest[-1].data == {"id": job.id, "status": "completed"}
    assert len(web._followers) == 0

    seen = told[-1].id
    async with stream(web.app, f"{url}&after=0", last_event_id=str(seen)) as again:
        assert [event.name for event in await again.rest()] == [
            "retry",
            *["log"] * len(numbers_),
            "end",
        ]


async def test_a_follower_of_a_level_looks_at_no_line_twice(
    web: WebServer, db: PostgresJobsDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await claimed(db)
    await log(db, job, *[20] * 50)
    looks: list[LogCursor] = []
    real = PostgresJobsDB.list_lines

    async def watched(
        self: PostgresJobsDB, cursors: Sequence[LogCursor], limit: int
    ) -> list[FoundLines]:
        looks.extend(cursors)
        return await real(self, cursors, limit)

    monkeypatch.setattr(PostgresJobsDB, "list_lines", watched)
    [every] = await real(db, [LogCursor(job.id)], 1_000)

    async def has_looked_again() -> bool:
        return len(looks) > 2

    async with stream(web.app, f"/jobs/{job.id}/logs?follow=true&level=error") as errors:
        await eventually(has_looked_again, "three looks")
        assert {look.after for look in looks[1:]} == {every.after}
        await log(db, job, 20, 40, first=51)
        assert (await errors.until("log", number=52))[-1].data["level"] == "error"


@pytest.mark.parametrize("path", ["events", "logs?follow=true"])
async def test_the_headers_of_a_stream_can_be_asked_for(
    web: WebServer, client: httpx2.AsyncClient, db: PostgresJobsDB, path: str
) -> None:
    job = await new_job(db)

    head = await client.head(f"/jobs/{job}/{path}")

    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"].startswith("text/event-stream")
    assert "content-length" not in head.headers
    assert len(web._followers) == 0


async def test_a_followed_log_survives_outages_and_lives(db: PostgresJobsDB, proxy: Proxy) -> None:
    web = WebServer(PostgresJobsDB(proxy.url), NoScheduler())
    node = await new_node(db)
    job = await claimed(db, node)
    async with (
        web._lifespan(web.app),
        stream(web.app, f"/jobs/{job.id}/logs?follow=true") as client,
    ):
        await log(db, job, 20)
        await client.until("log", number=1)
        proxy.cut()
        await log(db, job, 20, first=2)
        await given_back(db, job)
        again = await db.claim_next_pending_job(node)
        assert again is not None
        await log(db, again, 20)
        told = await client.until("log", attempt=1, number=1)
        await complete(db, again)
        end = await client.rest()
    assert [event.data["number"] for event in told] == [2, 1]
    assert [event.name for event in end] == ["end"]


async def test_followed_logs_end_with_the_process_and_have_their_bound(
    web: WebServer, client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    url = f"/jobs/{job.id}/logs?follow=true"
    web._followers._max_followers = 1
    async with stream(web.app, url) as following:
        await log(db, job, 20)
        await following.until("log", number=1)
        assert (await client.get(url)).status_code == 503
        web.refuse_traffic()
        assert [event.name for event in await following.rest()] == ["closing"]
    assert (await client.get(url)).json()["type"] == "urn:haulage:problem:stopping"
    # Reading goes on until the end.
    assert numbers(await client.get(f"/jobs/{job.id}/logs")) == [1]


async def test_checkpoints_are_listed_and_fetched(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    stages = ["a", "b/c d", "ü"]
    for stage in stages:
        await db.save_checkpoint(job.claim, stage, '{"stage": "ü", "n": 18446744073709551617}')

    listed = await client.get(f"/jobs/{job.id}/checkpoints")
    items = listed.json()["items"]
    assert sorted(item["stage"] for item in items) == stages
    assert all(item["claim_no"] == 1 and item["stored_bytes"] > 0 for item in items)
    assert all(datetime.fromisoformat(item["saved_at"]) for item in items)
    assert listed.json()["next"] is None

    found = []
    page = await client.get(f"/jobs/{job.id}/checkpoints?limit=1")
    while True:
        found += [item["stage"] for item in page.json()["items"]]
        if page.json()["next"] is None:
            break
        page = await client.get(next_link(page))
    assert found == [item["stage"] for item in items]

    for path in ("a", "b/c%20d", "%C3%BC"):
        response = await client.get(f"/v1/jobs/{job.id}/checkpoints/{path}")
        assert response.headers["content-type"] == "application/json"
        assert response.content == '{"n": 18446744073709551617, "stage": "ü"}'.encode()
    for path in ("A", "a%25", "%FF", "x" * 5_000):
        response = await client.get(f"/jobs/{job.id}/checkpoints/{path}")
        assert (response.status_code, response.json()["type"]) == (
            404,
            "urn:haulage:problem:no-such-checkpoint",
        )


async def test_a_job_without_a_history_has_empty_pages(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job_id = await new_job(db)
    empty: dict[str, Any] = {"items": [], "next": None}
    assert (await client.get(f"/jobs/{job_id}/attempts")).json() == empty
    assert (await client.get(f"/jobs/{job_id}/checkpoints")).json() == empty
    assert (await client.get(f"/jobs/{job_id}/logs")).json() == empty
    text = await client.get(f"/jobs/{job_id}/logs", headers={"accept": "text/plain"})
    assert text.content == b""


async def test_an_unknown_job_has_no_history(
    client: httpx2.AsyncClient, subtests: pytest.Subtests
) -> None:
    for job_id in (new_id(), "none", "%25"):
        for area in (*AREAS, "logs?follow=true"):
            with subtests.test(job_id=job_id, area=area):
                response = await client.get(f"/jobs/{job_id}/{area}")
                assert response.status_code == 404
                assert response.json()["type"] == "urn:haulage:problem:no-such-job"


@pytest.mark.parametrize(
    "query",
    [
        "attempts?limit=0",
        "attempts?limit=101",
        "attempts?after=-1",
        "attempts?after=9223372036854775808",
        "logs?tail=0",
        "logs?tail=10001",
        "logs?tail=x",
        "logs?after=-1",
        "logs?after=9223372036854775808",
        "logs?level=loud",
        "logs?level=20",
        "logs?level=",
        "logs?follow=perhaps",
        "checkpoints?limit=201",
        f"checkpoints?after={'x' * 201}",
    ],
)
async def test_what_is_out_of_bounds_is_refused(
    client: httpx2.AsyncClient, db: PostgresJobsDB, query: str
) -> None:
    response = await client.get(f"/jobs/{await new_job(db)}/{query}")
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"


async def test_the_history_is_unavailable_with_the_database(
    db: PostgresJobsDB, proxy: Proxy
) -> None:
    web = WebServer(PostgresJobsDB(proxy.url), NoScheduler())
    job_id = await new_job(db)
    async with web._lifespan(web.app), client_of(web) as client:
        proxy.is_refusing = True
        proxy.cut()
        for area in AREAS:
            assert (await client.get(f"/jobs/{job_id}/{area}")).status_code == 503


async def test_the_document_tells_of_every_kind_of_answer(client: httpx2.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    paths = document["paths"]
    logs = paths["/jobs/{job_id}/logs"]["get"]["responses"]["200"]["content"]
    assert set(logs) == {"application/json", "text/plain", "text/event-stream"}
    assert set(paths["/jobs/{job_id}/events"]["get"]["responses"]["200"]["content"]) == {
        "text/event-stream"
    }
    job = paths["/jobs/{job_id}"]["get"]
    own = {"200", "304", "404", "410", "422", "503"}
    assert set(job["responses"]) == own | {"400", "401", "403", "414", "421", "431"}
    assert {p["name"] for p in job["parameters"]} == {"job_id", "wait", "prefer", "if-none-match"}
    assert json.dumps(document)


async def test_every_route_of_a_job_says_that_it_was_deleted_and_is_documented_to(
    web: WebServer, client: httpx2.AsyncClient, subtests: pytest.Subtests
) -> None:
    job_id = (await client.post("/enqueue", json={"payload": {}})).json()["id"]
    await client.post(f"/jobs/{job_id}/cancel")
    assert (await client.delete(f"/jobs/{job_id}")).status_code == 204
    routes = [
        (method, path, operation)
        for path, operations in web.app.openapi()["paths"].items()
        for method, operation in operations.items()
        if path.startswith("/jobs/{job_id}")
    ]
    assert len(routes) >= 14
    for method, path, operation in routes:
        with subtests.test(f"{method} {path}"):
            url = path.format(job_id=job_id, stage="embed", theme="T01", milestone="x")
            response = await client.request(method, url)

            assert response.status_code == 410
            assert response.json()["type"] == "urn:haulage:problem:job-deleted"
            assert "410" in operation["responses"]
