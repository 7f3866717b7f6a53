"""How many more jobs a second are stored when those who submit at once share their commits.

    python benchmarks/submission.py

32 submitters, each with one job after the other, on one adapter and a durable cluster. Rounds with
and without groups take turns, so that what else the machine does meets both alike; without them
each job has a statement and a commit of its own, on as many connections as the pool has.
"""

import asyncio
import statistics
import time

from app.db import grouping
from app.db.postgres.adapter import MAX_POOL_CONNECTIONS, PostgresJobsDB
from benchmarks.harness.figures import percentile, show_machine
from benchmarks.harness.running import database

SUBMITTERS = 32
ROUNDS = 4
ROUND_SECONDS = 2.0
# Groups in flight, and rows in a group at most.
WAYS = {
    "one by one": (MAX_POOL_CONNECTIONS, 1),
    "in groups": (grouping.GROUPS_IN_FLIGHT, grouping.MAX_GROUP_ROWS),
}


def main() -> None:
    """Print jobs per second and latencies of both ways, and the ratio."""
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    waits: dict[str, list[float]] = {name: [] for name in WAYS}
    alone: dict[str, list[float]] = {name: [] for name in WAYS}
    with database() as db:
        for _ in range(ROUNDS):
            for name, (in_flight, rows) in WAYS.items():
                grouping.GROUPS_IN_FLIGHT = in_flight  # type: ignore[misc]
                grouping.MAX_GROUP_ROWS = rows  # type: ignore[misc]
                found = asyncio.run(_submit(db.url, SUBMITTERS, ROUND_SECONDS))
                rates[name].append(len(found) / ROUND_SECONDS)
                waits[name] += found
                alone[name] += asyncio.run(_submit(db.url, 1, ROUND_SECONDS / 4))
                db.run("truncate haulage.jobs cascade")
        show_machine()
    for name in WAYS:
        print(
            f"{name:<12} {statistics.median(rates[name]):7.0f} jobs/s; "
            f"p50 {percentile(waits[name], 0.5):6.2f} ms, p99 {percentile(waits[name], 0.99):6.2f}"
            f" ms; a lone submitter: p50 {percentile(alone[name], 0.5):5.2f} ms,"
            f" p99 {percentile(alone[name], 0.99):5.2f} ms"
        )
    single, grouped = (statistics.median(rates[name]) for name in WAYS)
    print(f"in groups against one by one: {grouped / single:.2f} times the rate")


async def _submit(url: str, submitters: int, seconds: float) -> list[float]:
    db = PostgresJobsDB(url, notify=False)
    await asyncio.gather(*(db.insert_pending_job({"n": 0}) for _ in range(SUBMITTERS)))
    waits: list[float] = []
    end = time.perf_counter() + seconds

    async def submit() -> None:
        while (began := time.perf_counter()) < end:
            await db.insert_pending_job({"n": 1})
            waits.append((time.perf_counter() - began) * 1_000)

    await asyncio.gather(*(submit() for _ in range(submitters)))
    await db.close()
    return waits


if __name__ == "__main__":
    main()
