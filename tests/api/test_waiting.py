"""ETags, If-None-Match and the long poll of `GET /jobs/{id}`."""

import asyncio
import time
from typing import Any

import httpx2
import pytest
from api.conftest import client_of
from contract.steps import RAISED, claimed, complete, new_job, new_node
from support.proxy import Proxy
from support.waiting import eventually

from app.api.server import NoScheduler, WebServer
from app.api.waiting import MAX_WAIT_SECONDS
from app.db.ids import new_id
from app.db.postgres.adapter import PostgresJobsDB
from app.domain.jobs import JobOptions, Progress
from app.domain.lifecycle import decide

LONG = "20"


async def is_followed(web: WebServer) -> None:
    async def somebody() -> bool:
        return len(web._followers) > 0

    await eventually(somebody, "a follower")


async def test_a_job_is_told_once_per_version(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    first = await client.get(f"/jobs/{job.id}")
    etag = first.headers["etag"]
    known = {"if-none-match": f'"other", {etag}'}

    assert etag == f'W/"{(await db.get_job(job.id)).version}"'
    assert first.headers["cache-control"] == "private, no-cache"
    same = await client.get(f"/jobs/{job.id}", headers=known)
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", etag)
    assert same.headers["retry-after"] == "2"
    # Strong or weak is the same to If-None-Match, and so is the root.
    for header in (etag.removeprefix("W/"), "*"):
        again = await client.get(f"/v1/jobs/{job.id}", headers={"if-none-match": header})
        assert again.status_code == 304

    await db.report_progress(job.claim, Progress(0.5))
    changed = await client.get(f"/jobs/{job.id}", headers=known)
    assert changed.status_code == 200
    assert changed.headers["etag"] != etag
    assert changed.json()["progress"]["fraction"] == 0.5
    for header in ("", "nonsense", '"', etag[:-2]):
        response = await client.get(f"/jobs/{job.id}", headers={"if-none-match": header})
        assert response.status_code == 200


@pytest.mark.parametrize(
    ("query", "prefer", "applied"),
    [
        (f"?wait={LONG}", {}, None),
        ("", {"prefer": f"respond-async, WAIT = {LONG}; x=y"}, f"wait={LONG}"),
        ("", {"prefer": "wait=100"}, f"wait={MAX_WAIT_SECONDS}"),
        ("", {"prefer": "wait"}, f"wait={MAX_WAIT_SECONDS}"),
        ("?wait=31", {"prefer": "wait=0"}, None),
    ],
)
async def test_the_answer_comes_when_the_job_has_ended(
    web: WebServer,
    client: httpx2.AsyncClient,
    db: PostgresJobsDB,
    query: str,
    prefer: dict[str, str],
    applied: str | None,
) -> None:
    job = await claimed(db)
    asking = asyncio.ensure_future(client.get(f"/jobs/{job.id}{query}", headers=prefer))
    await is_followed(web)
    await db.report_progress(job.claim, Progress(0.5))
    waiter = next(iter(web._followers._followers))

    async def has_been_told() -> bool:
        return waiter._version == (await db.get_job(job.id)).version

    await eventually(has_been_told, "news of the progress")
    assert not waiter._news.is_set()

    await complete(db, job)
    response = await asking
    assert response.json()["status"] == "completed"
    assert response.headers.get("preference-applied") == applied
    assert "retry-after" not in response.headers
    assert len(web._followers) == 0


@pytest.mark.parametrize("change", ["progress", "milestone", "end", "pid", "wish"])
async def test_who_has_a_version_is_answered_at_the_next_change(
    web: WebServer, client: httpx2.AsyncClient, db: PostgresJobsDB, change: str
) -> None:
    job = await claimed(db)
    etag = (await client.get(f"/jobs/{job.id}")).headers["etag"]
    asking = asyncio.ensure_future(
        client.get(f"/jobs/{job.id}?wait={LONG}", headers={"if-none-match": etag})
    )
    await is_followed(web)

    match change:
        case "progress":
            await db.report_progress(job.claim, Progress(0.5))
        case "milestone":
            await db.report_progress(job.claim, Progress(0.5, "load"), is_milestone=True)
        case "end":
            await db.finish_job(job.claim, decide(RAISED, job))
        case "pid":
            await db.report_started(job.claim, 4_711)
        case _:
            await db.cancel_job(job.id)

    response = await asking
    assert response.status_code == 200
    assert response.headers["etag"] != etag


async def test_who_has_an_older_version_is_answered_at_once(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    etag = (await client.get(f"/jobs/{job.id}")).headers["etag"]
    await db.report_progress(job.claim, Progress(0.5))

    response = await client.get(f"/jobs/{job.id}?wait={LONG}", headers={"if-none-match": etag})
    assert response.json()["progress"]["fraction"] == 0.5


async def test_a_wait_ends_with_what_there_is(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job_id = await new_job(db)
    began = time.monotonic()
    response = await client.get(f"/jobs/{job_id}?wait=0.4")

    assert 0.4 <= time.monotonic() - began < 3
    assert response.json()["status"] == "pending"
    assert response.headers["retry-after"] == "2"
    known = {"if-none-match": response.headers["etag"], "prefer": "wait=0"}
    assert (await client.get(f"/jobs/{job_id}?wait=0.1", headers=known)).status_code == 304
    same = await client.get(f"/jobs/{job_id}", headers=known)
    assert (same.status_code, same.headers["preference-applied"]) == (304, "wait=0")


async def test_an_ended_job_is_not_waited_for(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    await complete(db, job)
    response = await client.get(f"/jobs/{job.id}?wait={LONG}")
    assert response.json()["status"] == "completed"

    known = {"if-none-match": response.headers["etag"]}
    assert (await client.get(f"/jobs/{job.id}?wait={LONG}", headers=known)).status_code == 304


@pytest.mark.parametrize("wait", ["-1", "x", "", "nan", "inf", "1e999", "1;2", "-0.001"])
async def test_a_wait_that_is_none_is_refused(
    client: httpx2.AsyncClient, db: PostgresJobsDB, wait: str
) -> None:
    response = await client.get(f"/jobs/{await new_job(db)}", params={"wait": wait})
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == "/query/wait"


@pytest.mark.parametrize("prefer", ["wait=x", "wait=-1", "wait=1.5", "await=9", "wait=٣", "," * 99])
async def test_a_preference_that_cannot_be_understood_is_ignored(
    client: httpx2.AsyncClient, db: PostgresJobsDB, prefer: str
) -> None:
    header = [(b"prefer", prefer.encode())]
    response = await client.get(f"/jobs/{await new_job(db)}", headers=header)
    assert response.status_code == 200
    assert "preference-applied" not in response.headers


async def test_an_unknown_job_is_not_waited_for(client: httpx2.AsyncClient) -> None:
    for job_id in (new_id(), "none"):
        assert (await client.get(f"/jobs/{job_id}?wait={LONG}")).status_code == 404


async def test_a_job_that_is_deleted_meanwhile_is_not_found(
    web: WebServer, client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job_id = await new_job(db)
    asking = asyncio.ensure_future(client.get(f"/jobs/{job_id}?wait={LONG}"))
    await is_followed(web)
    async with db._borrowed() as connection:
        await connection.execute("delete from haulage.jobs")

    assert (await asking).status_code == 404


async def test_a_client_that_leaves_is_waited_for_no_longer(
    web: WebServer, client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job_id = await new_job(db)
    has_left = asyncio.Event()
    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await has_left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/jobs/{job_id}",
        "raw_path": b"",
        "query_string": b"wait=20",
        "headers": [],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("test", 80),
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }
    before = asyncio.all_tasks()
    asking = asyncio.ensure_future(web.app(scope, receive, send))
    await is_followed(web)
    has_left.set()
    await asyncio.wait_for(asking, 5)

    assert len(web._followers) == 0
    left = asyncio.all_tasks() - before
    assert {task.get_name() for task in left} <= {"haulage-follow"}


async def test_a_wait_is_answered_at_once_when_the_process_is_about_to_stop(
    web: WebServer, client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job_id = await new_job(db)
    asking = asyncio.ensure_future(client.get(f"/jobs/{job_id}?wait={LONG}"))
    await is_followed(web)
    web.refuse_traffic()

    assert (await asking).json()["status"] == "pending"
    assert (await client.get(f"/jobs/{job_id}?wait={LONG}")).status_code == 200


async def test_nobody_waits_where_too_many_follow_already(
    web: WebServer, client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job_id = await new_job(db)
    web._followers._max_followers = 0
    response = await client.get(f"/jobs/{job_id}?wait={LONG}")
    assert (response.status_code, response.headers["retry-after"]) == (200, "2")


async def test_a_wait_outlasts_an_outage_of_the_database(db: PostgresJobsDB, proxy: Proxy) -> None:
    web = WebServer(PostgresJobsDB(proxy.url), NoScheduler())
    job = await claimed(db)
    async with web._lifespan(web.app), client_of(web) as client:
        asking = asyncio.ensure_future(client.get(f"/jobs/{job.id}?wait={LONG}"))
        await is_followed(web)
        proxy.is_refusing = True
        proxy.cut()
        tries = web._followers._loop.ticks

        async def has_tried() -> bool:
            return web._followers._loop.ticks >= tries + 3

        await eventually(has_tried, "tries of the reader")
        await complete(db, job)
        proxy.is_refusing = False

        assert (await asking).json()["status"] == "completed"


@pytest.mark.parametrize(
    ("age", "seconds"), [(0, 2), (9, 2), (11, 5), (61, 10), (601, 30), (-3, 2), (-7_200, 30)]
)
async def test_the_longer_a_job_takes_the_later_it_is_to_be_asked_for(
    client: httpx2.AsyncClient, db: PostgresJobsDB, age: int, seconds: int
) -> None:
    job_id = await db.insert_pending_job({}, JobOptions())
    async with db._borrowed() as connection:
        await connection.execute(
            "update haulage.jobs set run_at = now() - make_interval(secs => $1)", age
        )
    response = await client.get(f"/jobs/{job_id}")
    assert response.headers["retry-after"] == str(seconds)


async def test_one_question_serves_all_who_wait(database_url: str, db: PostgresJobsDB) -> None:
    asked: list[int] = []

    class Counting(PostgresJobsDB):
        async def list_news(self, cursors: Any, limit: int) -> Any:
            asked.append(len(cursors))
            return await super().list_news(cursors, limit)

    web = WebServer(Counting(database_url), NoScheduler())
    node = await new_node(db)
    jobs = [await claimed(db, node) for _ in range(3)]
    async with web._lifespan(web.app), client_of(web) as client:
        waiting_ = [
            asyncio.ensure_future(client.get(f"/jobs/{job.id}?wait={LONG}"))
            for job in jobs
            for _ in range(30)
        ]

        async def all_wait() -> bool:
            return len(web._followers) == 90 and bool(asked) and asked[-1] == 3

        await eventually(all_wait, "all of them told apart by job only")
        before = len(asked)
        for job in jobs:
            await complete(db, job)
        responses = await asyncio.gather(*waiting_)
        assert len(asked) - before < 20
        assert {response.json()["status"] for response in responses} == {"completed"}

        # Nobody follows: nobody asks.
        loop = web._followers._loop

        async def sleeps() -> bool:
            return not web._followers._somebody.is_set()

        await eventually(sleeps, "rest")
        ticks, count = loop.ticks, len(asked)
        await asyncio.sleep(0.6)
        assert len(asked) <= count
        assert loop.ticks <= ticks + 1
