"""What goes wrong around a job, not in it, costs the job nothing."""

import os
import signal
import time
from pathlib import Path

import pytest
from support.processes import descendants, living
from support.service import process_exists, wait_until
from support.sql import attempts, holding, insert_job, job_row, rows, value
from system.conftest import Start
from system.stores import SQL

pytestmark = pytest.mark.needs(SQL)

SHORT_LEASE = {"node_lease_seconds": 2, "heartbeat_interval_seconds": 0.4}
NODES_AWAY = "lock table haulage.nodes in access exclusive mode"
JOBS_AWAY = "lock table haulage.jobs in access exclusive mode"


def test_a_job_runs_again_when_its_node_lost_the_database_for_longer_than_its_lease(
    start: Start, database_url: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with start(**SHORT_LEASE) as service:
        job_id = service.enqueue({"gate": str(gate)}, "gate")
        pid = service.wait_for_stage(job_id, "waiting")["pid"]
        with holding(database_url, NODES_AWAY):
            wait_until(lambda: not process_exists(pid), "end of the worker")
        gate.touch()
        assert service.wait_for_end(job_id)["status"] == "completed"
    first, second = attempts(database_url, job_id)
    # One attempt allowed, and still allowed: the loss is the node's and counted apart.
    assert (first["outcome"], first["cause"]) == ("lost", "node_lost")
    assert (second["outcome"], second["attempt"]) == ("completed", 1)
    assert job_row(database_url, job_id)["node_losses"] == 1


def test_a_result_is_stored_when_the_database_comes_back_after_the_lease(
    start: Start, database_url: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with start(**SHORT_LEASE) as service:
        done = service.enqueue({"gate": str(gate)}, "gate")
        pid = service.wait_for_stage(done, "waiting")["pid"]
        other = service.enqueue({"gate": "never"}, "gate")
        others_pid = service.wait_for_stage(other, "waiting")["pid"]
        with holding(database_url, f"{JOBS_AWAY}; {NODES_AWAY}"):
            gate.touch()
            wait_until(lambda: not process_exists(others_pid), "end of the unfinished worker")
            assert process_exists(pid)
        assert service.wait_for_end(done)["status"] == "completed"
        assert [a["outcome"] for a in attempts(database_url, done)] == ["completed"]


def test_jobs_go_back_when_every_process_of_the_service_is_told_to_end(
    start: Start, database_url: str
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
        row = job_row(database_url, job_id)
        assert (row["status"], row["attempt"], row["node_losses"]) == ("pending", 0, 0)


def test_a_worker_that_is_told_to_end_from_outside_counts_as_lost_not_as_failed(
    start: Start, database_url: str, tmp_path: Path
) -> None:
    with start() as service:
        job_id = service.enqueue({"gate": str(tmp_path / "gate")}, "gate")
        os.kill(service.wait_for_stage(job_id, "waiting")["pid"], signal.SIGTERM)
        wait_until(lambda: attempts(database_url, job_id)[0]["ended_at"], "end of the attempt")
        row = job_row(database_url, job_id)
        assert (row["status"], row["attempt"], row["node_losses"]) == ("pending", 0, 1)


@pytest.mark.parametrize("pipeline", ["odd-records", "stray-exit"])
def test_odd_log_records_cost_no_result_and_a_stray_exit_no_slot(
    start: Start, database_url: str, pipeline: str
) -> None:
    with start() as service:
        job = service.wait_for_end(service.enqueue({}, pipeline))
        if pipeline == "odd-records":
            assert job["status"] == "completed"
            lines = rows(
                database_url, "select level, source, line from haulage.job_logs order by id"
            )
            assert [row["line"] for row in lines][-1] == "and goes on"
        else:
            # Told by the pipeline's own error, though its loop was taken apart.
            assert (job["status"], job["error"]["cause"]) == ("failed", "exception")
            assert job["error"]["error_class"] == "SystemExit"
        wait_until(lambda: not process_exists(job["pid"]), "end of the worker")


def test_a_row_that_somebody_holds_delays_no_other_job(
    start: Start, database_url: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with start() as service:
        held = service.enqueue({"gate": str(gate)}, "gate")
        pid = service.wait_for_stage(held, "waiting")["pid"]
        with holding(database_url, _lock(held)):
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


def test_one_lost_job_that_somebody_holds_keeps_no_other_lost(
    start: Start, database_url: str
) -> None:
    lost = [_insert_lost_job(database_url, age) for age in (30, 20, 10)]
    with holding(database_url, _lock(lost[0])), start():
        others = "select count(*) from haulage.jobs where status = 'completed'"
        wait_until(lambda: value(database_url, others) == 2, "end of the rescued jobs")
        assert job_row(database_url, lost[0])["status"] == "running"


def _lock(job_id: str) -> str:
    return f"select 1 from haulage.jobs where id = '{job_id}' for update"  # noqa: S608  our own id


def _insert_lost_job(url: str, age_seconds: int) -> str:
    """A running job whose node was never heard of, claimed so long ago."""
    [job_id] = insert_job(url, "demo-echo", notify=False)
    rows(
        url,
        "with job as (update haulage.jobs set status = 'running', attempt = 1, claim_no = 1,"
        "  node_id = gen_random_uuid(), started_at = now() - make_interval(secs => $2)"
        "  where id = $1::text::uuid returning *)"
        " insert into haulage.job_attempts (job_id, claim_no, attempt, node_id)"
        " select id, 1, 1, node_id from job",
        job_id,
        age_seconds,
    )
    return job_id
