"""What sessions of a test's database hear, wait for and see of each other's work."""

import asyncio
from typing import Any

import asyncpg
from support.waiting import eventually

from app.db.postgres.listener import CHANNELS
from app.domain.jobs import WakeUp


class Ear:
    """Counts notifications on a connection of its own."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._connection = connection
        self._is_over = asyncio.Event()
        self.heard: list[str] = []

    async def all_heard(self) -> list[str]:
        """The payloads of every notification that was committed before this call."""
        self._is_over.clear()
        await self._connection.execute("notify the_end")
        await self._is_over.wait()
        return self.heard

    async def listen(self) -> None:
        await self._connection.add_listener(
            CHANNELS[WakeUp.JOBS], lambda *a: self.heard.append(str(a[3]))
        )
        await self._connection.add_listener("the_end", lambda *_: self._is_over.set())


async def until_waiting(
    observer: "asyncpg.Connection[asyncpg.Record]", holder: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    """Return once a session really waits for this one's transaction."""
    pid = holder.get_server_pid()

    async def waits() -> Any:
        return await observer.fetchval(
            "select count(*) from pg_stat_activity where $1 = any (pg_blocking_pids(pid))", pid
        )

    await eventually(waits, "a session that waits for the rival")


async def count(observer: "asyncpg.Connection[asyncpg.Record]") -> tuple[int, int, int]:
    """Jobs, payloads and first events."""
    row = await observer.fetchrow(
        "select (select count(*) from haulage.jobs), (select count(*) from haulage.job_payloads),"
        " (select count(*) from haulage.job_events)"
    )
    assert row is not None
    return row[0], row[1], row[2]
