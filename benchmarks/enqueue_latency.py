"""How much later POST /enqueue answers while every slot burns CPU than while none does.

    python benchmarks/enqueue_latency.py

Idle and busy rounds take turns, so that what else the machine does meets both alike. The client
sends one request at a time, each 10 ms, over one connection.
"""

import statistics
import time
from typing import Any

import httpx2

from app.machine import usable_cpus
from benchmarks.harness.figures import milliseconds, percentile, show, show_machine
from benchmarks.harness.running import database, service

ROUNDS = 4
REQUESTS = 300
PACE_SECONDS = 0.01
TARGET = 2.0
NOT_YET_BURNING = "select $1::int - count(*) from haulage.job_events where stage = 'burning'"
# Far in the future: the jobs under measurement must not run themselves.
BODY: dict[str, Any] = {"pipeline": "demo-echo", "payload": {"n": 1}, "delay_seconds": 86_400}


def main() -> None:
    """Print latencies, medians over the rounds, and the ratio."""
    idle: list[list[float]] = []
    busy: list[list[float]] = []
    with database() as db, service(db) as server, httpx2.Client(base_url=server.url) as client:
        _measure(client)  # warms up what is made at first use
        for _ in range(ROUNDS):
            idle.append(_measure(client))
            slots = _burn(client)
            db.wait_until_zero(NOT_YET_BURNING, slots)
            busy.append(_measure(client))
            db.wait_until_zero("select count(*) from haulage.jobs where status = 'running'")
            db.run("truncate haulage.job_events")
        show_machine()
    show("POST /enqueue, idle", [value for values in idle for value in values])
    show(
        f"POST /enqueue, {slots} slots burning CPU", [value for values in busy for value in values]
    )
    for share in (0.5, 0.99):
        before, after = (
            statistics.median(percentile(values, share) for values in rounds)
            for rounds in (idle, busy)
        )
        print(
            f"p{share * 100:.0f}: {before:.2f} -> {after:.2f} ms, ratio {after / before:.2f}"
            f" (median of {ROUNDS} rounds; aim: at most {TARGET:.0f})"
        )


def _measure(client: httpx2.Client) -> list[float]:
    values = []
    for _ in range(REQUESTS):
        values.append(milliseconds(lambda: client.post("/enqueue", json=BODY).raise_for_status()))
        time.sleep(PACE_SECONDS)
    return values


def _burn(client: httpx2.Client) -> int:
    # As long as a round lasts, and some more.
    slots = usable_cpus()
    seconds = REQUESTS * (PACE_SECONDS + 0.015)
    for _ in range(slots):
        body = {"pipeline": "burn", "payload": {"seconds": seconds}}
        client.post("/enqueue", json=body).raise_for_status()
    return slots


if __name__ == "__main__":
    main()
