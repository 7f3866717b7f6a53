"""Services tell the database what they can run."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from uuid import uuid4

import asyncpg
import pytest
from support.enqueueing import DEFAULT, REGISTRATIONS, announce, enqueue
from support.sessions import until_waiting
from support.waiting import eventually

from app.config import load_settings
from app.db.postgres import announcing
from app.db.postgres.announcing import Announcer
from app.db.urls import DatabaseURL
from app.domain.errors import DatabaseUnavailableError, RoleError
from app.domain.jobs import Registration
from app.main import announce as announce_to_database
from app.telemetry import Event, Telemetry


def _heard(events: list[Event], name: str) -> Callable[[], Awaitable[bool]]:
    async def heard() -> bool:
        return any(event.name == name for event in events)

    return heard


async def pipeline_of(observer: "asyncpg.Connection[asyncpg.Record]") -> str:
    """That of a job which names none."""
    job_id = await enqueue(observer, {})
    name: str = await observer.fetchval(
        "select pipeline from haulage.jobs where id = $1::text::uuid", job_id
    )
    return name


async def test_a_later_start_changes_what_it_names_and_keeps_the_rest(
    database_url: str, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await announce(database_url)
    changed = {"limited": replace(REGISTRATIONS["limited"], max_attempts=None)}
    await announce(database_url, changed, default=None)

    found = await observer.fetch("select name, max_attempts from haulage.pipelines order by name")
    assert [tuple(row) for row in found] == [("limited", None), ("plain", None), ("reading", None)]
    assert await pipeline_of(observer) == DEFAULT


async def test_what_others_told_stays_where_a_class_could_not_be_asked(
    database_url: str, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await announce(database_url)
    silent = {name: Registration(name, "nowhere:Silent") for name in ("reading", "new")}

    await announce(database_url, silent, default="reading", unasked=list(silent))

    found = await observer.fetch(
        "select name, memory_limit_bytes, takes_dataset from haulage.pipelines"
        " where name in ('reading', 'new') order by name"
    )
    assert [tuple(row) for row in found] == [("new", None, False), ("reading", 2**31, True)]
    assert await pipeline_of(observer) == "reading"


async def test_the_default_is_the_one_that_was_called_so_last(
    database_url: str, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    for name in ("plain", "reading", "limited", "reading"):
        await announce(database_url, default=name)
        assert await pipeline_of(observer) == name


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_services_that_start_together_wait_for_each_other(
    database_url: str,
    observer: "asyncpg.Connection[asyncpg.Record]",
    monkeypatch: pytest.MonkeyPatch,
    end: str,
) -> None:
    # However slow this machine is.
    monkeypatch.setattr(announcing, "LOCK_SECONDS", 20.0)
    monkeypatch.setattr(announcing, "ANNOUNCE_SECONDS", 30.0)
    await announce(database_url)
    first = await asyncpg.connect(database_url)
    try:
        await first.execute("begin; update haulage.pipelines set defaulted_at = now()")
        other = asyncio.create_task(announce(database_url, default="reading"))
        await until_waiting(observer, first)
        await first.execute(end)
        await other
    finally:
        await first.close()

    assert await pipeline_of(observer) == "reading"


async def test_a_row_that_somebody_holds_is_waited_for_a_moment_only(
    database_url: str, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await announce(database_url)
    changed = {name: replace(each, max_attempts=7) for name, each in REGISTRATIONS.items()}
    holder = await asyncpg.connect(database_url)
    try:
        await holder.execute("begin; select from haulage.pipelines where name = 'plain' for update")
        with pytest.raises(DatabaseUnavailableError, match="lock timeout"):
            await announce(database_url, changed)
    finally:
        await holder.close()

    # All of it or nothing.
    assert (
        await observer.fetchval("select count(*) from haulage.pipelines where max_attempts = 7")
        == 0
    )


@pytest.mark.parametrize("heard", ["in order", "the former last"])
async def test_the_service_that_started_last_is_right_whoever_is_heard_last(
    database_url: str, observer: "asyncpg.Connection[asyncpg.Record]", heard: str
) -> None:
    former = {name: Registration(name, "nowhere:X", max_attempts=2) for name in REGISTRATIONS}
    latter = {name: Registration(name, "nowhere:X", max_attempts=5) for name in REGISTRATIONS}
    await announce(database_url)
    starts = [(former, "plain", 60.0), (latter, "reading", 30.0)]
    await observer.execute(
        "update haulage.pipelines set announced_at = now() - interval '1 hour',"
        " defaulted_at = defaulted_at - interval '1 hour'"
    )
    for registrations, default, seconds_ago in starts if heard == "in order" else reversed(starts):
        await announce(database_url, registrations, default, seconds_ago=seconds_ago)

    found = await observer.fetch("select distinct max_attempts from haulage.pipelines")
    assert [row[0] for row in found] == [5]
    assert await pipeline_of(observer) == "reading"


async def test_it_is_told_beside_the_service_once_nobody_holds_it_any_more(
    database_url: str,
    observer: "asyncpg.Connection[asyncpg.Record]",
    events: list[Event],
    telemetry: Telemetry,
) -> None:
    await announce(database_url)
    holder = await asyncpg.connect(database_url)
    try:
        await holder.execute("begin; select from haulage.pipelines where name = 'plain' for update")
        url, settings = DatabaseURL.parse(database_url), load_settings()
        registrations = {**REGISTRATIONS, settings.pipeline: Registration(settings.pipeline, "x:X")}
        announcer = await asyncio.to_thread(
            announce_to_database, url, settings, "serve", registrations, telemetry
        )
        assert [event.name for event in events] == ["pipelines.unannounced"]
        announcer.start()
        await until_waiting(observer, holder)
        await holder.execute("rollback")
        await eventually(
            _heard(events, "pipelines.announced"), "the word that the pipelines are known"
        )
    finally:
        await announcer.stop()
        await holder.close()

    assert await pipeline_of(observer) == settings.pipeline


@pytest.mark.parametrize("refusal", [None, RoleError("no right")])
async def test_what_was_told_or_refused_is_not_told_again(
    events: list[Event], telemetry: Telemetry, refusal: RoleError | None
) -> None:
    tries: list[float] = []

    async def tell(seconds_ago: float) -> None:
        tries.append(seconds_ago)
        if refusal is not None:
            raise refusal

    announcer = Announcer(tell, telemetry)
    await asyncio.to_thread(announcer.announce_at_start)
    announcer.start()
    await announcer.stop()

    assert len(tries) == 1
    told = "announced" if refusal is None else "unannounced"
    assert [event.name for event in events] == [f"pipelines.{told}"]


async def test_it_rests_after_a_later_try_succeeded_and_tells_when_it_began(
    events: list[Event], telemetry: Telemetry
) -> None:
    tries: list[float] = []

    async def tell(seconds_ago: float) -> None:
        tries.append(seconds_ago)
        if len(tries) < 3:
            raise DatabaseUnavailableError("held")

    announcer = Announcer(tell, telemetry)
    await asyncio.to_thread(announcer.announce_at_start)
    announcer.start()
    await eventually(_heard(events, "loop.recovered"), "the third try")
    await announcer.stop()
    announcer.start()
    await announcer.stop()

    assert len(tries) == 3
    assert sorted(tries) == tries
    assert tries[2] > tries[1] > tries[0]
    assert [event.name for event in events] == [
        "pipelines.unannounced",
        "loop.failed",
        "pipelines.announced",
        "loop.recovered",
    ]


async def test_it_stops_in_the_middle_of_a_try_that_hangs(telemetry: Telemetry) -> None:
    hangs = asyncio.Event()

    async def tell(seconds_ago: float) -> None:
        if not hangs.is_set() and threading.current_thread() is threading.main_thread():
            hangs.set()
            await asyncio.Event().wait()
        raise DatabaseUnavailableError("held")

    announcer = Announcer(tell, telemetry)
    await asyncio.to_thread(announcer.announce_at_start)
    announcer.start()
    await hangs.wait()
    async with asyncio.timeout(5):
        await announcer.stop()


@pytest.mark.parametrize("fault", ["away", "no right"])
async def test_a_service_starts_all_the_same_when_it_cannot_tell(
    database_url: str,
    observer: "asyncpg.Connection[asyncpg.Record]",
    events: list[Event],
    telemetry: Telemetry,
    fault: str,
) -> None:
    url = DatabaseURL.parse(database_url)
    role = f"haulage_test_{uuid4().hex}"
    if fault == "away":
        url = replace(url, hosts=(("127.0.0.1", 1),))
    else:
        await observer.execute(f"create role {role} login password 'x'")
        await observer.execute(f"grant usage on schema haulage to {role}")
        url = replace(url, user=role, password="x")
    try:
        settings = load_settings()
        await asyncio.to_thread(
            announce_to_database, url, settings, "serve", REGISTRATIONS, telemetry
        )
    finally:
        if fault != "away":
            await observer.execute(f"drop owned by {role}; drop role {role}")

    [event] = events
    assert event.name == "pipelines.unannounced"
    assert ("permission denied" in event.fields["reason"]) is (fault == "no right")
    assert await observer.fetchval("select count(*) from haulage.pipelines") == 0
