"""`GET /jobs/{id}/events`: the whole story once, whatever happens to clients and database."""

import asyncio
import random
from typing import Any

import httpx2
import pytest
from api.conftest import client_of, web_server
from contract.steps import RAISED, claimed, complete, new_job, new_node
from contract.stores import PostgresStore
from support.proxy import Proxy
from support.streams import Stream, Told, stream
from support.waiting import eventually

from app.api import events
from app.api.following import MAX_QUEUED
from app.api.server import NoScheduler, WebServer
from app.db.ids import new_id
from app.db.postgres.adapter import PostgresJobsDB
from app.domain.jobs import ClaimedJob, Progress
from app.domain.lifecycle import decide


def path(job: ClaimedJob | str) -> str:
    return f"/jobs/{job if isinstance(job, str) else job.id}/events"


def stored(told: list[Told]) -> list[str]:
    """Statuses and stages in their order."""
    return [
        event.data["status"] if event.name == "status" else event.data["stage"]
        for event in told
        if event.name in {"status", "milestone"}
    ]


async def enter(db: PostgresJobsDB, job: ClaimedJob, *stages: str) -> None:
    for stage in stages:
        await db.report_progress(job.claim, Progress(0.5, stage), is_milestone=True)


async def insert_milestones(db: PostgresJobsDB, job_id: str, count: int) -> None:
    async with db._borrowed() as connection:
        await connection.execute(
            "insert into haulage.job_events (job_id, claim_no, attempt, kind, stage, fraction)"
            " select $1::text::uuid, 1, 1, 'milestone', 's' || n, 0.5"
            " from generate_series(1, $2) n order by n",
            job_id,
            count,
        )


async def nobody_follows(web: WebServer) -> None:
    async def nobody() -> bool:
        return len(web._followers) == 0

    await eventually(nobody, "end of all followers")


