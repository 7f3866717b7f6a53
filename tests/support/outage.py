"""What clients, load balancers and operators see of a service while its database misbehaves."""

import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import httpx2
from support.service import Service, wait_until
from support.sql import rows

LIVE_SECONDS = 1.0
# What a submitter waits at most, with a little for a busy machine.
ANSWER_SECONDS = 7.0
GIVE_UP_SECONDS = 20.0
SETTLED_SECONDS = 40.0
IDLE_SECONDS = 1.0
LINES_PER_SECOND = 10
BETWEEN_SUBMISSIONS_SECONDS = 0.25
BETWEEN_LOOKS_SECONDS = 0.1

IDLE_IN_TRANSACTION = """
select count(*) from pg_stat_activity
where datname = current_database() and application_name like 'haulage%'
  and state like 'idle in transaction%' and now() - state_change > make_interval(secs => $1)
"""


@dataclass
class Observed:
    """Everything that was answered, in the order of the answers.

    Attributes:
        submitted: for each POST /enqueue its status, headers and how long it took.
        accepted: the numbers of the jobs that were promised, by their ids.
        alive_seconds: how long each GET /livez took.
        trouble: what must not happen at all.
    """

    submitted: list[tuple[int, dict[str, str], float]] = field(default_factory=list)
    accepted: dict[str, int] = field(default_factory=dict)
    alive_seconds: list[float] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)

    @property
    def statuses(self) -> Counter[int]:
        return Counter(status for status, _, _ in self.submitted)


@contextmanager
def observed(service: Service, *, streams: int = 2, padding: int = 0) -> Iterator[Observed]:
    """Submit jobs and ask whether the service is alive, all the time; then judge the answers.

    Args:
        padding: characters that make a job's payload larger, and cannot be compressed.
    """
    seen = Observed()
    stopping = threading.Event()
    threads = [
        threading.Thread(target=_submit, args=(service.url, seen, stopping, number, padding))
        for number in range(streams)
    ]
    threads.append(threading.Thread(target=_ask_whether_alive, args=(service.url, seen, stopping)))
    for thread in threads:
        thread.start()
    pid = service.pid
    try:
        yield seen
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    assert not seen.trouble
    assert service.process.poll() is None, service.log.read_text()
    assert service.pid == pid
    assert max(seen.alive_seconds) < LIVE_SECONDS
    assert seen.statuses.keys() <= {200, 503}
    assert max((seconds for _, _, seconds in seen.submitted), default=0.0) < ANSWER_SECONDS


def _submit(url: str, seen: Observed, stopping: threading.Event, stream: int, padding: int) -> None:
    number = stream * 1_000_000
    with httpx2.Client(base_url=url, timeout=GIVE_UP_SECONDS) as client:
        while not stopping.wait(BETWEEN_SUBMISSIONS_SECONDS):
            number += 1
            payload = {"number": number, "padding": secrets.token_hex(padding // 2)}
            body = {"payload": payload, "pipeline": "demo-echo"}
            began = time.monotonic()
            try:
                answer = client.post("/enqueue", json=body)
            except httpx2.HTTPError as error:
                seen.trouble.append(f"no answer after {time.monotonic() - began:.1f} s: {error!r}")
                continue
            taken = time.monotonic() - began
            seen.submitted.append((answer.status_code, dict(answer.headers), taken))
            if answer.status_code == 200:
                seen.accepted[answer.json()["id"]] = number
            elif answer.status_code == 503 and not _is_polite(answer):
                seen.trouble.append(f"{answer.headers} {answer.text}")
            elif answer.status_code != 503:
                seen.trouble.append(answer.text)


def _is_polite(answer: httpx2.Response) -> bool:
    kind = answer.headers["content-type"]
    return kind == "application/problem+json" and answer.headers["retry-after"].isdecimal()


def _ask_whether_alive(url: str, seen: Observed, stopping: threading.Event) -> None:
    with httpx2.Client(base_url=url, timeout=GIVE_UP_SECONDS) as client:
        while not stopping.wait(BETWEEN_LOOKS_SECONDS):
            began = time.monotonic()
            try:
                client.get("/livez").raise_for_status()
            except httpx2.HTTPError as error:
                seen.trouble.append(f"livez: {error!r}")
            seen.alive_seconds.append(time.monotonic() - began)


def is_ready(service: Service) -> bool:
    return service.client.get("/readyz").status_code == 200


def wait_for_refusals(seen: Observed, count: int) -> None:
    """Return once so many more submissions were refused."""
    before = seen.statuses[503]
    wait_until(lambda: seen.statuses[503] >= before + count, "refused submissions", 60)


def wait_for_acceptance(seen: Observed, count: int = 3) -> None:
    """Return once so many more submissions were accepted."""
    before = len(seen.accepted)
    wait_until(lambda: len(seen.accepted) >= before + count, "accepted submissions", 60)


def assert_everything_done_once(
    url: str, seen: Observed, *, others: frozenset[str] = frozenset()
) -> Counter[tuple[str, str]]:
    """Every accepted job ended well in one counted attempt; gives what other attempts there were.

    Submissions whose answer was a no may exist all the same; they are held to the same.

    Args:
        others: outcomes of attempts that cost the job nothing and may occur.
    """
    unfinished = "select count(*) from haulage.jobs where status in ('pending', 'running')"
    wait_until(lambda: rows(url, unfinished)[0][0] == 0, "end of every job", SETTLED_SECONDS)
    jobs = {
        row["id"]: row
        for row in rows(
            url,
            "select j.id::text as id, j.status, j.attempt, j.node_losses, p.payload->'number' as n,"
            " r.result->'echo'->'number' as result"
            " from haulage.jobs j left join haulage.job_results r on r.job_id = j.id"
            " left join haulage.job_payloads p on p.job_id = j.id where j.pipeline = 'demo-echo'",
        )
    }
    assert seen.accepted.keys() <= jobs.keys()
    for job_id, job in jobs.items():
        assert (job["status"], job["attempt"], job["result"]) == ("completed", 1, job["n"]), job
        assert job["n"] == str(seen.accepted.get(job_id, job["n"]))
    ends = rows(
        url, "select job_id::text as job, outcome, coalesce(cause, '') from haulage.job_attempts"
    )
    completed = Counter(row[0] for row in ends if row[1] == "completed")
    assert set(completed.values()) <= {1}
    rest = Counter((row[1], row[2]) for row in ends if row[1] != "completed")
    assert {outcome for outcome, _ in rest} <= others, rest
    return rest


def assert_readable(log_text: str, seconds: float, password: str) -> None:
    """What was logged in so many seconds can be read by a person."""
    troubles = re.findall(r"^.* (?:WARNING|ERROR|CRITICAL) .*$", log_text, re.MULTILINE)
    assert "Traceback" not in log_text
    assert password not in log_text
    # Each thing that fails says so once, however short the outage.
    assert len(troubles) < LINES_PER_SECOND * max(3.0, seconds), "\n".join(troubles)


@contextmanager
def no_idle_transaction(url: str) -> Iterator[None]:
    """No session of ours sits in a transaction for more than a moment; looked at all the time."""
    stopping = threading.Event()
    found: list[int] = []

    def look() -> None:
        while not stopping.wait(BETWEEN_LOOKS_SECONDS):
            try:
                found.append(rows(url, IDLE_IN_TRANSACTION, IDLE_SECONDS)[0][0])
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
                continue  # away, as it should be

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
    assert found
    assert not any(found)


def measured(work: Callable[[], Any]) -> float:
    """Seconds that `work` takes."""
    began = time.monotonic()
    work()
    return time.monotonic() - began
