"""The LISTEN connection: lost, terminated or frozen, it comes back and says so once."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import asyncpg
import pytest
from support.proxy import Proxy
from support.waiting import eventually

from app.db.postgres.listener import CHANNELS, WakeUpListener
from app.domain.jobs import WakeUp
from app.telemetry import Event, Telemetry

PATIENCE_SECONDS = 20.0


@asynccontextmanager
async def listening(listener: WakeUpListener) -> AsyncIterator[AsyncGenerator[WakeUp, None]]:
    """Wake-ups after the first, which says that the listener is up."""
    wake_ups = listener.wake_ups()
    try:
        await woken(wake_ups)
        yield wake_ups
    finally:
        await wake_ups.aclose()


async def woken(wake_ups: AsyncGenerator[WakeUp, None]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await anext(wake_ups)


async def listener_pids(observer: "asyncpg.Connection[asyncpg.Record]") -> list[int]:
    rows = await observer.fetch(
        "select pid from pg_stat_activity"
        " where datname = current_database() and application_name = 'haulage-listener'"
    )
    return [row[0] for row in rows]


async def woken_once_more_by_a_notification_only(
    observer: "asyncpg.Connection[asyncpg.Record]", wake_ups: AsyncGenerator[WakeUp, None]
) -> None:
    """Nothing else is to come; a notification still arrives."""
    waiting = asyncio.ensure_future(woken(wake_ups))
    for _ in range(20):
        await observer.fetchval("select 1")
    assert not waiting.done()
    await observer.execute(f"notify {CHANNELS[WakeUp.JOBS]}")
    await waiting


def names(events: list[Event]) -> list[str]:
    return [event.name for event in events]


async def test_the_listener_comes_back_and_yields_once_when_its_session_was_terminated(
    database_url: str,
    observer: "asyncpg.Connection[asyncpg.Record]",
    telemetry: Telemetry,
    events: list[Event],
) -> None:
    async with listening(WakeUpListener(database_url, telemetry)) as wake_ups:
        for _ in range(3):
            [pid] = await listener_pids(observer)
            assert await observer.fetchval("select pg_terminate_backend($1, 5000)", pid)

            await woken(wake_ups)
            assert pid not in await listener_pids(observer)

        await woken_once_more_by_a_notification_only(observer, wake_ups)
    assert names(events) == ["listener.connected", "listener.disconnected"] * 3 + [
        "listener.connected"
    ]


async def test_the_listener_comes_back_when_its_connection_was_cut_while_it_waited(
    proxy: Proxy,
    observer: "asyncpg.Connection[asyncpg.Record]",
    telemetry: Telemetry,
) -> None:
    async with listening(WakeUpListener(proxy.url, telemetry)) as wake_ups:
        waiting = asyncio.ensure_future(woken(wake_ups))
        await observer.fetchval("select 1")
        proxy.cut()
        await waiting

        await woken_once_more_by_a_notification_only(observer, wake_ups)


async def test_a_silent_network_is_noticed_by_the_probe(
    proxy: Proxy,
    observer: "asyncpg.Connection[asyncpg.Record]",
    telemetry: Telemetry,
    events: list[Event],
) -> None:
    listener = WakeUpListener(
        proxy.url, telemetry, probe_interval_seconds=0.02, probe_timeout_seconds=0.2
    )
    async with listening(listener) as wake_ups:
        waiting = asyncio.ensure_future(woken(wake_ups))
        proxy.is_silent = True
        await eventually(lambda: _has_lost(events), "notice of the silence")
        proxy.is_silent = False
        proxy.cut()  # connections of the silent time stay so
        await waiting
        await observer.execute(f"notify {CHANNELS[WakeUp.JOBS]}")
        await woken(wake_ups)


async def test_a_frozen_server_process_is_noticed_by_the_probe_and_replaced(
    database_url: str,
    observer: "asyncpg.Connection[asyncpg.Record]",
    telemetry: Telemetry,
    events: list[Event],
) -> None:
    listener = WakeUpListener(
        database_url, telemetry, probe_interval_seconds=0.02, probe_timeout_seconds=0.2
    )
    async with listening(listener) as wake_ups:
        [frozen] = await listener_pids(observer)
        database = await observer.fetchval("select current_database()")
        if not _is_local_process_of(database, frozen):
            pytest.skip("the server's processes are not ours to stop")
        os.kill(frozen, signal.SIGSTOP)
        try:
            await woken(wake_ups)
            assert len(await listener_pids(observer)) == 2
            await observer.execute(f"notify {CHANNELS[WakeUp.JOBS]}")
            await woken(wake_ups)
        finally:
            os.kill(frozen, signal.SIGCONT)
    assert "no answer to its own probe" in [event.fields.get("reason") for event in events]
    await eventually(lambda: _have_gone(observer), "end of both sessions")


async def test_the_listener_goes_on_trying_while_the_server_is_away(
    proxy: Proxy, telemetry: Telemetry, events: list[Event]
) -> None:
    async with listening(WakeUpListener(proxy.url, telemetry)) as wake_ups:
        proxy.is_refusing = True
        waiting = asyncio.ensure_future(woken(wake_ups))
        proxy.cut()
        await eventually(lambda: _has_lost(events, times=3), "three failures")
        assert not waiting.done()

        proxy.is_refusing = False
        await waiting
    assert names(events)[-1] == "listener.connected"


async def test_a_server_that_ends_each_session_at_once_is_met_with_growing_pauses(
    proxy: Proxy,
) -> None:
    connected: list[float] = []

    def end_it(event: Event) -> None:
        if event.name == "listener.connected":
            connected.append(time.monotonic())
            proxy.cut()

    listener = WakeUpListener(proxy.url, Telemetry([end_it]))
    wake_ups = listener.wake_ups()
    for _ in range(5):
        await woken(wake_ups)
    await wake_ups.aclose()

    pauses = [later - earlier for earlier, later in pairwise(connected)]
    # At least half of 0.2 s, doubled each time.
    for pause, least in zip(pauses, (0.1, 0.2, 0.4, 0.8), strict=True):
        assert pause >= least


async def test_one_burst_gives_few_wake_ups_and_loses_none(
    database_url: str, observer: "asyncpg.Connection[asyncpg.Record]", telemetry: Telemetry
) -> None:
    async with listening(WakeUpListener(database_url, telemetry)) as wake_ups:
        for _ in range(100):
            await observer.execute(f"notify {CHANNELS[WakeUp.JOBS]}")
        await woken(wake_ups)


async def test_probes_wake_nobody(
    database_url: str,
    observer: "asyncpg.Connection[asyncpg.Record]",
    telemetry: Telemetry,
    events: list[Event],
) -> None:
    first = WakeUpListener(database_url, telemetry, probe_interval_seconds=0.001)
    second = WakeUpListener(database_url, telemetry)
    async with listening(first) as probing, listening(second) as quiet:
        ours = asyncio.ensure_future(woken(probing))
        theirs = asyncio.ensure_future(woken(quiet))
        await eventually(lambda: _has_probed(observer), "a probe")
        assert not ours.done()
        assert not theirs.done()

        await observer.execute(f"notify {CHANNELS[WakeUp.JOBS]}")
        await asyncio.gather(ours, theirs)


async def test_no_session_is_left_when_the_iteration_ends(
    database_url: str, observer: "asyncpg.Connection[asyncpg.Record]", telemetry: Telemetry
) -> None:
    async with listening(WakeUpListener(database_url, telemetry)) as wake_ups:
        waiting = asyncio.ensure_future(anext(wake_ups))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    await eventually(lambda: _have_gone(observer), "end of the session")


async def _has_lost(events: list[Event], times: int = 1) -> bool:
    return names(events).count("listener.disconnected") >= times


async def _have_gone(observer: "asyncpg.Connection[asyncpg.Record]") -> bool:
    return not await listener_pids(observer)


async def _has_probed(observer: "asyncpg.Connection[asyncpg.Record]") -> bool:
    return bool(
        await observer.fetchval(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and query like 'select pg_notify($1%'"
        )
    )


def _is_local_process_of(database: str, pid: int) -> bool:
    try:
        return database.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
