"""How soon a job starts after POST /enqueue, woken by NOTIFY and by polling alone.

    python benchmarks/wake_up.py

API and node are processes of their own; each job waits for the one before it. "claimed" and "runs"
(the pipeline's first report) are counted from the insert, all by the database's clock.
"""

import statistics
import time

import httpx2

from benchmarks.harness.figures import show, show_machine
from benchmarks.harness.running import Database, database, service

POLL_SECONDS = 1.0
RUNS = (("NOTIFY", True, 30.0, 40), (f"polling each {POLL_SECONDS:g} s", False, POLL_SECONDS, 20))
LATENCIES = """
select
    extract(epoch from a.started_at - j.created_at)::float8 * 1000 as claimed,
    extract(epoch from e.created_at - j.created_at)::float8 * 1000 as runs
from haulage.jobs j
join haulage.job_attempts a on a.job_id = j.id
join haulage.job_events e on e.job_id = j.id and e.kind = 'milestone'
"""
UNFINISHED = "select count(*) from haulage.jobs where status in ('pending', 'running')"


def main() -> None:
    """Print both latencies for both ways, and their ratio."""
    medians = []
    with database() as db:
        for title, is_notifying, poll_seconds, count in RUNS:
            rows = _run(db, poll_seconds, count, notify=is_notifying)
            show(f"{title}: enqueued -> claimed", [row[0] for row in rows])
            show(f"{title}: enqueued -> runs", [row[1] for row in rows])
            medians.append(statistics.median(row[0] for row in rows))
        show_machine()
    print(f"polling against NOTIFY, median until the claim: {medians[1] / medians[0]:.0f} times")


def _run(
    db: Database, poll_seconds: float, count: int, *, notify: bool
) -> list[tuple[float, float]]:
    db.run("truncate haulage.jobs cascade")
    body = {"pipeline": "burn", "payload": {"seconds": 0}}
    with (
        service(db, "worker", poll_interval_seconds=poll_seconds, notify=notify),
        service(db, "api", notify=notify) as api,
        httpx2.Client(base_url=api.url) as client,
    ):
        for number in range(count):
            client.post("/enqueue", json=body).raise_for_status()
            db.wait_until_zero(UNFINISHED)
            # The end of a job starts the interval anew; the next one comes at any point of it.
            time.sleep(POLL_SECONDS * (number % 7) / 7)
    return [(row["claimed"], row["runs"]) for row in db.run(LATENCIES)]


if __name__ == "__main__":
    main()
