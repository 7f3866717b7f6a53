"""Submissions beside other transactions, over failing connections, and in groups."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from contract.steps import keyed
from support.proxy import ANSWER, Proxy
from support.sessions import count, until_waiting
from support.waiting import eventually

from app.db.ids import new_id
from app.db.postgres.adapter import PostgresJobsDB
from app.db.postgres.statements import STATEMENTS
from app.db.postgres.submitting import BATCH_PLACES, WAITING_PLACES
from app.domain.errors import DatabaseUnavailableError, IdempotencyKeyReusedError
from app.domain.jobs import JobOptions
from app.domain.submissions import Submission

HOLD = (
    "insert into haulage.jobs (id, pipeline, idempotency_key, payload_hash)"
    " values ($1, 'p', $3, $2)"
)


@pytest.fixture
async def db(database_url: str) -> AsyncGenerator[PostgresJobsDB, None]:
    adapter = PostgresJobsDB(database_url, notify=False)
    yield adapter
    await adapter.close()


@asynccontextmanager
async def rival(
    url: str, job_id: str, fingerprint: bytes | None
) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """Another session that has used the key in a transaction that is still open."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("begin")
        await connection.execute(HOLD, UUID(job_id), fingerprint, "key")
        yield connection
    finally:
        await connection.close()


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("company", ["alone", "in a group", "in a batch"])
async def test_whoever_meets_an_open_rival_gets_its_job_or_its_place(
    database_url: str,
    db: PostgresJobsDB,
    observer: "asyncpg.Connection[asyncpg.Record]",
    end: str,
    company: str,
) -> None:
    theirs, options = new_id(), keyed()
    async with rival(database_url, theirs, options.fingerprint) as holder:
        others = []
        if company == "in a batch":
            submitting: asyncio.Task[Any] = asyncio.create_task(
                db.insert_pending_jobs([Submission("{}"), Submission("{}", options)])
            )
        else:
            submitting = asyncio.create_task(db.insert_pending_job({}, options))
        if company == "in a group":
            others = [asyncio.create_task(db.insert_pending_job({})) for _ in range(10)]
        await until_waiting(observer, holder)
        # They do not wait for a transaction that is none of theirs.
        stored = await asyncio.gather(*others)
        await until_waiting(observer, holder)
        assert not submitting.done()

        await holder.execute(end)
        answer = await submitting

    job_id = answer.job_ids[1] if company == "in a batch" else answer
    assert job_id == (theirs if end == "commit" else options.job_id)
    jobs, payloads, events = await count(observer)
    new = len(stored) + (company == "in a batch") + (end == "rollback")
    assert (payloads, events) == (new, new)
    assert jobs == new + (end == "commit")


