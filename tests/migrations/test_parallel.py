"""Upgrades side by side: all succeed, and one of them has done it."""

import asyncio

import pytest
from migrations.processes import connected, upgrades
from migrations.snapshot import schema_of
from migrations.test_chain import revisions
from support.waiting import eventually

from app.db import migrate
from app.db.urls import DatabaseURL

PROCESSES = 10
STARTS = {"nothing": "nothing", "one version behind": revisions()[-2].revision}


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
async def test_one_of_ten_upgrades_does_it_and_all_succeed_when_they_begin_together(
    empty_database_url: str, database_url: str, start: str
) -> None:
    url = DatabaseURL.parse(empty_database_url)
    head = migrate.state(url).wanted
    if start != "nothing":
        migrate.upgrade(url, start)
    async with connected(empty_database_url) as gate:
        # All are let go at the same moment, when each waits for its turn.
        await gate.execute("select pg_advisory_lock($1)", migrate.ADVISORY_LOCK)
        with upgrades(empty_database_url, PROCESSES) as processes:

            async def are_all_waiting() -> bool:
                waiting: int = await gate.fetchval(
                    "select count(*) from pg_stat_activity where datname = current_database()"
                    " and query like '%pg_try_advisory_lock%' and pid <> pg_backend_pid()"
                )
                assert all(process.poll() is None for process in processes)
                return waiting == PROCESSES

            await eventually(are_all_waiting, "ten upgrades that wait", 90.0)
            await gate.execute("select pg_advisory_unlock_all()")
            ends = await asyncio.gather(
                *(asyncio.to_thread(process.communicate) for process in processes)
            )

    assert [process.returncode for process in processes] == [0] * PROCESSES, ends
    done = f"upgraded from {start} to {head}\n"
    said = sorted(output for output, _ in ends)
    assert said == sorted([done] + [f"already at {head}\n"] * (PROCESSES - 1))
    assert await schema_of(empty_database_url) == await schema_of(database_url)
