"""How soon a job goes on after its worker, or its whole node, was killed by SIGKILL.

    python benchmarks/recovery.py

With the default lease, heartbeat and watch period. A worker: from the kill to the end of its
attempt. A node: from the kill to the first report of the job's next run on another node. All by
the database's clock.
"""

import os
import signal
import time
from contextlib import ExitStack
from datetime import datetime
from typing import Any

import httpx2

from app.config import NODE_LEASE_SECONDS, WATCHDOG_INTERVAL_SECONDS
from benchmarks.harness.figures import show, show_machine
from benchmarks.harness.running import Database, database, service

WORKERS = 20
GROUPS, NODES_IN_GROUP = 4, 5
# A heartbeat's period is no multiple of it, so that the kills hit every point of that.
BETWEEN_KILLS_SECONDS = 1.3
BODY = {"pipeline": "demo-sleep", "payload": {"seconds": 3_600, "steps": 1}}
RUNNING_PID = """
select a.pid, n.pid as node_pid
from haulage.jobs j
join haulage.job_attempts a on a.job_id = j.id and a.claim_no = j.claim_no
join haulage.nodes n on n.id = j.node_id
where j.id = $1::text::uuid and a.progress_at is not null
"""
DECIDED = "select ended_at from haulage.job_attempts where job_id = $1::text::uuid and claim_no = 1"
RUNS_AGAIN = """
select created_at from haulage.job_events
where job_id = $1::text::uuid and claim_no = 2 and kind = 'milestone'
"""


def main() -> None:
    """Print both distributions and what is promised."""
    with database() as db, service(db, "api") as api, httpx2.Client(base_url=api.url) as client:
        killed_workers = _kill_workers(db, client)
        killed_nodes = [
            seconds for _ in range(GROUPS) for seconds in _kill_nodes(db, client, NODES_IN_GROUP)
        ]
    show("worker killed -> attempt ended", [seconds * 1_000 for seconds in killed_workers])
    show("node killed -> job runs on another", killed_nodes, "s")
    show_machine()
    promised = NODE_LEASE_SECONDS + WATCHDOG_INTERVAL_SECONDS + 2
    print(f"worst: worker {max(killed_workers):.3f} s of 1 s promised, ", end="")
    print(f"node {max(killed_nodes):.1f} s of {promised:.0f} s promised")


def _kill_workers(db: Database, client: httpx2.Client) -> list[float]:
    found = []
    with service(db, "worker"):
        for _ in range(WORKERS):
            job_id = _enqueue(client)
            [pid, _] = _wait_for(db, RUNNING_PID, job_id)
            at = _kill(db, pid)
            [ended_at] = _wait_for(db, f"{DECIDED} and ended_at is not null", job_id)
            found.append((ended_at - at).total_seconds())
    return found


def _kill_nodes(db: Database, client: httpx2.Client, count: int) -> list[float]:
    killed: dict[str, datetime] = {}
    with ExitStack() as nodes:
        for _ in range(count):
            nodes.enter_context(service(db, "worker", max_concurrent_jobs=1))
        jobs = [_enqueue(client) for _ in range(count)]
        node_pids = {job_id: _wait_for(db, RUNNING_PID, job_id)[1] for job_id in jobs}
        with service(db, "worker", max_concurrent_jobs=count):
            for job_id, pid in node_pids.items():
                killed[job_id] = _kill(db, pid)
                time.sleep(BETWEEN_KILLS_SECONDS)
            again = {job_id: _wait_for(db, RUNS_AGAIN, job_id)[0] for job_id in jobs}
    for job_id in jobs:
        client.post(f"/jobs/{job_id}/cancel").raise_for_status()
    return [(again[job_id] - killed[job_id]).total_seconds() for job_id in jobs]


def _enqueue(client: httpx2.Client) -> str:
    response = client.post("/enqueue", json=BODY)
    response.raise_for_status()
    return str(response.json()["id"])


def _kill(db: Database, pid: int) -> datetime:
    at: datetime = db.run("select clock_timestamp()")[0][0]
    os.kill(pid, signal.SIGKILL)
    return at


def _wait_for(db: Database, statement: str, job_id: str) -> tuple[Any, ...]:
    """The statement's first row, once there is one."""
    end = time.monotonic() + 60
    while not (rows := db.run(statement, job_id)):
        assert time.monotonic() < end, statement
        time.sleep(0.01)
    return tuple(rows[0])


if __name__ == "__main__":
    main()
