"""`haulage.enqueue` inside transactions: all or nothing, one job a key, wake-ups and rights."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import asyncpg
import pytest
from contract.steps import keyed
from support.enqueueing import DEFAULT, announce, by_request, enqueue, refusal
from support.sessions import Ear, count, until_waiting

from app.db.postgres.adapter import PostgresJobsDB
from app.domain.errors import IdempotencyKeyReusedError
from app.domain.jobs import LEAST_MEMORY_LIMIT_BYTES

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

REUSED = "JQ001"
INSTANT = datetime(2031, 5, 17, 10, 30, tzinfo=UTC)


@pytest.fixture(autouse=True)
async def _announced(database_url: str) -> None:
    await announce(database_url)


@pytest.fixture
async def db(database_url: str) -> AsyncGenerator[PostgresJobsDB, None]:
    adapter = PostgresJobsDB(database_url, notify=False)
    yield adapter
    await adapter.close()


async def test_a_job_never_was_when_its_transaction_rolls_back(
    observer: Connection, ear: Ear
) -> None:
    transaction = observer.transaction()
    await transaction.start()
    await enqueue(observer, {})
    assert await count(observer) == (1, 1, 1)
    await transaction.rollback()

    assert await count(observer) == (0, 0, 0)
    assert await ear.all_heard() == []


async def test_what_a_savepoint_takes_back_is_gone_and_the_rest_stays(
    observer: Connection, ear: Ear
) -> None:
    async with observer.transaction():
        kept = await enqueue(observer, {}, idempotency_key="kept")
        inner = observer.transaction()
        await inner.start()
        await enqueue(observer, {}, idempotency_key="gone")
        await inner.rollback()
        with pytest.raises(asyncpg.InvalidParameterValueError):
            async with observer.transaction():
                await enqueue(observer, {}, priority=10**6)
        again = await enqueue(observer, {}, idempotency_key="gone")

    stored = await observer.fetch("select id::text from haulage.jobs order by id")
    assert [row["id"] for row in stored] == [kept, again]
    assert len(await ear.all_heard()) == 1


async def test_schedulers_are_woken_once_for_a_transaction_and_only_for_what_is_due(
    observer: Connection, ear: Ear
) -> None:
    async with observer.transaction():
        for _ in range(5):
            await enqueue(observer, {}, idempotency_key="k")
            await enqueue(observer, {})
        assert ear.heard == []
    assert await ear.all_heard() == [""]

    await enqueue(observer, {}, delay_seconds=60.0)
    await enqueue(observer, {}, run_at=datetime.now(UTC) + timedelta(minutes=1))
    await enqueue(observer, {}, idempotency_key="k")
    assert await ear.all_heard() == [""]

    await enqueue(observer, {}, run_at=datetime.now(UTC) - timedelta(minutes=1))
    assert await ear.all_heard() == ["", ""]


@pytest.mark.parametrize("off", ["off", "OFF", "false", "no", "0"])
async def test_nobody_is_woken_when_the_session_says_so(
    observer: Connection, ear: Ear, off: str
) -> None:
    await observer.execute(f"set haulage.notify = '{off}'")
    await enqueue(observer, {})
    assert await ear.all_heard() == []

    await observer.execute("set haulage.notify = on")
    await enqueue(observer, {})
    assert await ear.all_heard() == [""]


# -- idempotency keys -----------------------------------------------------------------------------


async def test_a_key_makes_one_job_however_its_content_is_spelled(observer: Connection) -> None:
    call = "select haulage.enqueue($1::text::jsonb, idempotency_key => 'k', {})::text"
    plain = "metadata => '{\"m\": 1.0}', timeout_seconds => 0.3"
    first = await observer.fetchval(call.format(plain), '{"a": 1, "b": [1.0, "ü"]}')

    # Settings that change how numbers are written.
    await observer.execute("set extra_float_digits = -5; set timezone = 'Asia/Kolkata'")
    for text in ('{"b":[1,"\\u00fc"],"a":1.00}', '{ "a":0,"a": 1e0, "b": [10e-1, "ü"]}'):
        assert await observer.fetchval(call.format(plain), text) == first
    spelled = f"{plain}, queue => 'default', priority => 0, delay_seconds => 0, tags => '{{}}'"
    assert await observer.fetchval(call.format(spelled), '{"a": 1, "b": [1, "ü"]}') == first
    assert await count(observer) == (1, 1, 1)


@pytest.mark.parametrize(
    ("payload", "other"),
    [
        ({"a": 2}, {}),
        ({"a": "1"}, {}),
        ({}, {}),
        ({"a": 1}, {"pipeline": "limited"}),
        ({"a": 1}, {"queue": "q"}),
        ({"a": 1}, {"priority": 1}),
        ({"a": 1}, {"run_at": INSTANT}),
        ({"a": 1}, {"delay_seconds": 1.0}),
        ({"a": 1}, {"max_attempts": 1}),
        ({"a": 1}, {"timeout_seconds": 1.0}),
        ({"a": 1}, {"start_timeout_seconds": 1.0}),
        ({"a": 1}, {"stall_seconds": 1.0}),
        ({"a": 1}, {"memory_limit_bytes": LEAST_MEMORY_LIMIT_BYTES}),
        ({"a": 1}, {"tags": ["t"]}),
        ({"a": 1}, {"metadata": {"m": 1}}),
    ],
    ids=str,
)
async def test_a_key_is_refused_when_anything_differs(
    observer: Connection, payload: dict[str, Any], other: dict[str, Any]
) -> None:
    job_id = await enqueue(observer, {"a": 1}, idempotency_key="k")

    error = await refusal(observer, payload, idempotency_key="k", **other)

    assert (error.sqlstate, error.detail) == (REUSED, job_id)
    assert await count(observer) == (1, 1, 1)
    # Somebody else's key of that name is another one.
    elsewhere = await enqueue(observer, payload, idempotency_key="k", submitted_by="other", **other)
    assert elsewhere != job_id


async def test_a_key_still_finds_its_job_when_that_was_run_and_the_defaults_have_changed(
    database_url: str, observer: Connection
) -> None:
    asked: dict[str, Any] = {"pipeline": "limited", "idempotency_key": "k"}
    job_id = await enqueue(observer, {"a": 1}, **asked)
    await observer.execute(
        "update haulage.jobs set run_at = now() + interval '1 hour', attempt = 1, priority = 5"
    )
    await observer.execute("update haulage.pipelines set max_attempts = 9, timeout_seconds = 9")

    assert await enqueue(observer, {"a": 1}, **asked) == job_id


async def test_a_key_is_free_again_when_its_job_is_deleted(observer: Connection) -> None:
    first = await enqueue(observer, {"a": 1}, idempotency_key="k")
    await observer.execute("delete from haulage.jobs")

    assert await enqueue(observer, {"a": 2}, idempotency_key="k") != first


async def test_a_key_of_the_other_way_in_counts_as_used_with_other_content(
    db: PostgresJobsDB, observer: Connection
) -> None:
    asked = await by_request(db, {"a": 1}, idempotency_key="asked")
    ours = await enqueue(observer, {"a": 1}, idempotency_key="ours")

    error = await refusal(observer, {"a": 1}, idempotency_key="asked")
    assert (error.sqlstate, error.detail) == (REUSED, asked)
    with pytest.raises(IdempotencyKeyReusedError) as caught:
        await db.insert_pending_job({"a": 1}, keyed("ours", {"a": 1}, pipeline=DEFAULT))
    assert caught.value.job_id == ours


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("content", ["same", "other"])
async def test_the_second_user_of_a_key_waits_for_the_first_ones_end(
    database_url: str, observer: Connection, end: str, content: str
) -> None:
    first = await asyncpg.connect(database_url)
    second = await asyncpg.connect(database_url)
    try:
        await first.execute("begin")
        theirs = await enqueue(first, {"a": 1}, idempotency_key="k")
        payload = {"a": 1 if content == "same" else 2}
        waiting = asyncio.create_task(enqueue(second, payload, idempotency_key="k"))
        await until_waiting(observer, first)
        assert not waiting.done()
        await first.execute(end)

        if (end, content) == ("commit", "other"):
            with pytest.raises(asyncpg.PostgresError) as caught:
                await waiting
            assert (caught.value.sqlstate, caught.value.detail) == (REUSED, theirs)
        else:
            assert (await waiting == theirs) is (end == "commit")
    finally:
        await first.close()
        await second.close()
    assert await count(observer) == (1, 1, 1)


async def test_many_at_once_under_one_key_make_one_job(
    database_url: str, observer: Connection
) -> None:
    async def submit() -> str:
        connection = await asyncpg.connect(database_url)
        try:
            return await enqueue(connection, {"a": 1}, idempotency_key="k")
        finally:
            await connection.close()

    answers = await asyncio.gather(*(submit() for _ in range(20)))

    assert len(set(answers)) == 1
    assert await count(observer) == (1, 1, 1)


async def test_of_two_that_take_keys_in_opposite_orders_one_goes_on(
    database_url: str, observer: Connection
) -> None:
    first = await asyncpg.connect(database_url)
    second = await asyncpg.connect(database_url)
    try:
        for connection, key in ((first, "a"), (second, "b")):
            await connection.execute("set deadlock_timeout = '50ms'; begin")
            await enqueue(connection, {}, idempotency_key=key)
        waiting = asyncio.create_task(enqueue(first, {}, idempotency_key="b"))
        await until_waiting(observer, second)
        ends = await asyncio.gather(waiting, _or_rolled_back(second, "a"), return_exceptions=True)
        losers = [end for end in ends if isinstance(end, asyncpg.DeadlockDetectedError)]
        assert len(losers) == 1
        await first.execute("rollback" if ends[0] in losers else "commit")
        await second.execute("rollback" if ends[1] in losers else "commit")
    finally:
        await first.close()
        await second.close()
    assert await count(observer) == (2, 2, 2)


async def _or_rolled_back(connection: Connection, key: str) -> str:
    """The job of a key; whoever cannot have it lets go of what it holds."""
    try:
        return await enqueue(connection, {}, idempotency_key=key)
    except asyncpg.DeadlockDetectedError:
        await connection.execute("rollback")
        raise


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_request_and_a_transaction_under_one_key_make_one_job(
    database_url: str, db: PostgresJobsDB, observer: Connection, end: str
) -> None:
    first = await asyncpg.connect(database_url)
    try:
        await first.execute("begin")
        theirs = await enqueue(first, {"a": 1}, idempotency_key="k")
        asking = asyncio.create_task(by_request(db, {"a": 1}, idempotency_key="k"))
        await until_waiting(observer, first)
        await first.execute(end)
        if end == "commit":
            with pytest.raises(ValueError, match=theirs):
                await asking
        else:
            assert await asking != theirs
    finally:
        await first.close()
    assert await count(observer) == (1, 1, 1)


async def test_a_snapshot_that_is_too_old_for_the_keys_job_has_to_be_taken_anew(
    database_url: str, observer: Connection
) -> None:
    late = await asyncpg.connect(database_url)
    try:
        await late.execute("begin isolation level repeatable read")
        await late.fetchval("select 1 from haulage.jobs")
        job_id = await enqueue(observer, {}, idempotency_key="k")
        with pytest.raises(asyncpg.SerializationError):
            await enqueue(late, {}, idempotency_key="k")
        await late.execute("rollback")
        await late.execute("begin isolation level serializable")
        assert await enqueue(late, {}, idempotency_key="k") == job_id
        await late.execute("commit")
    finally:
        await late.close()


# -- rights ---------------------------------------------------------------------------------------


async def test_a_role_needs_nothing_but_execute(database_url: str, observer: Connection) -> None:
    async with observer.transaction():
        await observer.execute("create role haulage_test_submitter")
        await observer.execute("set local role haulage_test_submitter")
        await _refused(observer, "select haulage.enqueue('{}')")
        await observer.execute("reset role")
        await observer.execute("grant usage on schema haulage to haulage_test_submitter")
        await observer.execute("set local role haulage_test_submitter")
        # The right to execute is nobody's by default.
        await _refused(observer, "select haulage.enqueue('{}')")
        await observer.execute("reset role")
        await observer.execute(
            "grant execute on function haulage.enqueue to haulage_test_submitter"
        )
        await observer.execute("set local role haulage_test_submitter")

        job_id = await enqueue(observer, {"a": 1}, idempotency_key="k", pipeline="limited")

        assert await enqueue(observer, {"a": 1}, idempotency_key="k", pipeline="limited") == job_id
        for table in ("jobs", "job_payloads", "job_events", "pipelines"):
            await _refused(observer, f"select from haulage.{table}")
        await _refused(
            observer, "insert into haulage.jobs (id, pipeline) values (gen_random_uuid(), '')"
        )
        await observer.execute("reset role")
        await observer.execute("drop owned by haulage_test_submitter")
        await observer.execute("drop role haulage_test_submitter")


async def _refused(connection: Connection, statement: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        async with connection.transaction():
            await connection.execute(statement)


async def test_what_the_caller_puts_into_its_search_path_is_not_called(
    observer: Connection,
) -> None:
    await observer.execute(
        "create function public.octet_length(text) returns int language plpgsql"
        " as $$ begin raise 'called with rights of another'; end $$;"
        "create temp table pipelines (name text); create temp table jobs (id int);"
        "set search_path = public, pg_temp, pg_catalog"
    )
    with pytest.raises(asyncpg.RaiseError):
        await observer.fetchval("select octet_length('x'::text)")

    assert await enqueue(observer, {})
