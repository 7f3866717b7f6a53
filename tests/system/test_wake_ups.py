"""How soon a job starts: at once by NOTIFY, within the poll interval without."""

import functools
import statistics
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from support.processes import command_of, frozen
from support.service import wait_until
from support.sql import attempts, insert_job, job_row, rows
from system.conftest import Start
from system.stores import SQL

pytestmark = pytest.mark.needs(SQL)

LISTENER = (
    "select pid from pg_stat_activity"
    " where datname = current_database() and application_name = 'haulage-listener'"
)
POLL_SECONDS = 2.0
# A claim on a busy machine; the poll itself is to the point.
SLACK_SECONDS = 1.0


def _start_latency(url: str, job_id: str) -> float:
    """Seconds from insert to claim, both by the database's clock."""
    wait_until(lambda: attempts(url, job_id), "start", 40)
    [attempt] = attempts(url, job_id)
    seconds: float = (attempt["started_at"] - job_row(url, job_id)["created_at"]).total_seconds()
    return seconds


def _is_completed(url: str, job_id: str) -> bool:
    return bool(job_row(url, job_id)["status"] == "completed")


def _median_latency(url: str, enqueue: Callable[[], str], count: int) -> float:
    latencies = []
    for _ in range(count):
        job_id = enqueue()
        latencies.append(_start_latency(url, job_id))
        wait_until(functools.partial(_is_completed, url, job_id), "end")
    return statistics.median(latencies)


def test_a_job_enqueued_at_one_node_starts_at_another_within_200_ms(
    start: Start, database_url: str
) -> None:
    with start("api") as api, start("worker", poll_interval_seconds=30):
        median = _median_latency(database_url, lambda: api.enqueue({}, "demo-echo"), 20)
        assert median < 0.2

        # And again after the listener has lost its connection.
        [before] = rows(database_url, LISTENER)
        rows(database_url, "select pg_terminate_backend($1)", before[0])
        wait_until(lambda: set(rows(database_url, LISTENER)) - {before}, "new listener")
        assert _median_latency(database_url, lambda: api.enqueue({}, "demo-echo"), 5) < 0.2


def test_a_listener_that_comes_back_looks_for_what_it_has_missed(
    start: Start, database_url: str
) -> None:
    with start("worker", poll_interval_seconds=3_600):
        [listener] = wait_until(lambda: rows(database_url, LISTENER), "listener")
        [job_id] = insert_job(database_url, "demo-echo", notify=False)
        assert not attempts(database_url, job_id)

        rows(database_url, "select pg_terminate_backend($1)", listener[0])

        assert _start_latency(database_url, job_id) < 20


@pytest.mark.parametrize("fault", ["notify off", "listener frozen"])
def test_without_wake_ups_a_job_starts_within_the_poll_interval(
    start: Start, database_url: str, fault: str
) -> None:
    is_notifying = fault != "notify off"
    with start(notify=is_notifying, poll_interval_seconds=POLL_SECONDS) as service:
        pid: int = wait_until(lambda: rows(database_url, LISTENER), "listener")[0][0]
        if is_notifying and "postgres" not in command_of(pid):
            pytest.skip("the database server runs elsewhere")
        with frozen(pid) if is_notifying else nullcontext():
            job_id = service.enqueue({}, "demo-echo")
            latency = _start_latency(database_url, job_id)
        assert latency < POLL_SECONDS + SLACK_SECONDS
        assert service.wait_for_end(job_id)["status"] == "completed"
