"""Connections that fail: what is retried, what is reported, and that nothing stays behind."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import asyncpg
import pytest
from contract.steps import claimed, complete, new_job, new_node
from support.processes import frozen
from support.proxy import ANSWER, REQUEST, Proxy
from support.service import process_exists
from support.sql import our_pids
from support.waiting import eventually

from app.db.ids import new_id
from app.db.postgres import calls
from app.db.postgres.adapter import PostgresJobsDB
from app.db.postgres.connections import close_quietly
from app.db.urls import DatabaseURL
from app.domain.errors import DatabaseUnavailableError
from app.domain.jobs import Claim, JobStatus, NodeInfo, Progress
from app.domain.lifecycle import NodeLost, decide

CLAIM = Claim(new_id(), 1)
# Far below any time-out of a connection or a statement: whoever needs longer has waited for one.
QUICK_SECONDS = 5.0

CALLS: dict[str, Callable[[PostgresJobsDB], Awaitable[Any]]] = {
    "ping": lambda db: db.ping(),
    "insert_pending_job": lambda db: db.insert_pending_job({}),
    "get_job": lambda db: db.get_job(CLAIM.job_id),
    "list_attempts": lambda db: db.list_attempts(CLAIM.job_id),
    "claim_pending_jobs": lambda db: db.claim_pending_jobs(new_id(), 1),
    "count_running_jobs": lambda db: db.count_running_jobs(),
    "report_progress": lambda db: db.report_progress(CLAIM, Progress(0.5)),
    "finish_job": lambda db: db.finish_job(CLAIM, decide(NodeLost("x"), _Budget())),
    "rescue_job": lambda db: db.rescue_job(CLAIM, decide(NodeLost("x"), _Budget())),
    "register_node": lambda db: db.register_node(NodeInfo(new_id(), "n", 1, 1, 1.0, "0")),
    "renew_node": lambda db: db.renew_node(new_id()),
}


class _Budget:
    attempt = 1
    max_attempts = 1
    node_losses = 0


@pytest.fixture
async def db(proxy: Proxy) -> AsyncGenerator[PostgresJobsDB, None]:
    """An adapter behind the proxy, with a single connection."""
    adapter = PostgresJobsDB(proxy.url, max_connections=1, notify=False)
    yield adapter
    await adapter.close()


async def count_jobs(observer: "asyncpg.Connection[asyncpg.Record]") -> int:
    count: int = await observer.fetchval("select count(*) from haulage.jobs")
    return count


@pytest.mark.parametrize("lost", [REQUEST, ANSWER])
async def test_a_job_exists_once_when_the_connection_is_lost_during_its_insert(
    proxy: Proxy,
    db: PostgresJobsDB,
    observer: "asyncpg.Connection[asyncpg.Record]",
    lost: str,
) -> None:
    # The statement is prepared now: the next insert is one message and one answer.
    await new_job(db)
    proxy.losses = [lost]

    job_id = await new_job(db, {"n": 1})

    assert proxy.losses == []
    assert proxy.accepted == 2
    assert await count_jobs(observer) == 2
    assert (await db.get_job(job_id)).status is JobStatus.PENDING
    payloads = "select count(*) from haulage.job_payloads"
    assert await observer.fetchval(payloads) == 2


async def test_a_submitter_is_told_when_the_connection_is_lost_again(
    proxy: Proxy, db: PostgresJobsDB, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await new_job(db)
    proxy.losses = [REQUEST, REQUEST]

    with pytest.raises(DatabaseUnavailableError):
        await new_job(db)

    assert await count_jobs(observer) == 1
    await new_job(db)


async def test_an_end_is_settled_when_its_answer_was_lost(proxy: Proxy, db: PostgresJobsDB) -> None:
    job = await claimed(db)
    assert await complete(db, job) is True
    job = await claimed(db)
    proxy.losses = [ANSWER]

    with pytest.raises(DatabaseUnavailableError):
        await complete(db, job, '"kept"')

    # Repeating it is safe; that it is settled is what counts.
    assert await complete(db, job, '"again"') is False
    assert await db.get_result(job.id) == b'"kept"'


async def test_a_claim_belongs_to_the_node_when_its_answer_was_lost(
    proxy: Proxy, db: PostgresJobsDB
) -> None:
    node = await new_node(db)
    await db.claim_pending_jobs(node, 1)
    job_id = await new_job(db)
    proxy.losses = [ANSWER]

    with pytest.raises(DatabaseUnavailableError):
        await db.claim_pending_jobs(node, 1)

    [row] = await db.list_running_jobs(node)
    assert row.claim == Claim(job_id, 1)
    assert await db.count_running_jobs(node) == 1


async def test_every_call_says_quickly_that_the_server_is_away(
    proxy: Proxy, db: PostgresJobsDB, subtests: pytest.Subtests
) -> None:
    await db.ping()
    await proxy.stop()

    for name, call in CALLS.items():
        with subtests.test(name), pytest.raises(DatabaseUnavailableError):
            async with asyncio.timeout(QUICK_SECONDS):
                await call(db)


async def test_an_adapter_works_again_once_the_server_is_back(
    proxy: Proxy, db: PostgresJobsDB
) -> None:
    await db.ping()
    proxy.is_refusing = True
    proxy.cut()
    with pytest.raises(DatabaseUnavailableError):
        await db.ping()

    proxy.is_refusing = False
    await db.ping()


async def test_a_call_ends_with_its_time_out_when_the_network_is_silent(
    proxy: Proxy, db: PostgresJobsDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "PING_TIMEOUT_SECONDS", 0.2)
    await db.ping()
    proxy.is_silent = True

    # The connection that was there, then a new one.
    for _ in range(2):
        with pytest.raises(DatabaseUnavailableError):
            async with asyncio.timeout(QUICK_SECONDS):
                await db.ping()


async def test_a_cancelled_call_ends_at_once_when_the_network_is_silent(
    proxy: Proxy, db: PostgresJobsDB
) -> None:
    await db.ping()
    proxy.is_silent = True
    for name in ("finish_job", "rescue_job", "ping"):
        call = asyncio.ensure_future(CALLS[name](db))
        await asyncio.sleep(0)
        call.cancel()

        async with asyncio.timeout(QUICK_SECONDS):
            await asyncio.wait({call})
        assert call.cancelled(), name


async def test_closing_is_bounded_when_the_network_is_silent(
    proxy: Proxy, db: PostgresJobsDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "close_quietly", partial(close_quietly, timeout_seconds=0.2))
    await db.ping()
    proxy.is_silent = True

    async with asyncio.timeout(QUICK_SECONDS):
        await db.close()


async def test_a_lock_that_is_not_given_in_time_counts_as_unavailable(
    database_url: str, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    db = PostgresJobsDB(f"{database_url}?lock_timeout=50ms")
    job = await claimed(db)
    async with observer.transaction():
        await observer.execute("select from haulage.jobs for update")

        with pytest.raises(DatabaseUnavailableError, match="LockNotAvailable"):
            await complete(db, job)

    assert await complete(db, job) is True
    await db.close()


async def test_the_server_ends_a_statement_shortly_before_its_caller_gives_up(
    database_url: str, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    db = PostgresJobsDB(database_url, notify=False, command_timeout_seconds=1.0)
    job = await claimed(db)
    [session] = await _sessions(observer)
    async with observer.transaction():
        await observer.execute("select from haulage.jobs for update")
        with pytest.raises(DatabaseUnavailableError, match="statement timeout"):
            await complete(db, job)

    # The session is as good as before; nothing is left that goes on for nobody.
    assert await complete(db, job) is True
    assert await _sessions(observer) == [session]
    await db.close()


async def test_a_submission_with_all_its_tries_takes_no_longer_than_one_call_may(
    database_url: str, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    db = PostgresJobsDB(database_url, notify=False, command_timeout_seconds=1.0)
    await new_job(db)
    async with observer.transaction():
        await observer.execute("lock table haulage.jobs in access exclusive mode")
        began = time.monotonic()
        with pytest.raises(DatabaseUnavailableError, match="no answer in time"):
            await new_job(db)
        # Two tries of it would take 1.8 s at least.
        assert time.monotonic() - began < 1.7
    await db.close()


async def test_a_server_that_became_a_standby_counts_as_unavailable(database_url: str) -> None:
    db = PostgresJobsDB(f"{database_url}?default_transaction_read_only=on")

    with pytest.raises(DatabaseUnavailableError, match="read-only"):
        await new_job(db)
    await db.close()


async def test_faults_that_may_pass_count_as_unavailable_and_others_stay_what_they_are(
    database_url: str,
    observer: "asyncpg.Connection[asyncpg.Record]",
    subtests: pytest.Subtests,
) -> None:
    db = PostgresJobsDB(database_url, notify=False)
    job = await claimed(db)
    passing = {
        "40001": "serialisation failure",
        "40P01": "deadlock",
        "53100": "disk full",
        "53200": "out of memory",
        "57014": "statement cancelled",
        "57P01": "server shuts down",
        "08006": "connection failure",
    }
    staying = {"23514": "check violated", "42501": "no privilege", "XX000": "internal error"}
    for code, name in {**passing, **staying}.items():
        await observer.execute(
            "create or replace function fail() returns trigger language plpgsql as"
            f" $$ begin raise exception using errcode = '{code}', message = '{name}'; end $$"
        )
        await observer.execute(
            "create or replace trigger fail before update on haulage.jobs"
            " for each row execute function fail()"
        )
        expected = DatabaseUnavailableError if code in passing else asyncpg.PostgresError
        with subtests.test(name), pytest.raises(expected, match=name):
            await complete(db, job)

    await observer.execute("drop trigger fail on haulage.jobs")
    assert await complete(db, job) is True
    await db.close()


async def test_a_server_that_has_no_connection_left_is_unavailable(
    database_url: str, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    role = f"limited_{new_id().replace('-', '')}"
    await observer.execute(f"create role {role} login password 'x' connection limit 1")
    url = replace(DatabaseURL.parse(database_url), user=role, password="x").asyncpg_dsn
    first, second = PostgresJobsDB(url, max_connections=1), PostgresJobsDB(url)
    try:
        await first.ping()
        with pytest.raises(DatabaseUnavailableError, match="TooManyConnections"):
            async with asyncio.timeout(QUICK_SECONDS):
                await second.ping()

        await first.close()
        await eventually(lambda: _is_answered(second), "the connection that was given back")
    finally:
        await second.close()
        await eventually(lambda: _has_no_session(observer, role), "end of its sessions")
        await observer.execute(f"drop role {role}")


async def test_a_wrong_password_or_database_counts_as_unavailable(database_url: str) -> None:
    url = DatabaseURL.parse(database_url)
    for wrong in (replace(url, password="wrong"), replace(url, database="no_such_database")):
        db = PostgresJobsDB(wrong.asyncpg_dsn)
        with pytest.raises(DatabaseUnavailableError) as caught:
            await db.ping()
        assert "wrong" not in str(caught.value)
        await db.close()


async def test_nothing_is_left_when_calls_are_cancelled_at_any_moment(
    database_url: str, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    db = PostgresJobsDB(database_url, max_connections=4)
    lost = PostgresJobsDB(database_url)
    node = await new_node(lost)
    jobs = [await claimed(lost, node) for _ in range(20)]
    await lost.deregister_node(node)
    await lost.close()
    chance = random.Random(7)  # noqa: S311  the same moments in every run

    async def end_some(job_number: int) -> None:
        job = jobs[job_number % len(jobs)]
        await db.insert_pending_job({"n": job_number})
        await db.rescue_job(job.claim, decide(NodeLost(node), job))
        await complete(db, job)

    tasks = [asyncio.create_task(end_some(n)) for n in range(200)]
    while waiting := [task for task in tasks if not task.done()]:
        chance.choice(waiting).cancel()
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)

    # Every connection of the pool is there to be used, and none sits in a transaction.
    async with asyncio.timeout(QUICK_SECONDS):
        await asyncio.gather(*(db.ping() for _ in range(40)))
    # A group of submissions goes on for those that stay, and is soon through.

    async def are_all_idle() -> bool:
        return await _states(observer) <= {"idle"}

    await eventually(are_all_idle, "end of what was under way")
    assert len(await lost.list_running_jobs(node)) + len(
        [job for job in jobs if (await db.get_job(job.id)).status is JobStatus.PENDING]
    ) == len(jobs)
    await db.close()
    await lost.close()
    await eventually(lambda: _have_all_gone(observer), "end of every session")


async def test_a_session_s_settings_are_ours(
    database_url: str, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    db = PostgresJobsDB(database_url, application_name="haulage-here")
    await db.ping()

    names = await observer.fetch(
        "select application_name from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    assert [row[0] for row in names] == ["haulage-here"]
    pool = await db._connected()
    assert await pool.fetchval("show timezone") == "UTC"
    assert await pool.fetchval("show idle_in_transaction_session_timeout") == "1min"
    await db.close()


async def _is_answered(db: PostgresJobsDB) -> bool:
    try:
        await db.ping()
    except DatabaseUnavailableError:
        return False
    return True


async def _has_no_session(observer: "asyncpg.Connection[asyncpg.Record]", role: str) -> bool:
    found: int = await observer.fetchval(
        "select count(*) from pg_stat_activity where usename = $1", role
    )
    return found == 0


async def _sessions(observer: "asyncpg.Connection[asyncpg.Record]") -> list[int]:
    rows = await observer.fetch(
        "select pid from pg_stat_activity"
        " where datname = current_database() and application_name like 'haulage%'"
    )
    return [row[0] for row in rows]


async def _states(observer: "asyncpg.Connection[asyncpg.Record]") -> set[str]:
    rows = await observer.fetch(
        "select state from pg_stat_activity"
        " where datname = current_database() and application_name like 'haulage%'"
    )
    return {row[0] for row in rows}


async def _have_all_gone(observer: "asyncpg.Connection[asyncpg.Record]") -> bool:
    return not await _states(observer)


async def test_a_session_that_takes_no_writes_any_more_does_not_answer_a_ping(
    db: PostgresJobsDB,
) -> None:
    await db.ping()
    async with db._borrowed() as connection:
        await connection.execute("set default_transaction_read_only = on")

    with pytest.raises(DatabaseUnavailableError, match="no writes"):
        await db.ping()


async def test_one_call_pays_for_all_sessions_that_a_silent_server_has_frozen(
    database_url: str,
) -> None:
    db = PostgresJobsDB(database_url, application_name="frozen", command_timeout_seconds=1.0)
    try:
        # As many sessions as calls at the same time.
        await asyncio.gather(*(db.count_running_jobs() for _ in range(6)))
        pids = await asyncio.to_thread(our_pids, database_url, "frozen")
        if not all(process_exists(pid) for pid in pids):
            pytest.skip("the server's processes are not on this machine")
        assert len(pids) > 3

        with ExitStack() as thawing:
            for pid in pids:
                thawing.enter_context(frozen(pid))
            with pytest.raises(DatabaseUnavailableError):
                await db.count_running_jobs()
            for _ in range(len(pids)):
                assert await db.count_running_jobs() == 0
    finally:
        await db.close()
