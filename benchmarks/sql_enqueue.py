"""How soon a job starts that another program commits, and what submitting it by SQL costs.

    python -m benchmarks.sql_enqueue

A node polls each 30 s, so only the wake-up of the commit can be what starts a job. "claimed" is
counted from just before the commit, by the database's clock. A rate is that of jobs with a small
payload in transactions of their own: one connection alone, then 16 at once, with and without the
NOTIFY whose lock makes commits wait for each other.
"""

import asyncio
import time

import asyncpg

from benchmarks.harness.figures import show, show_machine
from benchmarks.harness.running import Database, database, service

STARTS = 20
JOBS = 1_600
ENQUEUE = "select haulage.enqueue('{\"seconds\": 0}', pipeline => 'burn')"
SCHEDULED = ENQUEUE.replace(")", ", delay_seconds => 86400)")
UNFINISHED = "select count(*) from haulage.jobs where status in ('pending', 'running')"
CLAIMED = """
select extract(epoch from a.started_at - c.at)::float8 * 1000 as claimed
from haulage.job_attempts a
join committed c on c.job_id = a.job_id
"""


def main() -> None:
    """Print the latencies and the rates."""
    with database() as db:
        db.run("create temp table committed (job_id uuid, at timestamptz)")
        with service(db, "worker", poll_interval_seconds=30):
            for _ in range(STARTS):
                db.run("begin")
                [[job_id]] = db.run(ENQUEUE)
                db.run("insert into committed values ($1, clock_timestamp())", job_id)
                db.run("commit")
                db.wait_until_zero(UNFINISHED)
            show("committed -> claimed", [row["claimed"] for row in db.run(CLAIMED)])
        for committers in (1, 16):
            for title, statement, notify in (
                ("due", ENQUEUE, "on"),
                ("due, haulage.notify = off", ENQUEUE, "off"),
                ("scheduled", SCHEDULED, "on"),
            ):
                rate = asyncio.run(_rate(db, committers, statement, notify))
                print(f"{committers:2} at once, {title:<28} {rate:8.0f} jobs/s")
        show_machine()


async def _rate(db: Database, committers: int, statement: str, notify: str) -> float:
    """Jobs a second, by connections that are open already."""
    connections = [
        await asyncpg.connect(db.url, server_settings={"haulage.notify": notify})
        for _ in range(committers)
    ]

    async def submit(connection: "asyncpg.Connection[asyncpg.Record]", count: int) -> None:
        for _ in range(count):
            await connection.fetchval(statement)

    await asyncio.gather(*(submit(each, 20) for each in connections))
    began = time.perf_counter()
    await asyncio.gather(*(submit(each, JOBS // committers) for each in connections))
    seconds = time.perf_counter() - began
    for each in connections:
        await each.close()
    return JOBS / seconds


if __name__ == "__main__":
    main()
