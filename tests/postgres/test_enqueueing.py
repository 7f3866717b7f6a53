"""The Python helper on connections of every library that it takes."""

import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool
from support.enqueueing import announce
from support.sessions import Ear, count

from app.domain.errors import InvalidJsonError, TooLargeError
from app.domain.jobs import MAX_METADATA_BYTES, MAX_PAYLOAD_BYTES
from app.enqueueing import Options, enqueue, enqueue_sync

Observer: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

EVERYTHING: Options = {
    "pipeline": "limited",
    "queue": "q % ü",
    "priority": 3,
    "run_at": datetime(2031, 5, 17, 12, 30, tzinfo=timezone(timedelta(hours=2))),
    "max_attempts": 2,
    "timeout_seconds": 1.5,
    "start_timeout_seconds": 2,
    "stall_seconds": 3,
    "memory_limit_bytes": 2**40,
    "tags": ("a", "ü, {}"),
    "metadata": {"m": [1]},
    "idempotency_key": "k",
    "submitted_by": "me",
}
PAYLOAD = {"a": [1, 2.5, None, "ü % %s $1 :x"]}


@dataclass(frozen=True)
class Caller:
    """An application's transaction, whatever its library: enqueue in it, then end it."""

    connection: Any
    commit: Callable[[], Any]
    rollback: Callable[[], Any]
    is_asynchronous: bool

    async def enqueue(self, payload: Any, **options: Any) -> str:
        if self.is_asynchronous:
            return await enqueue(self.connection, payload, **options)
        # In the loop's own thread: a scoped session is another one elsewhere.
        return enqueue_sync(self.connection, payload, **options)

    async def end(self, end: str) -> None:
        ended = getattr(self, end)()
        if self.is_asynchronous:
            await ended


