"""Cancelling and retrying with real processes: what is told is what is."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.processes import descendants, living
from support.service import Service, process_exists, wait_until
from support.sql import holding, rows
from system.conftest import Start
from system.stores import ROW_QUEUES, SQL, Store

# The statements that end an attempt and that cancel a job.
END = "%node_losses = node_losses +%"
CANCEL = "%cancel_requested_at = coalesce%"


def cancel(service: Service, job_id: str) -> tuple[int, str]:
    response = service.client.post(f"/jobs/{job_id}/cancel")
    body = response.json()
    return response.status_code, body["status"] if response.is_success else body["job_status"]


def retry(service: Service, job_id: str) -> int:
    return service.client.post(f"/jobs/{job_id}/retry").status_code


def message_pids(job: dict[str, Any]) -> list[int]:
    """The processes that a pipeline told of in its progress."""
    return [int(pid) for pid in job["progress"]["message"].split()]


@pytest.mark.parametrize("pipeline", ["grandchild", "stubborn", "cooperative"])
def test_a_cancelled_job_leaves_no_process(service: Service, pipeline: str) -> None:
    job_id = service.enqueue({"gate": "never"}, pipeline, max_attempts=5)
    stage = "working" if pipeline == "cooperative" else "grandchild"
    job = service.wait_for_stage(job_id, stage)
    pids = {job["pid"], *message_pids(job)}

    assert cancel(service, job_id) == (202, "running")
    ended = service.wait_for_end(job_id)

    assert ended["status"] == "cancelled"
    # It is told only when nothing of it runs any more.
    assert not living(pids)
    assert (ended["attempt"], ended["error"]) == (1, None)
    assert cancel(service, job_id) == (200, "cancelled")


@pytest.mark.one_store
@pytest.mark.parametrize("how", ["cancellation", "handler"])
def test_a_job_that_obeys_by_leaving_is_what_it_was_told_to_be(
    service: Service, shared_store: Store, how: str
) -> None:
    job_id = service.enqueue({"how": how}, "leaves-when-told", max_attempts=3)
    service.wait_for_stage(job_id, "working")
    cancel(service, job_id)
    assert service.wait_for_end(job_id)["status"] == "cancelled"

    job_id = service.enqueue({"how": how}, "leaves-when-told", timeout_seconds=1)
    assert service.wait_for_end(job_id)["error"]["cause"] == "timed_out"
    assert [a.cause for a in shared_store.attempts(job_id)] == ["timed_out"]


@pytest.mark.parametrize("how", ["cancellation", "handler"])
def test_a_job_that_leaves_at_a_shutdown_keeps_its_attempt(
    start: Start, store: Store, how: str
) -> None:
    with start(shutdown_grace_seconds=0) as service:
        job_id = service.enqueue({"how": how}, "leaves-when-told")
        service.wait_for_stage(job_id, "working")
        assert service.stop() == 0
    row = store.job(job_id)
    assert (row.status, row.attempt, row.node_losses) == ("pending", 0, 0)


def test_a_cancel_is_heard_at_once(start: Start) -> None:
    # Neither by the watchdog's look nor by a poll: both are far away.
    with start(watchdog_interval_seconds=60, poll_interval_seconds=60) as service:
        job_id = service.enqueue({"gate": "never"}, "gate")
        service.wait_for_stage(job_id, "waiting")

        cancel(service, job_id)

        assert service.wait_for_end(job_id, timeout_seconds=10)["status"] == "cancelled"


def test_a_cancel_is_found_by_looking_when_nobody_is_notified(start: Start) -> None:
    with start(notify=False) as service:
        job_id = service.enqueue({"gate": "never"}, "gate")
        service.wait_for_stage(job_id, "waiting")

        cancel(service, job_id)

        assert service.wait_for_end(job_id)["status"] == "cancelled"


def test_a_job_is_cancelled_through_another_node(start: Start) -> None:
    with start("worker"), start("api") as api:
        job_id = api.enqueue({"gate": "never"}, "gate")
        pid = api.wait_for_stage(job_id, "waiting")["pid"]

        assert cancel(api, job_id) == (202, "running")

        assert api.wait_for_end(job_id)["status"] == "cancelled"
        assert not process_exists(pid)


def test_what_a_job_keeps_when_told_is_there_for_its_retry(service: Service) -> None:
    job_id = service.enqueue({}, "saves-when-told")
    service.wait_for_stage(job_id, "working")
    cancel(service, job_id)
    assert service.wait_for_end(job_id)["status"] == "cancelled"

    assert retry(service, job_id) == 200

    assert service.wait_for_end(job_id)["status"] == "completed"
    assert service.result(job_id) == {"rows": 3}


def test_a_pending_job_never_starts_once_it_is_cancelled(start: Start, store: Store) -> None:
    with start(max_concurrent_jobs=1) as service:
        running = service.enqueue({"gate": "never"}, "gate")
        service.wait_for_stage(running, "waiting")
        waiting = service.enqueue({}, "demo-echo")

        assert cancel(service, waiting) == (200, "cancelled")
        cancel(service, running)
        assert service.wait_for_end(running)["status"] == "cancelled"
        # The slot is free again, and what comes later runs.
        assert service.wait_for_end(service.enqueue({}, "demo-echo"))["status"] == "completed"
    assert store.attempts(waiting) == []


def test_a_job_that_waits_for_its_retry_is_cancelled_at_once(
    service: Service, shared_store: Store
) -> None:
    job_id = service.enqueue({"message": "no"}, "demo-fail", max_attempts=2)
    wait_until(lambda: service.job(job_id)["error"], "end of the first attempt")

    assert cancel(service, job_id) == (200, "cancelled")

    assert [a.outcome for a in shared_store.attempts(job_id)] == ["failed"]


@pytest.mark.needs(ROW_QUEUES)
@pytest.mark.parametrize("is_result_first", [True, False], ids=["result first", "cancel first"])
def test_a_result_that_is_under_way_is_kept_in_both_orders(
    start: Start, store: Store, tmp_path: Path, *, is_result_first: bool
) -> None:
    gate = tmp_path / "gate"
    with start(kill_grace_seconds=20) as service, ThreadPoolExecutor(1) as clients:
        job_id = service.enqueue({"gate": str(gate)}, "gate")
        pid = service.wait_for_stage(job_id, "waiting")["pid"]
        with store.holding_job(job_id):
            # Who waits for the row first gets it first.
            if is_result_first:
                gate.touch()
                _wait_for_blocked(store.url, END, 1)
                asked = clients.submit(cancel, service, job_id)
                _wait_for_blocked(store.url, CANCEL, 1)
            else:
                asked = clients.submit(cancel, service, job_id)
                _wait_for_blocked(store.url, CANCEL, 1)
                gate.touch()
                _wait_for_blocked(store.url, END, 1)
        assert asked.result() == ((409, "completed") if is_result_first else (202, "running"))
        assert service.wait_for_end(job_id)["status"] == "completed"
        assert service.result(job_id) == {"attempt": 1}
        wait_until(lambda: not process_exists(pid), "end of the worker")


@pytest.mark.needs(SQL)
def test_a_cancel_between_result_and_end_does_not_throw_the_result_away(
    start: Start, store: Store, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with start() as service:
        job_id = service.enqueue({"gate": str(gate)}, "gate")
        service.wait_for_stage(job_id, "waiting")
        # The attempt's row is the second one that an end needs; the wish needs only the first.
        lock = f"select 1 from haulage.job_attempts where job_id = '{job_id}' for update"  # noqa: S608
        with holding(store.url, lock):
            gate.touch()
            _wait_for_blocked(store.url, END, 1)
        assert service.wait_for_end(job_id)["status"] == "completed"
        assert service.result(job_id) == {"attempt": 1}


def test_a_cancel_outlives_the_node_that_was_to_do_it(
    start: Start, store: Store, tmp_path: Path
) -> None:
    lease = {"node_lease_seconds": 2, "heartbeat_interval_seconds": 0.4}
    with start("api", **lease) as api:
        with start("worker", **lease) as worker:
            job_id = api.enqueue({"gate": "never"}, "gate", max_attempts=3)
            pid = api.wait_for_stage(job_id, "waiting")["pid"]
            os.kill(worker.pid, signal.SIGSTOP)
            assert cancel(api, job_id) == (202, "running")
            os.kill(worker.pid, signal.SIGKILL)
        wait_until(lambda: not process_exists(pid), "end of the orphan")
        with start("worker", **lease):
            assert api.wait_for_end(job_id)["status"] == "cancelled"
    assert [a.outcome for a in store.attempts(job_id)] == ["lost"]


def test_a_cancelled_job_is_not_given_back_by_a_shutdown(start: Start, store: Store) -> None:
    with start(shutdown_grace_seconds=0, kill_grace_seconds=60) as service:
        job_id = service.enqueue({}, "clinging")
        service.wait_for_stage(job_id, "clinging")
        cancel(service, job_id)
        processes = descendants(service.pid)
        assert service.stop() == 0
        wait_until(lambda: not living(processes), f"end of {processes}")
    assert store.job(job_id).status == "cancelled"


@pytest.mark.parametrize("pipeline", ["demo-echo", "demo-fail"])
def test_an_ended_job_runs_again_when_it_is_retried(
    service: Service, shared_store: Store, pipeline: str
) -> None:
    job_id = service.enqueue({"n": 1}, pipeline)
    status = service.wait_for_end(job_id)["status"]

    assert retry(service, job_id) == 200
    wait_until(lambda: len(shared_store.attempts(job_id)) == 2, "second attempt")

    assert service.wait_for_end(job_id)["status"] == status
    first, second = shared_store.attempts(job_id)
    assert (first.attempt, second.attempt) == (1, 1)
    assert (first.claim_no, second.claim_no) == (1, 2)
    assert first.outcome == second.outcome == status


def test_many_cancels_at_once_give_one_end(service: Service, shared_store: Store) -> None:
    job_id = service.enqueue({"gate": "never"}, "gate")
    service.wait_for_stage(job_id, "waiting")

    with ThreadPoolExecutor(20) as clients:
        answers = list(clients.map(service.client.post, [f"/jobs/{job_id}/cancel"] * 20))

    assert {answer.status_code for answer in answers} <= {200, 202}
    assert service.wait_for_end(job_id)["status"] == "cancelled"
    assert shared_store.statuses(job_id) == ["pending", "running", "cancelled"]
    assert json.loads(answers[0].text)["id"] == job_id


def _wait_for_blocked(url: str, statement: str, sessions: int) -> None:
    """Until so many sessions really wait for a lock with this statement."""
    wait_until(
        lambda: (
            len(
                rows(
                    url,
                    "select pid from pg_stat_activity where datname = current_database()"
                    " and wait_event_type = 'Lock' and query ilike $1",
                    statement,
                )
            )
            >= sessions
        ),
        f"a blocked {statement}",
    )