async def test_a_job_is_told_from_its_submission_to_its_end(
    web: WebServer, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    await db.report_progress(job.claim, Progress(0.2, "load", "reading"), is_milestone=True)
    async with stream(web.app, path(job)) as client:
        before = [await client.next() for _ in range(5)]
        assert client.status == 200
        assert client.headers["content-type"].startswith("text/event-stream")
        assert client.headers["cache-control"] == "no-cache"
        assert client.headers["x-accel-buffering"] == "no"
        await db.report_progress(job.claim, Progress(0.9, "load", "nearly"))
        live = [await client.next()]
        await complete(db, job)
        live += await client.rest()

    [milestone] = await db.list_milestones(job.id)
    assert before[0] == Told("retry", 2_000)
    assert [event and (event.name, event.data.get("status")) for event in before[1:3]] == [
        ("status", "pending"),
        ("status", "running"),
    ]
    assert before[3] == Told(
        "milestone",
        {
            "stage": "load",
            "fraction": 0.2,
            "message": "reading",
            "attempt": 1,
            "at": milestone.created_at.isoformat().replace("+00:00", "Z"),
        },
        milestone.id,
    )
    # Progress is no place to go on from.
    reading = {"fraction": 0.2, "stage": "load", "message": "reading"}
    assert before[4] == Told("progress", reading, None)
    nearly = {"fraction": 0.9, "stage": "load", "message": "nearly"}
    assert live[0] == Told("progress", nearly, None)
    assert [event and event.name for event in live[1:]] == ["status", "progress", "end"]
    assert live[1] is not None
    assert live[1].id == (await db.get_job(job.id)).last_event_id
    assert live[2] == Told("progress", {**nearly, "fraction": 1.0}, None)
    assert live[3] == Told("end", {"id": job.id, "status": "completed"}, None)
    assert client.is_complete
    assert len(web._followers) == 0


async def test_the_error_is_told_with_the_status(web: WebServer, db: PostgresJobsDB) -> None:
    job = await claimed(db)
    await db.finish_job(job.claim, decide(RAISED, job))
    async with stream(web.app, path(job)) as client:
        told = await client.rest()

    assert (told[-2].data["status"], told[-2].data["message"]) == ("failed", "no")
    assert told[-1].data["status"] == "failed"


@pytest.mark.parametrize("way", ["header", "query", "both"])
async def test_a_client_that_comes_again_goes_on_where_it_was(
    web: WebServer, db: PostgresJobsDB, way: str
) -> None:
    job = await claimed(db)
    await enter(db, job, "one", "two", "three")
    await complete(db, job)
    second = (await db.list_milestones(job.id))[1].id
    query = {"header": "", "query": f"?last_event_id={second}", "both": "?last_event_id=0"}[way]
    headers = {} if way == "query" else {"last_event_id": str(second)}

    async with stream(web.app, "/v1" + path(job) + query, **headers) as client:
        told = await client.rest()

    assert stored(told) == ["three", "completed"]
    last = told[-3].id
    # After all of it: nothing but the end.
    async with stream(web.app, path(job), last_event_id=str(last)) as client:
        assert [event.name for event in await client.rest()] == ["retry", "progress", "end"]


@pytest.mark.parametrize("last", ["x", "-1", str(2**63), "1.5", "1 2", "\u0663x"])
async def test_a_place_that_is_none_is_refused(
    client: httpx2.AsyncClient, db: PostgresJobsDB, last: str
) -> None:
    job_id = await new_job(db)
    for response in (
        await client.get(path(job_id), params={"last_event_id": last}),
        await client.get(path(job_id), headers=[(b"last-event-id", last.encode())]),
    ):
        assert response.status_code == 422
        assert response.headers["content-type"] == "application/problem+json"


async def test_an_unknown_job_is_refused_before_the_stream_begins(
    web: WebServer, client: httpx2.AsyncClient
) -> None:
    for job_id in (new_id(), "none", "%25"):
        response = await client.get(path(job_id))
        assert response.status_code == 404
        assert response.headers["content-type"] == "application/problem+json"
    assert len(web._followers) == 0


async def test_a_retried_job_is_followed_through_its_lives(
    web: WebServer, db: PostgresJobsDB
) -> None:
    node = await new_node(db)
    job = await claimed(db, node)
    await enter(db, job, "first")
    await complete(db, job)
    await db.retry_job(job.id)

    async with stream(web.app, path(job)) as client:
        told = await client.until("status", status="pending", attempt=0)
        told += await client.until("status", status="pending", attempt=0)
        again = await db.claim_next_pending_job(node)
        assert again is not None
        await enter(db, again, "second")
        told += await client.until("milestone", stage="second")
        await complete(db, again)
        told += await client.rest()

    assert stored(told) == [
        *("pending", "running", "first", "completed"),
        *("pending", "running", "second", "completed"),
    ]
    assert [event.name for event in told].count("end") == 1
    assert told[-1].name == "end"


async def test_a_job_that_ends_and_is_retried_between_two_looks_goes_on(
    web: WebServer, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    async with stream(web.app, path(job)) as client:
        await client.until("status", status="running")
        async with db._borrowed() as connection, connection.transaction():
            # In one transaction no look can fall between them.
            await connection.execute(
                "with ended as (update haulage.jobs set status = 'failed', finished_at = now()"
                " returning id) insert into haulage.job_events"
                " (job_id, claim_no, attempt, kind, stage)"
                " select id, 1, 1, 'status', 'failed' from ended"
            )
            await connection.execute(
                "with revived as (update haulage.jobs set status = 'pending', finished_at = null"
                " returning id) insert into haulage.job_events"
                " (job_id, claim_no, attempt, kind, stage)"
                " select id, 1, 0, 'status', 'pending' from revived"
            )
        told = await client.until("status", status="pending")
        assert stored(told) == ["failed", "pending"]
        await db.cancel_job(job.id)
        told = await client.rest()
    assert stored(told) == ["cancelled"]
    assert told[-1].data == {"id": job.id, "status": "cancelled"}


async def test_the_stream_of_a_job_that_is_deleted_ends(web: WebServer, db: PostgresJobsDB) -> None:
    job_id = await new_job(db)
    async with stream(web.app, path(job_id)) as client:
        await client.until("status", status="pending")
        async with db._borrowed() as connection:
            await connection.execute("delete from haulage.jobs")
        [end] = await client.rest()
    assert end == Told("end", {"id": job_id, "status": None})


async def test_a_long_story_comes_whole_to_everybody_whatever_they_have_already(
    web: WebServer, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    count = 3 * MAX_QUEUED + 1
    await insert_milestones(db, job.id, count)
    await complete(db, job)
    milestones = await db.list_milestones(job.id)
    starts = [0, 0, milestones[100].id, milestones[-2].id]
    clients = [Stream(web.app, path(job), {"last-event-id": str(start)}) for start in starts]
    told = await asyncio.gather(*(client.rest() for client in clients))

    for start, events_ in zip(starts, told, strict=True):
        expected = [m.stage for m in milestones if m.id > start]
        assert [stage for stage in stored(events_) if stage.startswith("s")] == expected
        ids = [event.id for event in events_ if event.id is not None]
        assert ids == sorted(set(ids))
        assert events_[-1].name == "end"


async def test_an_event_that_commits_after_a_higher_one_is_missed_by_nobody(
    database_url: str, db: PostgresJobsDB
) -> None:
    store = PostgresStore(database_url)
    node = await new_node(db)
    late, early = await claimed(db, node), await claimed(db, node)
    servers = [web_server(database_url) for _ in range(2)]
    clients = [Stream(server.app, path(job), {}) for server in servers for job in (late, early)]
    try:
        for client in clients:
            await client.until("status", status="running")
        async with store.writing_milestone(late, "lower") as lower:
            await enter(db, early, "higher")
            for client in clients[1::2]:
                [told, _progress] = [await client.next(), await client.next()]
                assert told is not None
                assert told.id is not None
                assert told.id > lower
            # On the same job the next one has to wait, and comes second.
            second = asyncio.ensure_future(enter(db, late, "second"))
            await store.until_blocked(1)
        await second
        for job in (late, early):
            await complete(db, job)
        rests = [await client.rest() for client in clients]
    finally:
        for server in servers:
            await server._followers.close()
            await server._db.close()
    assert [stored(rest) for rest in rests] == [
        ["lower", "second", "completed"],
        ["completed"],
    ] * 2


async def test_clients_that_come_and_go_are_told_everything_once(
    web: WebServer, db: PostgresJobsDB
) -> None:
    chance = random.Random(7)  # noqa: S311  a schedule, no secret
    node = await new_node(db)
    jobs = [await claimed(db, node) for _ in range(3)]

    async def follow(job: ClaimedJob) -> list[Told]:
        told: list[Told] = []
        last = 0
        while True:
            async with stream(web.app, path(job), last_event_id=str(last)) as client:
                for _ in range(chance.randrange(1, 12)):
                    event = await client.next()
                    if event is None:
                        return told
                    if event.id is not None:
                        told.append(event)
                        last = event.id

    async def work(job: ClaimedJob) -> None:
        for n in range(40):
            await db.report_progress(
                job.claim, Progress(n / 40, f"s{n}"), is_milestone=chance.random() < 0.8
            )
        await complete(db, job)

    following = [asyncio.ensure_future(follow(job)) for job in jobs * 3]
    await asyncio.gather(*(work(job) for job in jobs))
    told = await asyncio.gather(*following)

    for job, events_ in zip(jobs * 3, told, strict=True):
        milestones = [m.stage for m in await db.list_milestones(job.id)]
        assert stored(events_) == ["pending", "running", *milestones, "completed"]
    await nobody_follows(web)


async def test_a_slow_client_loses_nothing_and_takes_up_no_more_than_its_share(
    web: WebServer, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    slow, quick = (Stream(web.app, path(job), {}) for _ in range(2))
    await slow.until("status", status="running")
    await quick.until("status", status="running")
    slow.is_reading.clear()
    # At the first one it hangs, the next ones wait: what comes then has room in part.
    told = []
    for stages in (["one"], ["two", "three"]):
        await enter(db, job, *stages)
        told += await quick.until("milestone", stage=stages[-1])
    count = 5 * MAX_QUEUED
    await insert_milestones(db, job.id, count)
    told += await quick.until("milestone", stage=f"s{count}")
    assert len(stored(told)) == count + 3
    for follower in web._followers._followers:
        assert len(follower._events) <= MAX_QUEUED  # type: ignore[attr-defined]

    await complete(db, job)
    assert stored(await quick.rest()) == ["completed"]
    slow.is_reading.set()
    everything = ["one", "two", "three", *(f"s{n}" for n in range(1, count + 1)), "completed"]
    assert stored(await slow.rest()) == everything


async def test_a_client_that_takes_nothing_is_given_up_and_may_come_again(
    web: WebServer,
    db: PostgresJobsDB,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(events, "SEND_SECONDS", 0.1)
    job = await claimed(db)
    client = Stream(web.app, path(job), {})
    told = await client.until("status", status="running")
    client.is_reading.clear()
    await enter(db, job, "missed")

    await asyncio.wait_for(client.task, 10)
    assert not client.is_complete
    assert len(web._followers) == 0
    assert "is given up" in caplog.text
    await complete(db, job)
    async with stream(web.app, path(job), last_event_id=str(told[-1].id)) as client:
        assert stored(await client.rest()) == ["missed", "completed"]


async def test_streams_end_with_a_word_when_the_process_is_about_to_stop(
    web: WebServer, client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    clients = [Stream(web.app, path(job), {}) for _ in range(5)]
    for following in clients:
        await following.until("status", status="running")
    web.refuse_traffic()

    for following in clients:
        assert await following.rest() == [Told("closing", {"reason": "stopping"})]
        assert following.is_complete
    refused = await client.get(path(job))
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
    assert refused.json()["type"] == "urn:haulage:problem:stopping"
    await nobody_follows(web)


async def test_a_stream_survives_an_outage_of_the_database(
    db: PostgresJobsDB, proxy: Proxy
) -> None:
    web = WebServer(PostgresJobsDB(proxy.url), NoScheduler())
    job = await claimed(db)
    async with web._lifespan(web.app):
        client = Stream(web.app, path(job), {})
        told = await client.until("status", status="running")
        for n in range(3):
            proxy.is_refusing = True
            proxy.cut()
            tries = web._followers._loop.ticks
            await enter(db, job, f"away {n}")

            async def has_tried(tries: int = tries) -> bool:
                return web._followers._loop.ticks >= tries + 2

            await eventually(has_tried, "tries of the reader")
            proxy.is_refusing = False
            told += await client.until("milestone", stage=f"away {n}")
        await complete(db, job)
        told += await client.rest()
    assert stored(told) == ["pending", "running", "away 0", "away 1", "away 2", "completed"]


async def test_a_stream_cannot_begin_while_the_database_is_away(
    db: PostgresJobsDB, proxy: Proxy
) -> None:
    web = WebServer(PostgresJobsDB(proxy.url), NoScheduler())
    job_id = await new_job(db)
    async with web._lifespan(web.app), client_of(web) as client:
        proxy.is_refusing = True
        proxy.cut()
        response = await client.get(path(job_id))
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")


async def test_followers_are_bounded(
    web: WebServer, client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    web._followers._max_followers = 2
    async with stream(web.app, path(job)) as one, stream(web.app, path(job)) as two:
        for following in (one, two):
            await following.until("status", status="running")
        refused = await client.get(path(job))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert refused.json()["type"] == "urn:haulage:problem:too-many-followers"
        await two.leave()
        await complete(db, job)
        assert (await client.get(path(job))).status_code == 200


async def test_a_quiet_stream_is_kept_open_by_comments(
    web: WebServer, db: PostgresJobsDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "PING_SECONDS", 0.05)
    job_id = await new_job(db)
    async with stream(web.app, path(job_id)) as client:

        async def has_pinged() -> bool:
            return client.body.count(b": ping\n\n") >= 2

        await eventually(has_pinged, "two comments")


async def test_a_client_that_leaves_leaves_nothing_behind(
    web: WebServer, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    async with stream(web.app, path(job)) as client:
        await client.until("status", status="running")
    before = len(asyncio.all_tasks())
    for blocked in (False, True) * 20:
        client = Stream(web.app, path(job), {})
        await client.until("status", status="running")
        if blocked:
            client.is_reading.clear()
            await db.report_progress(job.claim, Progress(0.5, new_id()))
        await client.leave()
        assert len(web._followers) == 0
    assert len(asyncio.all_tasks()) == before


async def test_the_server_itself_breaks_off_what_does_not_end_in_time(
    web: WebServer, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    client = Stream(web.app, path(job), {})
    await client.until("status", status="running")
    client.is_reading.clear()
    web.refuse_traffic()
    web.end_requests()

    found: Any = (await asyncio.gather(client.task, return_exceptions=True))[0]
    assert isinstance(found, asyncio.CancelledError)
    assert len(web._followers) == 0
