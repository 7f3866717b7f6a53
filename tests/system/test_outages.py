"""What goes wrong around a job, not in it, costs the job nothing."""

import os
import signal
import time
from pathlib import Path

import pytest
from support.processes import descendants, living
from support.service import process_exists, wait_until
from system.conftest import Start
from system.stores import Store

from app.domain.jobs import JobStatus

SHORT_LEASE = {"node_lease_seconds": 2, "heartbeat_interval_seconds": 0.4}


def test_a_job_runs_again_when_its_node_lost_the_database_for_longer_than_its_lease(
    start: Start, store: Store, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with start(**SHORT_LEASE) as service:
        job_id = service.enqueue({"gate": str(gate)}, "gate")
        pid = service.wait_for_stage(job_id, "waiting")["pid"]
        with store.holding_nodes():
            wait_until(lambda: not process_exists(pid), "end of the worker")
        gate.touch()
        assert service.wait_for_end(job_id)["status"] == "completed"
    first, second = store.attempts(job_id)
    # One attempt allowed, and still allowed: the loss is the node's and counted apart.
    assert (first.outcome, first.cause) == ("lost", "node_lost")
    assert (second.outcome, second.attempt) == ("completed", 1)
    assert store.job(job_id).node_losses == 1


def test_a_result_is_stored_when_the_database_comes_back_after_the_lease(
    start: Start, store: Store, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with start(**SHORT_LEASE) as service:
        done = service.enqueue({"gate": str(gate)}, "gate")
        pid = service.wait_for_stage(done, "waiting")["pid"]
        other = service.enqueue({"gate": "never"}, "gate")
        others_pid = service.wait_for_stage(other, "waiting")["pid"]
        with store.holding_all():
            gate.touch()
            wait_until(lambda: not process_exists(others_pid), "end of the unfinished worker")
            assert process_exists(pid)
        assert service.wait_for_end(done)["status"] == "completed"
        assert [a.outcome for a in store.attempts(done)] == ["completed"]


def test_jobs_go_back_when_every_process_of_the_service_is_told_to_end(
    start: Start, store: Store
) -> None:
    with start(shutdown_grace_seconds=5) as service:
        ids = [service.enqueue({"gate": "never"}, "gate") for _ in range(2)]
        for job_id in ids:
            service.wait_for_stage(job_id, "waiting")
        processes = descendants(service.pid)
        # As a service manager does that signals the whole control group.
        for pid in [service.pid, *processes]:
            os.kill(pid, signal.SIGTERM)
        assert service.process.wait(20) == 0
    # The interpreter's own helper notices the end of its parent a moment later.
    wait_until(lambda: not living(processes), f"end of {processes}")
    for job_id in ids:
        row = store.job(job_id)
        assert (row.status, row.attempt, row.node_losses) == ("pending", 0, 0)


def test_a_worker_that_is_told_to_end_from_outside_counts_as_lost_not_as_failed(
    start: Start, store: Store, tmp_path: Path
) -> None:
    with start() as service:
        job_id = service.enqueue({"gate": str(tmp_path / "gate")}, "gate")
        os.kill(service.wait_for_stage(job_id, "waiting")["pid"], signal.SIGTERM)
        wait_until(lambda: store.attempts(job_id)[0].ended_at, "end of the attempt")
        row = store.job(job_id)
        assert (row.status, row.attempt, row.node_losses) == ("pending", 0, 1)


@pytest.mark.parametrize("pipeline", ["odd-records", "stray-exit"])
def test_odd_log_records_cost_no_result_and_a_stray_exit_no_slot(
    start: Start, store: Store, pipeline: str
) -> None:
    with start() as service:
        job = service.wait_for_end(service.enqueue({}, pipeline))
        if pipeline == "odd-records":
            assert job["status"] == "completed"
            assert store.log(job["id"])[-1].text == "and goes on"
        else:
            # Told by the pipeline's own error, though its loop was taken apart.
            assert (job["status"], job["error"]["cause"]) == ("failed", "exception")
            assert job["error"]["error_class"] == "SystemExit"
        wait_until(lambda: not process_exists(job["pid"]), "end of the worker")


def test_a_row_that_somebody_holds_delays_no_other_job(
    start: Start, store: Store, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with start() as service:
        held = service.enqueue({"gate": str(gate)}, "gate")
        pid = service.wait_for_stage(held, "waiting")["pid"]
        with store.holding_job(held):
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not process_exists(pid), "end of the worker")
            began = time.monotonic()
            for _ in range(3):
                assert service.wait_for_end(service.enqueue({}, "demo-echo"))["status"] == (
                    "completed"
                )
            # Far below the half minute for which one statement may wait.
            assert time.monotonic() - began < 10
        assert service.wait_for_end(held)["error"]["cause"] == "signal"


def test_one_lost_job_that_somebody_holds_keeps_no_other_lost(start: Start, store: Store) -> None:
    lost = store.insert_lost_jobs("demo-echo", 3)
    with store.holding_job(lost[0]), start():
        completed = JobStatus.COMPLETED
        wait_until(lambda: store.count_jobs(completed) == 2, "end of the rescued jobs")
        assert store.job(lost[0]).status == "running"
