"""What autovacuum's settings do to claims and to the size of tables, over 100,000 jobs each.

    python -m benchmarks.autovacuum [JOBS]

The server's defaults, ours, and ours with attempts set like jobs: a database for each, with a
history of finished jobs. They take turns with some hundred jobs at a time, so that whatever else
the machine does meets all three.
"""

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

import asyncpg

from benchmarks.harness.figures import percentile, show, show_machine
from benchmarks.harness.lifecycle import Lifecycle
from benchmarks.harness.running import database

HISTORY = 500_000
JOBS = 100_000
INSERTED = 500
CLAIMED = 10
TABLES = ("jobs", "job_attempts", "job_events", "job_payloads", "nodes")
FILL = """
with job as (
    insert into haulage.jobs (id, pipeline, status, attempt, claim_no, node_id, finished_at)
    select gen_random_uuid(), 'p', 'completed', 1, 1, gen_random_uuid(), now()
    from generate_series(1, $1::int)
    returning id
)
insert into haulage.job_attempts (job_id, claim_no, attempt, node_id, ended_at, outcome)
select id, 1, 1, gen_random_uuid(), now(), 'completed' from job
"""
OPTIONS = """
select c.relname, o.option_name, o.option_value
from pg_class c cross join pg_options_to_table(c.reloptions) o
where c.relnamespace = 'haulage'::regnamespace and c.relname = any ($1)
"""
COUNTS = """
select
    relname, n_dead_tup, autovacuum_count, n_tup_upd, n_tup_hot_upd,
    pg_total_relation_size(relid)::float8 / 1e6 as mb
from pg_stat_user_tables
where relname = any ($1) and schemaname = 'haulage'
order by array_position($1, relname::text)
"""
CHOICES = ("the server's defaults", "ours", "ours, attempts as jobs")


@dataclass(slots=True)
class Contender:
    """One choice of settings in a database of its own."""

    title: str
    session: "asyncpg.Connection[asyncpg.Record]"
    life: Lifecycle
    before: dict[str, asyncpg.Record]
    seconds: float = 0.0

    async def take_turn(self) -> None:
        """Some hundred jobs from their insert to their end."""
        began = time.monotonic()
        await self.life.insert(INSERTED)
        for _ in range(INSERTED // CLAIMED):
            await self.life.run_batch()
        self.seconds += time.monotonic() - began

    async def tell(self, jobs: int) -> None:
        """Print claims and tables."""
        claims = self.life.milliseconds["claim"]
        last = claims[-len(claims) // 10 :]
        print(f"\n{self.title}: {jobs / self.seconds:,.0f} jobs a second")
        show("  claims of ten", claims)
        of_all, of_last = percentile(claims, 0.95), percentile(last, 0.95)
        print(f"  p95 {of_all:.2f} ms, of the last tenth {of_last:.2f} ms")
        for row in await self.session.fetch(COUNTS, TABLES):
            first = self.before[row["relname"]]
            updates = row["n_tup_upd"] - first["n_tup_upd"]
            hot = (row["n_tup_hot_upd"] - first["n_tup_hot_upd"]) / updates if updates else 1.0
            print(
                f"  {row['relname']:<13} {row['mb']:7.1f} MB ({row['mb'] - first['mb']:+.1f}),"
                f" {row['n_dead_tup']:>7,} dead rows, {hot:4.0%} of {updates:>7,} updates"
                f" heap-only, vacuumed {row['autovacuum_count'] - first['autovacuum_count']} times"
            )


def main() -> None:
    """Print claims, tables and rates of each choice."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else JOBS
    with database() as db:
        urls = [db.migrated(f"choice_{number}") for number in range(len(CHOICES))]
        asyncio.run(_compare(urls, jobs))
        show_machine()


async def _compare(urls: list[str], jobs: int) -> None:
    async with AsyncExitStack() as stack:
        contenders = [
            await _contender(stack, title, url) for title, url in zip(CHOICES, urls, strict=True)
        ]
        for _ in range(jobs // INSERTED):
            for contender in contenders:
                await contender.take_turn()
        for contender in contenders:
            await contender.tell(jobs)


async def _contender(stack: AsyncExitStack, title: str, url: str) -> Contender:
    session = await asyncpg.connect(url, command_timeout=120)
    stack.push_async_callback(session.close)
    await _choose(session, title)
    await session.execute(FILL.replace("$1::int", str(HISTORY)))
    await session.execute("vacuum analyze")
    before = {row["relname"]: row for row in await session.fetch(COUNTS, TABLES)}
    life = await stack.enter_async_context(Lifecycle(url, CLAIMED))
    return Contender(title, session, life, before)


async def _choose(session: "asyncpg.Connection[asyncpg.Record]", title: str) -> None:
    ours: dict[str, dict[str, str]] = {}
    for row in await session.fetch(OPTIONS, TABLES):
        ours.setdefault(row["relname"], {})[row["option_name"]] = row["option_value"]
    if title == CHOICES[0]:
        for table, options in ours.items():
            await session.execute(f"alter table haulage.{table} reset ({', '.join(options)})")
    if title == CHOICES[2]:
        given = ", ".join(f"{name} = {value}" for name, value in ours["jobs"].items())
        await session.execute(f"alter table haulage.job_attempts set ({given})")


if __name__ == "__main__":
    main()
