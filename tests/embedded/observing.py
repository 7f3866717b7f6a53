"""What tests see of a server from outside: rows, processes, and the moment when something is so."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from app.db.postgres.embedded import EmbeddedPostgres


def fetch(url: str, *statements: str) -> Any:
    """Run the statements on one connection; return the value of the last one."""

    async def run() -> Any:
        connection = await asyncpg.connect(url)
        try:
            for statement in statements:
                value = await connection.fetchval(statement)
            return value
        finally:
            await connection.close()

    return asyncio.run(run())


def eventually(is_so: Callable[[], object], seconds: float = 20) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.005)


def pid_of(server: EmbeddedPostgres) -> int:
    pid = server.status().pid
    assert pid is not None
    return pid


def processes_of(folder: Path) -> list[int]:
    """Living processes that have a file below the folder on their command line."""
    if not Path("/proc/self").exists():
        pytest.skip("processes are found through /proc")
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and f"{folder}/".encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:  # ended meanwhile
            continue
    return found