def sqlalchemy_url(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


@contextlib.asynccontextmanager
async def by_asyncpg(url: str) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(url)
    # A codec of the caller's must not encode a second time.
    await connection.set_type_codec(
        "jsonb", encoder=str, decoder=str, schema="pg_catalog", format="text"
    )
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield Caller(connection, transaction.commit, transaction.rollback, is_asynchronous=True)
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def by_asyncpg_pool(url: str) -> AsyncIterator[Caller]:
    async with (
        asyncpg.create_pool(url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
    ):
        transaction = connection.transaction()
        await transaction.start()
        yield Caller(connection, transaction.commit, transaction.rollback, is_asynchronous=True)


@contextlib.asynccontextmanager
async def by_psycopg_async(
    url: str, cursor: type[psycopg.AsyncCursor[Any]] = psycopg.AsyncCursor
) -> AsyncIterator[Caller]:
    connection = await psycopg.AsyncConnection.connect(
        url, row_factory=dict_row, cursor_factory=cursor
    )
    try:
        yield Caller(connection, connection.commit, connection.rollback, is_asynchronous=True)
    finally:
        await connection.close()


@contextlib.contextmanager
def by_psycopg(url: str, cursor: type[psycopg.Cursor[Any]] = psycopg.Cursor) -> Iterator[Caller]:
    connection = psycopg.connect(url, row_factory=dict_row, cursor_factory=cursor)
    try:
        yield Caller(connection, connection.commit, connection.rollback, is_asynchronous=False)
    finally:
        connection.close()


@contextlib.asynccontextmanager
async def by_sqlalchemy_async(url: str, driver: str, *, session: bool) -> AsyncIterator[Caller]:
    engine = create_async_engine(sqlalchemy_url(url, driver), poolclass=NullPool)
    opened = AsyncSession(engine) if session else engine.connect()
    try:
        async with opened as caller:
            yield Caller(caller, caller.commit, caller.rollback, is_asynchronous=True)
    finally:
        await engine.dispose()


@contextlib.contextmanager
def by_sqlalchemy(url: str, *, session: str) -> Iterator[Caller]:
    engine = create_engine(sqlalchemy_url(url, "psycopg"), poolclass=NullPool)
    try:
        if session == "scoped":
            scoped = scoped_session(sessionmaker(engine))
            yield Caller(scoped, scoped.commit, scoped.rollback, is_asynchronous=False)
            scoped.remove()
        else:
            with Session(engine) if session else engine.connect() as caller:
                yield Caller(caller, caller.commit, caller.rollback, is_asynchronous=False)
    finally:
        engine.dispose()


WAYS: dict[str, Callable[[str], Any]] = {
    "asyncpg": by_asyncpg,
    "asyncpg pool": by_asyncpg_pool,
    "psycopg async": by_psycopg_async,
    "psycopg async, raw": lambda url: by_psycopg_async(url, psycopg.AsyncRawCursor),
    "psycopg": by_psycopg,
    "psycopg, raw": lambda url: by_psycopg(url, psycopg.RawCursor),
    "psycopg, client side": lambda url: by_psycopg(url, psycopg.ClientCursor),
    "sqlalchemy asyncpg connection": lambda url: by_sqlalchemy_async(url, "asyncpg", session=False),
    "sqlalchemy asyncpg session": lambda url: by_sqlalchemy_async(url, "asyncpg", session=True),
    "sqlalchemy psycopg async connection": lambda url: by_sqlalchemy_async(
        url, "psycopg", session=False
    ),
    "sqlalchemy connection": lambda url: by_sqlalchemy(url, session=""),
    "sqlalchemy session": lambda url: by_sqlalchemy(url, session="plain"),
    "sqlalchemy scoped session": lambda url: by_sqlalchemy(url, session="scoped"),
}


@pytest.fixture(autouse=True)
async def _announced(database_url: str) -> None:
    await announce(database_url)


@pytest.fixture(params=WAYS)
async def caller(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Caller]:
    opened = WAYS[request.param](database_url)
    async with contextlib.AsyncExitStack() as stack:
        if hasattr(opened, "__aenter__"):
            yield await stack.enter_async_context(opened)
        else:
            yield stack.enter_context(opened)


async def test_a_job_is_there_once_the_callers_transaction_commits(
    caller: Caller, observer: Observer, ear: Ear
) -> None:
    job_id = await caller.enqueue(PAYLOAD, **EVERYTHING)
    plain = await caller.enqueue({})
    assert await caller.enqueue(PAYLOAD, **EVERYTHING) == job_id
    assert await count(observer) == (0, 0, 0)
    assert await ear.all_heard() == []

    await caller.end("commit")

    assert await count(observer) == (2, 2, 2)
    assert await ear.all_heard() == [""]
    row = await observer.fetchrow(
        "select * from haulage.jobs join haulage.job_payloads on job_id = id where id = $1",
        UUID(job_id),
    )
    assert row is not None
    assert row["payload"] == '{"a": [1, 2.5, null, "ü % %s $1 :x"]}'
    assert row["metadata"] == '{"m": [1]}'
    expected = {**EVERYTHING, "tags": list(EVERYTHING["tags"] or ())}
    del expected["metadata"]
    assert {name: row[name] for name in expected} == expected
    assert UUID(plain).version == 7


async def test_a_job_never_was_when_the_callers_transaction_rolls_back(
    caller: Caller, observer: Observer, ear: Ear
) -> None:
    await caller.enqueue(PAYLOAD)
    await caller.end("rollback")

    assert await count(observer) == (0, 0, 0)
    assert await ear.all_heard() == []


async def test_what_the_database_refuses_is_told_by_its_sqlstate(caller: Caller) -> None:
    with pytest.raises(Exception, match="no pipeline 'nonsense'") as caught:
        await caller.enqueue({}, pipeline="nonsense")

    original: Any = getattr(caught.value, "orig", caught.value)
    assert original.sqlstate == "JQ002"
    await caller.end("rollback")


async def test_what_cannot_be_stored_is_refused_and_the_transaction_goes_on(
    caller: Caller, observer: Observer
) -> None:
    with pytest.raises(InvalidJsonError, match="/payload/a/0"):
        await caller.enqueue({"a": ["\x00"]})
    with pytest.raises(InvalidJsonError, match="/metadata/m"):
        await caller.enqueue({}, metadata={"m": float("nan")})
    with pytest.raises(TooLargeError):
        await caller.enqueue({"a": "x" * MAX_PAYLOAD_BYTES})
    with pytest.raises(TooLargeError):
        await caller.enqueue({}, metadata={"a": "x" * MAX_METADATA_BYTES})
    with pytest.raises(ValueError, match="offset"):
        await caller.enqueue({}, run_at=datetime(2031, 1, 1))  # noqa: DTZ001  to the point
    with pytest.raises(TypeError, match="prio"):
        await caller.enqueue({}, prio=1)
    await caller.enqueue({})
    await caller.end("commit")

    assert await count(observer) == (1, 1, 1)


async def test_an_option_that_is_none_says_nothing(caller: Caller, observer: Observer) -> None:
    await caller.enqueue({}, **dict.fromkeys(Options.__annotations__))
    await caller.end("commit")

    row = await observer.fetchrow("select * from haulage.jobs")
    assert row is not None
    assert (row["pipeline"], row["queue"], row["tags"], row["max_attempts"]) == (
        "plain",
        "default",
        [],
        1,
    )
    assert row["created_at"] == row["run_at"] <= datetime.now(UTC)


async def test_whatever_is_no_connection_with_a_transaction_is_refused(database_url: str) -> None:
    engine = create_engine(sqlalchemy_url(database_url, "psycopg"), poolclass=NullPool)
    async_engine = create_async_engine(sqlalchemy_url(database_url, "asyncpg"), poolclass=NullPool)
    elsewhere = create_engine("sqlite://")
    async with asyncpg.create_pool(database_url, min_size=1, max_size=1) as pool:
        for wrong in (None, database_url, engine, async_engine, pool, text("select 1")):
            with pytest.raises(TypeError):
                await enqueue(wrong, {})
            with pytest.raises(TypeError):
                enqueue_sync(wrong, {})
        with psycopg.connect(database_url) as connection, pytest.raises(TypeError):
            await enqueue(connection, {})
        async with async_engine.connect() as other, pool.acquire() as third:
            for asynchronous in (other, third):
                with pytest.raises(TypeError):
                    enqueue_sync(asynchronous, {})
        with elsewhere.connect() as sqlite, pytest.raises(TypeError, match="PostgreSQL"):
            enqueue_sync(sqlite, {})
    elsewhere.dispose()
    engine.dispose()
    await async_engine.dispose()


def test_the_helper_loads_no_library_of_its_own() -> None:
    code = (
        "import sys; before = set(sys.modules); import app.enqueueing;"
        "print(sorted({m.partition('.')[0] for m in set(sys.modules) - before}"
        " - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['app']"