async def test_whoever_meets_an_open_rival_with_other_content_is_refused_once_it_commits(
    database_url: str, db: PostgresJobsDB, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    # Of content that nobody has noted it cannot be said that it is equal.
    for fingerprint in (b"x", None):
        async with rival(database_url, new_id(), fingerprint) as holder:
            submitting = asyncio.create_task(db.insert_pending_job({}, keyed()))
            await until_waiting(observer, holder)
            await holder.execute("commit")
            with pytest.raises(IdempotencyKeyReusedError):
                await submitting
        await observer.execute("delete from haulage.jobs")


async def test_keys_are_taken_in_one_order_whatever_the_order_of_the_rows(
    database_url: str, db: PostgresJobsDB, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    later = keyed("later")
    submissions = [Submission("{}", later), *[Submission("{}")] * 300, Submission("{}", keyed())]
    async with rival(database_url, new_id(), None) as holder:
        submitting = asyncio.create_task(db.insert_pending_jobs(submissions))
        await until_waiting(observer, holder)

        # It waits for the first key without having taken the later one: no circle can come of it.
        theirs = new_id()
        await observer.execute("set lock_timeout = '5s'")
        await observer.execute(HOLD, UUID(theirs), later.fingerprint, "later")
        await holder.execute("rollback")
        receipt = await submitting

    assert receipt.job_ids[0] == theirs
    assert receipt.replayed == {0}


async def test_a_job_that_goes_away_between_two_looks_leaves_its_key(
    db: PostgresJobsDB,
    observer: "asyncpg.Connection[asyncpg.Record]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = await db.insert_pending_job({}, keyed())
    options = keyed()
    find = STATEMENTS["find_jobs_by_key"].sql
    original = asyncpg.Connection.fetch
    looks = 0

    async def fetch(self: Any, query: str, *arguments: Any, **named: Any) -> Any:
        nonlocal looks
        if query == find:
            looks += 1
            await observer.execute("delete from haulage.jobs where id = $1", UUID(first))
        return await original(self, query, *arguments, **named)

    monkeypatch.setattr(asyncpg.Connection, "fetch", fetch)

    assert await db.insert_pending_job({}, options) == options.job_id
    assert looks == 1


async def test_many_who_wait_for_a_key_leave_connections_to_others(
    database_url: str, db: PostgresJobsDB, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    theirs = new_id()
    async with rival(database_url, theirs, keyed().fingerprint) as holder:
        waiting: list[asyncio.Task[Any]] = [
            asyncio.create_task(db.insert_pending_job({}, keyed())) for _ in range(30)
        ]
        waiting += [
            asyncio.create_task(db.insert_pending_jobs([Submission("{}", keyed())]))
            for _ in range(10)
        ]
        # Large ones go alone from the beginning.
        large = {"a": "x" * 100_000}
        waiting += [asyncio.create_task(db.insert_pending_job(large, keyed())) for _ in range(10)]
        await until_waiting(observer, holder)
        blocked = "select count(*) from pg_stat_activity where $1 = any (pg_blocking_pids(pid))"
        most = WAITING_PLACES + BATCH_PLACES

        async def have_tried() -> bool:
            return len(db._waiting_places._waiters or ()) == 40 - WAITING_PLACES

        await eventually(have_tried, "those who are alone have made their first try")
        for _ in range(10):
            async with asyncio.timeout(1.0):
                await db.ping()
                await db.insert_pending_job({})
                await db.insert_pending_job({}, keyed(new_id()))
            assert await observer.fetchval(blocked, holder.get_server_pid()) <= most
        assert not any(task.done() for task in waiting)

        await holder.execute("commit")
        answers = await asyncio.gather(*waiting)

    assert {a if isinstance(a, str) else a.job_ids[0] for a in answers} == {theirs}


# -- lost answers -----------------------------------------------------------------------------


@pytest.mark.parametrize("is_batch", [False, True], ids=["single", "batch"])
async def test_a_key_whose_answer_was_lost_is_not_called_replayed(
    proxy: Proxy,
    observer: "asyncpg.Connection[asyncpg.Record]",
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_batch: bool,
) -> None:
    db = PostgresJobsDB(proxy.url, max_connections=1, notify=False)
    # The statements are prepared now: each is one message and one answer.
    await db.insert_pending_jobs([Submission("{}", keyed("other"))])
    await db.insert_pending_job({}, keyed("other"))
    options = keyed()
    if is_batch:
        execute = asyncpg.Connection.execute
        commits = 0

        async def losing_the_first_commit(self: Any, query: str, *arguments: Any) -> Any:
            nonlocal commits
            if query == "commit":
                commits += 1
                proxy.losses = [ANSWER] if commits == 1 else []
            return await execute(self, query, *arguments)

        monkeypatch.setattr(asyncpg.Connection, "execute", losing_the_first_commit)
        receipt = await db.insert_pending_jobs(
            [Submission("{}"), Submission("{}", options), Submission("{}")]
        )
        assert receipt.job_ids[1] == options.job_id
        assert receipt.replayed == frozenset()
        assert commits == 2
        assert (await db.get_batch(receipt.id or "")).total == 3
    else:
        proxy.losses = [ANSWER]
        assert await db.insert_pending_job({}, options) == options.job_id

    assert proxy.losses == []
    expected = 4 if is_batch else 2
    assert await count(observer) == (expected, expected, expected)
    await db.close()


async def test_a_batch_is_not_tried_again_when_the_first_try_took_its_time(proxy: Proxy) -> None:
    db = PostgresJobsDB(proxy.url, notify=False, command_timeout_seconds=0.3)
    await db.ping()
    proxy.is_silent = True
    before = proxy.accepted

    with pytest.raises(DatabaseUnavailableError):
        await db.insert_pending_jobs([Submission("{}")])

    assert proxy.accepted == before
    await db.close()


# -- groups -----------------------------------------------------------------------------------


async def test_those_who_submit_at_once_share_their_commits(
    db: PostgresJobsDB, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await asyncio.gather(
        *(db.insert_pending_job({"n": n}, JobOptions(tags=(str(n),))) for n in range(200))
    )

    assert await count(observer) == (200, 200, 200)
    assert await observer.fetchval("select count(distinct xmin::text) from haulage.jobs") < 20
    mismatched = (
        "select count(*) from haulage.jobs join haulage.job_payloads on job_id = id"
        " where tags[1] <> payload ->> 'n'"
    )
    assert await observer.fetchval(mismatched) == 0


async def test_a_row_that_the_database_refuses_harms_no_other(
    db: PostgresJobsDB, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await observer.execute(
        "alter table haulage.jobs add constraint no_bad_queue check (queue <> 'bad')"
    )
    queues = ["bad" if n % 7 == 3 else "good" for n in range(30)]

    answers = await asyncio.gather(
        *(db.insert_pending_job({}, JobOptions(queue=queue)) for queue in queues),
        db.insert_pending_job({}, JobOptions(priority=40_000)),
        return_exceptions=True,
    )

    *answers, out_of_range = answers
    assert isinstance(out_of_range, asyncpg.DataError)
    for queue, answer in zip(queues, answers, strict=True):
        if queue == "bad":
            assert isinstance(answer, asyncpg.CheckViolationError)
        else:
            assert isinstance(answer, str)
    assert await count(observer) == (queues.count("good"),) * 3


async def test_rows_of_one_key_in_one_group_make_one_job(
    db: PostgresJobsDB, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    options = [keyed(), keyed(), keyed(payload={"other": 1}), keyed("second")]

    answers = await asyncio.gather(
        *(db.insert_pending_job({}, one) for one in options), return_exceptions=True
    )

    assert await observer.fetchval("select count(distinct xmin::text) from haulage.jobs") == 1
    assert await count(observer) == (2, 2, 2)
    errors = [answer for answer in answers if isinstance(answer, IdempotencyKeyReusedError)]
    assert answers[3] == options[3].job_id
    # Whichever of them came first in the group.
    assert len(errors) in (1, 2)
    assert len({answer for answer in answers[:3] if isinstance(answer, str)}) == 1


async def test_nothing_is_left_of_submitters_who_leave_at_any_moment(
    db: PostgresJobsDB, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    chance = random.Random(3)  # noqa: S311  the same moments in every run
    texts = ["{}", '"' + "x" * 100_000 + '"']
    tasks = [
        asyncio.create_task(
            db.insert_pending_job(texts[n % 10 == 0], keyed(str(n % 200), {"n": n}))
        )
        for n in range(500)
    ]
    while waiting := [task for task in tasks if not task.done()]:
        for task in chance.sample(waiting, min(3, len(waiting))):
            task.cancel()
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)

    await db.insert_pending_job({})
    # Each connection of the pool is there to be used, and none sits in a transaction.
    async with asyncio.timeout(5.0):
        await asyncio.gather(*(db.ping() for _ in range(40)))
    jobs, payloads, events = await count(observer)
    assert jobs == payloads == events

    async def is_quiet() -> bool:
        return not db._groups._tasks and not await observer.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database()"
            " and state <> 'idle' and pid <> pg_backend_pid()"
        )

    await eventually(is_quiet, "every session idle and no task left")


async def test_what_is_under_way_is_stored_before_the_adapter_closes(
    database_url: str, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    db = PostgresJobsDB(database_url, notify=False)
    await db.open()
    tasks = [asyncio.create_task(db.insert_pending_job({})) for _ in range(300)]
    await asyncio.sleep(0)

    await db.close()

    assert len({task.result() for task in tasks}) == 300
    assert await count(observer) == (300, 300, 300)


async def test_closing_is_bounded_while_a_submission_gets_no_answer(proxy: Proxy) -> None:
    db = PostgresJobsDB(proxy.url, notify=False)
    await db.insert_pending_job({})
    proxy.is_silent = True
    tasks = [asyncio.create_task(db.insert_pending_job({})) for _ in range(20)]
    await asyncio.sleep(0)

    async with asyncio.timeout(5.0):
        await db.close()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(answer) for answer in answers} == {DatabaseUnavailableError}


# -- plans ------------------------------------------------------------------------------------


async def test_a_key_is_looked_up_by_its_index(
    db: PostgresJobsDB, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await observer.execute(
        "insert into haulage.jobs (id, pipeline, idempotency_key, batch_id)"
        " select gen_random_uuid(), 'p', 'key ' || n, gen_random_uuid()"
        " from generate_series(1, 20000) n"
    )
    await observer.execute("analyze haulage.jobs")

    for name, arguments in {
        "find_jobs_by_key": "(array_fill(''::text, '{100}'), array_fill('x'::text, '{100}'))",
        "get_batch": "(gen_random_uuid())",
    }.items():
        await observer.execute(f"prepare {name} as {STATEMENTS[name].sql}")
        plan = await observer.fetchval(f"explain (format json) execute {name} {arguments}")
        assert "Seq Scan" not in plan
    await db.ping()
