"""How many short jobs a node runs per second, each in a process of its own, and what one costs.

    python benchmarks/throughput.py

The jobs are stored before the node starts to claim. CPU is that of all processes of the service
and of all of PostgreSQL, ended workers and backends included.
"""

import time

from benchmarks.harness.figures import show_machine
from benchmarks.harness.running import Database, cpu_seconds, database, service

SLOTS = 4
RUNS = (("forkserver", 200), ("forkserver", 1_000), ("spawn", 40))
INSERT = """
with job as (
    insert into haulage.jobs (id, pipeline)
    select gen_random_uuid(), 'demo-echo' from generate_series(1, $1::int)
    returning id
)
insert into haulage.job_payloads (job_id, payload) select id, '{"n": 1}' from job
"""
UNFINISHED = "select count(*) from haulage.jobs where status in ('pending', 'running')"
SPAN = (
    "select extract(epoch from max(ended_at) - min(started_at))::float8 from haulage.job_attempts"
)
FAILED = "select count(*) from haulage.job_attempts where outcome <> 'completed'"


def main() -> None:
    """Print jobs per second and CPU per job for each run, and the start methods' ratio."""
    costs = {}
    with database() as db:
        for start_method, count in RUNS:
            rate, cost, server_cost = _run(db, start_method, count)
            costs[start_method] = cost + server_cost
            print(
                f"{count:>5} echo jobs, {SLOTS} slots, {start_method:<10}: {rate:6.1f} jobs/s; "
                f"CPU per job: Haulage {cost:6.1f} ms, PostgreSQL {server_cost:5.1f} ms"
            )
        show_machine()
    print(
        f"CPU per job, spawn against forkserver: {costs['spawn'] / costs['forkserver']:.1f} times"
    )


def _run(db: Database, start_method: str, count: int) -> tuple[float, float, float]:
    db.run("truncate haulage.jobs cascade")
    with service(db, "worker", max_concurrent_jobs=SLOTS, start_method=start_method) as node:
        before, server_before = cpu_seconds(node.pid), cpu_seconds(db.pid)
        db.run(INSERT, count)
        db.run("notify haulage_wake")
        while db.run(UNFINISHED)[0][0]:
            time.sleep(0.2)
        used, server_used = cpu_seconds(node.pid) - before, cpu_seconds(db.pid) - server_before
    assert db.run(FAILED)[0][0] == 0
    seconds = db.run(SPAN)[0][0]
    return count / seconds, used / count * 1_000, server_used / count * 1_000


if __name__ == "__main__":
    main()
