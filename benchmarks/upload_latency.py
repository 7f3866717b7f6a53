"""How much later POST /enqueue answers while files of 20 MB are uploaded, read and stored.

    python -m benchmarks.upload_latency

Several clients submit jobs at a steady pace, over one connection each. Rounds with and without
uploads take turns, so that what else the machine does meets both alike. The uploads come from a
process of their own, one after the other for as long as a round lasts. A last pair of rounds does
the same while one result of 50,000 answers after the other is exported.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.harness.figures import percentile, show, show_machine
from benchmarks.harness.running import ROOT, Database, database, service

ROUNDS = 3
CLIENTS = 4
REQUESTS = 150
PACE_SECONDS = 0.04
FILE_BYTES = 20_000_000
ANSWERS = 50_000
TARGET = 2.0
# Far in the future: the jobs under measurement must not run themselves.
BODY: dict[str, Any] = {"pipeline": "demo-echo", "payload": {"n": 1}, "delay_seconds": 86_400}
# Sends one request after the other and a line for each answer, until it is killed.
REPEAT = """
import sys, time, httpx2
url, path = sys.argv[1:]
with httpx2.Client(timeout=300) as client:
    while True:
        began = time.monotonic()
        if path:
            with open(path, "rb") as file:
                answer = client.post(url, files={"file": ("answers.csv", file)})
        else:
            answer = client.get(url)
        answer.raise_for_status()
        print(time.monotonic() - began, flush=True)
"""


def main() -> None:
    """Print latencies, medians over the rounds, and the ratios."""
    with (
        database() as db,
        service(db) as server,
        tempfile.NamedTemporaryFile("w", suffix=".csv") as file,
    ):
        _write_answers(Path(file.name))
        job_id = _store_result(db)
        asyncio.run(_measure(server.url))  # warms up what is made at first use
        show_machine()
        upload = (f"{server.url}/datasets", file.name)
        export = (f"{server.url}/jobs/{job_id}/result?format=csv", "")
        for what, (url, path) in {"a 20 MB upload": upload, "an export": export}.items():
            _compare(server.url, what, url, path)


def _compare(url: str, what: str, busy_url: str, path: str) -> None:
    idle: list[list[float]] = []
    busy: list[list[float]] = []
    taken: list[float] = []
    for _ in range(ROUNDS):
        idle.append(asyncio.run(_measure(url)))
        with _repeating(busy_url, path) as seconds:
            busy.append(asyncio.run(_measure(url)))
        taken += seconds
    show("POST /enqueue alone", [value for values in idle for value in values])
    show(f"POST /enqueue beside {what}", [value for values in busy for value in values])
    print(f"{what}: {len(taken)}, median {statistics.median(taken or [0]):.2f} s")
    for share in (0.5, 0.99):
        before, after = (
            statistics.median(percentile(values, share) for values in rounds)
            for rounds in (idle, busy)
        )
        print(
            f"p{share * 100:.0f}: {before:.2f} -> {after:.2f} ms, ratio {after / before:.2f}"
            f" (median of {ROUNDS} rounds; aim: at most {TARGET:.0f})"
        )


async def _measure(url: str) -> list[float]:
    """Milliseconds of each request of every client."""
    values: list[float] = []

    async def submit(number: int) -> None:
        async with httpx2.AsyncClient(base_url=url) as client:
            await asyncio.sleep(PACE_SECONDS * number / CLIENTS)
            for _ in range(REQUESTS):
                began = time.perf_counter()
                (await client.post("/enqueue", json=BODY)).raise_for_status()
                values.append((time.perf_counter() - began) * 1_000)
                await asyncio.sleep(PACE_SECONDS)

    await asyncio.gather(*map(submit, range(CLIENTS)))
    return values


@contextmanager
def _repeating(url: str, path: str) -> Iterator[list[float]]:
    """A process that does the same again and again; the list has its seconds at the end."""
    command = [sys.executable, "-c", REPEAT, url, path]
    taken: list[float] = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        taken.append(float(process.stdout.readline()))
        yield taken
        assert process.poll() is None
        process.kill()
        taken += map(float, process.stdout.read().split())


def _write_answers(path: Path) -> None:
    line = "the staff were kind and patient, but we waited a long time in a cold corridor"
    rows = FILE_BYTES // (len(line) + 24)
    with path.open("w") as file:
        file.write("id,ward,text\n")
        for number in range(rows):
            file.write(f'{number},ward {number % 40},"{line} {number}"\n')


def _store_result(db: Database) -> str:
    """A completed job whose result has many answers, put there as if it had run."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.analysis import analysis  # noqa: PLC0415  the tests' own

    db.run(
        "with job as (insert into haulage.jobs (id, pipeline, status, finished_at)"
        " values (gen_random_uuid(), 'thematic', 'completed', now()) returning id),"
        " payload as (insert into haulage.job_payloads select id, '{}' from job)"
        " insert into haulage.job_results (job_id, claim_no, result)"
        " select id, 1, $1::jsonb from job",
        json.dumps(analysis(ANSWERS)),
    )
    return str(db.run("select job_id::text from haulage.job_results")[0][0])


if __name__ == "__main__":
    main()
