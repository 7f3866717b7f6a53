"""How soon a job starts: at once by wake-ups, within the poll interval without."""

import statistics
from collections.abc import Callable

import pytest
from support.processes import command_of, frozen
from support.service import wait_until
from support.sql import rows
from system.conftest import Start
from system.stores import SQL, Store

LISTENER = (
    "select pid from pg_stat_activity"
    " where datname = current_database() and application_name = 'haulage-listener'"
)
POLL_SECONDS = 2.0
# A claim on a busy machine; the poll itself is to the point.
SLACK_SECONDS = 1.0


def _start_latency(store: Store, job_id: str) -> float:
    """Seconds from insert to claim, both by the database's clock."""
    wait_until(lambda: store.attempts(job_id), "start", 40)
    [attempt] = store.attempts(job_id)
    return (attempt.started_at - store.job(job_id).created_at).total_seconds()


def _median_latency(store: Store, enqueue: Callable[[], str], count: int) -> float:
    latencies = []
    for _ in range(count):
        job_id = enqueue()
        latencies.append(_start_latency(store, job_id))
        wait_until(lambda job_id=job_id: store.job(job_id).status.is_terminal, "end")  # type: ignore[misc]
    return statistics.median(latencies)


def test_a_job_enqueued_at_one_node_starts_at_another_within_200_ms(
    start: Start, store: Store
) -> None:
    with start("api") as api, start("worker", poll_interval_seconds=30):
        assert _median_latency(store, lambda: api.enqueue({}, "demo-echo"), 20) < 0.2


@pytest.mark.needs(SQL)
def test_a_listener_that_comes_back_hears_as_before(start: Start, store: Store) -> None:
    with start("api") as api, start("worker", poll_interval_seconds=30):
        [before] = wait_until(lambda: rows(store.url, LISTENER), "listener")
        rows(store.url, "select pg_terminate_backend($1)", before[0])
        wait_until(lambda: set(rows(store.url, LISTENER)) - {before}, "new listener")
        assert _median_latency(store, lambda: api.enqueue({}, "demo-echo"), 5) < 0.2


@pytest.mark.needs(SQL)
def test_a_listener_that_comes_back_looks_for_what_it_has_missed(
    start: Start, store: Store
) -> None:
    with start("worker", poll_interval_seconds=3_600):
        [listener] = wait_until(lambda: rows(store.url, LISTENER), "listener")
        [job_id] = store.insert_jobs("demo-echo", notify=False)
        assert not store.attempts(job_id)

        rows(store.url, "select pg_terminate_backend($1)", listener[0])

        assert _start_latency(store, job_id) < 20


def test_a_job_starts_within_the_poll_interval_when_nobody_is_notified(
    start: Start, store: Store
) -> None:
    with start(notify=False, poll_interval_seconds=POLL_SECONDS) as service:
        _assert_polled(store, service.enqueue({}, "demo-echo"))


@pytest.mark.needs(SQL)
def test_a_job_starts_within_the_poll_interval_when_the_listener_is_frozen(
    start: Start, store: Store
) -> None:
    with start(poll_interval_seconds=POLL_SECONDS) as service:
        pid: int = wait_until(lambda: rows(store.url, LISTENER), "listener")[0][0]
        if "postgres" not in command_of(pid):
            pytest.skip("the database server runs elsewhere")
        with frozen(pid):
            _assert_polled(store, service.enqueue({}, "demo-echo"))


def _assert_polled(store: Store, job_id: str) -> None:
    assert _start_latency(store, job_id) < POLL_SECONDS + SLACK_SECONDS
    wait_until(lambda: store.job(job_id).status == "completed", "end")
