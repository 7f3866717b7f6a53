"""Every step on two million jobs, while a program of the first revision goes on working.

The figures are printed: how long each step took, how long its locks on the table of jobs were held
and waited for, and the longest that a writer had to wait meanwhile.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from migrations.processes import connected
from migrations.test_chain import revisions
from migrations.test_previous_programs import FROZEN

from app.db import migrate
from app.db.urls import DatabaseURL

JOBS = 2_000_000
PENDING = 20_000
# A writer may wait for a step that waits for its lock, once.
MOST_SECONDS = 3.0 + 1.0
# Held, these stop every writer; a change of the catalogue needs them for milliseconds.
STOPPING = ("Share", "ShareRowExclusive", "Exclusive", "AccessExclusive")
MOST_HELD_SECONDS = 0.5
NODE = UUID("00000000-0000-7000-8000-000000000001")
# Ids as they are made, in the order of time; foreign keys would be looked up row by row.
FILL = f"""
alter table haulage.job_payloads drop constraint job_payloads_job_id_fkey;
alter table haulage.job_attempts drop constraint job_attempts_job_id_fkey;
alter table haulage.job_results drop constraint job_results_job_id_fkey;
insert into haulage.nodes (id, name, pid, version, capacity, lease_seconds)
values ('{NODE}', 'n', 1, '1', 1, 36000);
insert into haulage.jobs
    (id, pipeline, status, run_at, attempt, claim_no, node_id, started_at, finished_at)
select
    lpad(to_hex(n), 32, '0')::uuid, 'demo-echo',
    case
        when n > {JOBS - PENDING} then 'pending'
        when n % 50 = 0 then 'failed'
        else 'completed'
    end,
    now() - interval '1 hour', 1, 1, '{NODE}', now() - interval '1 hour',
    case when n <= {JOBS - PENDING} then now() - interval '1 hour' end
from generate_series(1, {JOBS}) n;
insert into haulage.job_payloads (job_id, payload)
select lpad(to_hex(n), 32, '0')::uuid, '{{"answer": "text"}}' from generate_series(1, {JOBS}) n;
insert into haulage.job_attempts (job_id, claim_no, attempt, node_id, ended_at, outcome)
select lpad(to_hex(n), 32, '0')::uuid, 1, 1, '{NODE}', now(), 'completed'
from generate_series(1, {JOBS - PENDING}) n;
insert into haulage.job_results (job_id, claim_no, result)
select lpad(to_hex(n), 32, '0')::uuid, 1, '{{"kind": "echo", "answer": "text"}}'
from generate_series(1, {JOBS - PENDING}) n;
alter table haulage.job_payloads add constraint job_payloads_job_id_fkey
foreign key (job_id) references haulage.jobs on delete cascade not valid;
alter table haulage.job_attempts add constraint job_attempts_job_id_fkey
foreign key (job_id) references haulage.jobs on delete cascade not valid;
alter table haulage.job_results add constraint job_results_job_id_fkey
foreign key (job_id) references haulage.jobs on delete cascade not valid;
analyze haulage.jobs;
"""  # noqa: S608  constants
LOCKS = """
select l.pid, l.mode, l.granted
from pg_locks l join pg_stat_activity a using (pid)
where l.relation = 'haulage.jobs'::regclass and a.backend_type = 'client backend'
  and a.application_name <> 'test'
"""
# What the first program's insert takes beside the id.
JOB: tuple[Any, ...] = ("demo-echo", "default", 0, None, 0.0, 1, None, [], "{}", "", "{}")
STATEMENTS = {statement.name: statement.sql for statement in FROZEN["0001"]}


class Stalls:
    """The longest that a submission and a claim of the first program took since the last look."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.count = 0

    async def go_on(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        insert = await connection.prepare(STATEMENTS["insert_pending_job"])
        claim = await connection.prepare(STATEMENTS["claim_pending_jobs"])
        while True:
            await self._measure(insert.fetch(uuid4(), *JOB))
            await self._measure(claim.fetch(NODE, 1, None, 0))
            await asyncio.sleep(0.002)

    async def _measure(self, work: Awaitable[object]) -> None:
        began = time.monotonic()
        await work
        self.seconds = max(self.seconds, time.monotonic() - began)
        self.count += 1


class Locks:
    """How long the upgrade's locks on the table of jobs were seen, by mode, held and waited for."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    async def watch(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        since: dict[tuple[int, str, bool], float] = {}
        while True:
            now = time.monotonic()
            seen = {tuple(row) for row in await connection.fetch(LOCKS)}
            since = {key: since.get(key, now) for key in seen}
            for key, began in since.items():
                name = key[1].removesuffix("Lock") + ("" if key[2] else " waited for")
                self.seconds[name] = max(self.seconds.get(name, 0.0), now - began)
            await asyncio.sleep(0.005)

    def __str__(self) -> str:
        return ", ".join(f"{mode} {s * 1_000:,.0f} ms" for mode, s in sorted(self.seconds.items()))


@asynccontextmanager
async def running(*work: asyncio.Task[None]) -> AsyncIterator[None]:
    yield
    for task in work:
        assert not task.done(), task
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_no_writer_waits_long_when_any_step_meets_two_million_jobs(
    empty_database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = DatabaseURL.parse(empty_database_url)
    first, *later = [script.revision for script in revisions()]
    migrate.upgrade(url, first)
    longest: dict[str, float] = {}
    held: dict[str, float] = {}
    told = [""]
    async with (
        connected(empty_database_url) as writer,
        connected(empty_database_url) as observer,
    ):
        await observer.execute(FILL)
        for revision in later:
            stalls, locks = Stalls(), Locks()
            async with running(
                asyncio.create_task(stalls.go_on(writer)),
                asyncio.create_task(locks.watch(observer)),
            ):
                began = time.monotonic()
                await asyncio.to_thread(migrate.upgrade, url, revision)
                seconds = time.monotonic() - began
            longest[revision] = stalls.seconds
            held[revision] = max(locks.seconds.get(mode, 0.0) for mode in STOPPING)
            told.append(
                f"{revision}: {seconds:.1f} s, longest wait of {stalls.count} writes"
                f" {stalls.seconds * 1_000:,.0f} ms; locks on jobs: {locks}"
            )
    with capsys.disabled():
        sys.stdout.write("\n".join([*told, f"load average {os.getloadavg()[0]:.1f}", ""]))

    assert migrate.differences(url) is None
    assert {r: seconds for r, seconds in longest.items() if seconds > MOST_SECONDS} == {}
    assert {r: seconds for r, seconds in held.items() if seconds > MOST_HELD_SECONDS} == {}
