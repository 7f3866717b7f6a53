"""Upgrades as processes of their own, and sessions that look on."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import asyncpg
from support.waiting import eventually

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def connected(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(url, server_settings={"application_name": "test"})
    try:
        yield connection
    finally:
        await connection.close()


@contextmanager
def upgrades(url: str, count: int = 1) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of `haulage db upgrade`, which are gone at the end whatever happened."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HAULAGE_")}
    environment |= {"HAULAGE_DATABASE_URL": url}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "app", "db", "upgrade"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


async def waiting_pid(observer: "asyncpg.Connection[asyncpg.Record]", statement: str) -> int:
    """The server's process that waits for a lock with a statement that begins so."""

    async def look() -> int:
        pid: int | None = await observer.fetchval(
            "select pid from pg_stat_activity where datname = current_database()"
            " and wait_event_type = 'Lock' and query ilike $1 || '%'",
            statement,
        )
        return pid or 0

    return await eventually(look, f"somebody who waits with {statement!r}", 40.0)
