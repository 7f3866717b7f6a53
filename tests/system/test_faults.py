"""Everything that can go wrong around a job, done to it for real."""

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.processes import children, command_of, frozen
from support.service import Service, process_exists, running, wait_until
from system.conftest import SETTINGS, Start
from system.servers import Server
from system.stores import Store

from app.domain.jobs import Attempt, JobStatus

# A node that is soon missed.
SHORT_LEASE = {"node_lease_seconds": 2, "heartbeat_interval_seconds": 0.4}


# -- the worker dies ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "cause", "exit_code", "number", "message"),
    [
        ("kill", "signal", None, 9, "worker was ended by SIGKILL"),
        ("abort", "signal", None, 6, "worker was ended by SIGABRT"),
        ("exit", "exit_code", 3, None, "worker ended with exit code 3"),
    ],
)
def test_a_worker_that_dies_fails_its_job_and_no_other(
    service: Service,
    shared_store: Store,
    tmp_path: Path,
    how: str,
    cause: str,
    exit_code: int | None,
    number: int | None,
    message: str,
) -> None:
    gate = tmp_path / "gate"
    neighbour = service.enqueue({"gate": str(gate)}, "gate")
    service.wait_for_stage(neighbour, "waiting")

    job_id = service.enqueue({"how": how, "exit_code": 3}, "demo-crash")
    job = service.wait_for_end(job_id)
    gate.touch()

    assert job["status"] == "failed"
    assert [m["stage"] for m in job["milestones"]] == ["crashing"]
    assert (job["error"]["cause"], job["error"]["message"]) == (cause, message)
    [attempt] = shared_store.attempts(job_id)
    assert (attempt.exit_code, attempt.signal) == (exit_code, number)
    assert service.wait_for_end(neighbour)["status"] == "completed"


def test_exit_code_zero_without_a_result_is_no_success(
    service: Service, shared_store: Store
) -> None:
    job = service.wait_for_end(service.enqueue({}, "quiet-exit"))
    assert job["status"] == "failed"
    assert job["error"]["message"] == "worker ended with exit code 0 without storing a result"
    [attempt] = shared_store.attempts(job["id"])
    assert (attempt.cause, attempt.exit_code) == ("exit_code", 0)


@pytest.mark.one_store
def test_the_grandchild_of_a_crashed_worker_is_ended(service: Service) -> None:
    job = service.wait_for_end(service.enqueue({"then": "die"}, "grandchild"))
    assert job["error"]["message"] == "worker was ended by SIGKILL"
    # The attempt ends when the group is empty, not a moment before.
    assert not process_exists(_grandchild(job))


@pytest.mark.one_store
def test_what_a_finished_job_leaves_running_is_ended(service: Service) -> None:
    job = service.wait_for_end(service.enqueue({"then": "return"}, "grandchild"))
    # It held on to the job's stdout, too.
    assert job["status"] == "completed"
    wait_until(lambda: not process_exists(_grandchild(job)), "end of the grandchild", 5)


# -- the pipeline fails ---------------------------------------------------------------------------


def test_an_exception_is_kept_with_class_message_and_traceback(service: Service) -> None:
    job = service.wait_for_end(service.enqueue({"message": "the disk is full"}, "demo-fail"))
    assert job["status"] == "failed"
    error = job["error"]
    assert (error["cause"], error["error_class"]) == ("exception", "RuntimeError")
    assert error["message"] == "the disk is full"
    assert error["traceback"].startswith("Traceback (most recent call last):")
    assert "in run" in error["traceback"]


def test_every_attempt_keeps_its_own_error(service: Service, shared_store: Store) -> None:
    job_id = service.enqueue({}, "flaky", max_attempts=3)
    for number in (1, 2):
        _wait_for_attempts(shared_store, job_id, number)
        shared_store.make_due(job_id)

    assert service.wait_for_end(job_id)["status"] == "completed"
    assert service.result(job_id) == "third time lucky"
    told = [
        (row.attempt, row.outcome, row.cause, row.error_message, row.exit_code)
        for row in shared_store.attempts(job_id)
    ]
    assert told == [
        (1, "failed", "exception", "the first reason", None),
        (2, "failed", "exit_code", "worker ended with exit code 7", 7),
        (3, "completed", None, None, None),
    ]
    # And the waiting was announced: the delay grows from five seconds, half of it random.
    assert shared_store.statuses(job_id) == [
        *("pending", "running", "pending", "running", "pending", "running", "completed")
    ]


def _wait_for_attempts(store: Store, job_id: str, count: int) -> None:
    def ended() -> bool:
        return [a.ended_at is not None for a in store.attempts(job_id)] == [True] * count

    wait_until(ended, f"end of attempt {count}")


def test_a_job_that_kills_its_worker_is_failed_after_its_last_attempt(
    service: Service, shared_store: Store
) -> None:
    job_id = service.enqueue({}, "demo-crash", max_attempts=2)
    _wait_for_attempts(shared_store, job_id, 1)
    assert service.job(job_id)["status"] == "pending"
    shared_store.make_due(job_id)

    assert service.wait_for_end(job_id)["status"] == "failed"
    assert [row.signal for row in shared_store.attempts(job_id)] == [9, 9]


def test_sys_exit_in_a_pipeline_is_its_failure(service: Service) -> None:
    job = service.wait_for_end(service.enqueue({}, "sys-exit"))
    assert job["status"] == "failed"
    error = job["error"]
    assert (error["cause"], error["error_class"]) == ("exception", "SystemExit")
    assert error["message"] == "enough"


@pytest.mark.one_store
@pytest.mark.parametrize(
    ("pipeline", "reason"),
    [
        ("import-raises", "no licence for this module"),
        ("import-exits", "SystemExit: 5"),
        ("no-such-module", "No module named 'support.nowhere'"),
        ("no-such-class", "has no attribute 'Nowhere'"),
    ],
)
def test_a_pipeline_that_cannot_be_loaded_says_why(
    service: Service, pipeline: str, reason: str
) -> None:
    job = service.wait_for_end(service.enqueue({}, pipeline))
    assert job["status"] == "failed"
    assert job["error"]["cause"] == "load_failed"
    assert reason in job["error"]["message"]
    assert "Traceback" in job["error"]["traceback"]


@pytest.mark.parametrize(
    ("what", "cause", "message"),
    [
        ("object", "result_refused", "/: a value of type object is not JSON"),
        ("NUL", "result_refused", "/text/1: NUL characters cannot be stored"),
        ("NaN", "result_refused", "/: NaN and infinities are not JSON"),
        ("depth", "result_refused", "nested deeper than 100 levels"),
        ("message", "exception", "NUL \ufffd, surrogate ?, length xxx"),
        ("unspeakable", "exception", "(its __str__ raised RuntimeError)"),
    ],
)
def test_results_and_errors_that_cannot_be_stored_end_the_job_all_the_same(
    service: Service, what: str, cause: str, message: str
) -> None:
    job = service.wait_for_end(service.enqueue({"what": what}, "unfit"))
    assert job["status"] == "failed"
    assert job["error"]["cause"] == cause
    assert message in job["error"]["message"]


# -- limits ---------------------------------------------------------------------------------------


@pytest.mark.one_store
@pytest.mark.parametrize("pipeline", ["stubborn", "clinging"])
def test_a_job_past_its_limit_is_ended_whatever_it_does(
    service: Service, shared_store: Store, pipeline: str
) -> None:
    # Time enough to start by spawn on a busy machine.
    job_id = service.enqueue({}, pipeline, timeout_seconds=4)
    pid: int = wait_until(lambda: service.job(job_id)["pid"], "start of the worker")

    job = service.wait_for_end(job_id)

    assert job["status"] == "failed"
    assert job["error"]["cause"] == "timed_out"
    assert job["error"]["message"].endswith("the limit is 4 s")
    assert not process_exists(pid)
    if pipeline == "stubborn":
        assert not process_exists(_grandchild(job))
    [attempt] = shared_store.attempts(job_id)
    assert _duration(attempt) >= timedelta(seconds=4)


def test_a_job_may_end_by_itself_between_the_limit_and_the_kill(
    service: Service, shared_store: Store
) -> None:
    """The ladder's outcome is written only where the worker has not settled its job."""
    job_id = service.enqueue({"seconds": 1.2}, "blocked", timeout_seconds=1)
    job = service.wait_for_end(job_id)
    assert job["status"] in {"completed", "failed"}
    [attempt] = shared_store.attempts(job_id)
    assert attempt.outcome == job["status"]


# -- the manager's surroundings fail --------------------------------------------------------------


@pytest.mark.one_store
def test_a_killed_forkserver_ends_no_job_and_is_replaced(
    start: Start, store: Store, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with start(start_method="forkserver") as service:
        job_id = service.enqueue({"gate": str(gate)}, "gate")
        pid = service.wait_for_stage(job_id, "waiting")["pid"]
        [forkserver] = [p for p in children(service.pid) if "forkserver" in command_of(p)]

        os.kill(forkserver, signal.SIGKILL)
        wait_until(lambda: not process_exists(forkserver), "end of the forkserver")
        # Its children's sentinels have fired, and the watchdog has looked twice.
        _wait_for_watchdog(service)
        _wait_for_watchdog(service)
        assert process_exists(pid)
        assert service.job(job_id)["status"] == "running"
        later = service.enqueue({}, "demo-echo")
        assert service.wait_for_end(later)["status"] == "completed"
        gate.touch()

        assert service.wait_for_end(job_id)["status"] == "completed"
        for job in (job_id, later):
            assert [a.outcome for a in store.attempts(job)] == ["completed"]
        assert service.stop() == 0


def _wait_for_watchdog(service: Service) -> None:
    """Until the watchdog has looked: only it ends a job past its limit."""
    job_id = service.enqueue({"seconds": 600}, "demo-sleep", timeout_seconds=0.1)
    assert service.wait_for_end(job_id)["error"]["cause"] == "timed_out"


@pytest.mark.parametrize(
    ("start_method", "pipeline"),
    [("forkserver", "grandchild"), ("forkserver", "stubborn"), ("spawn", "grandchild")],
)
def test_a_killed_server_takes_its_workers_along_and_another_rescues_the_job(
    start: Start, store: Store, start_method: str, tmp_path: Path, pipeline: str
) -> None:
    gate = tmp_path / "gate"
    settings = {**SHORT_LEASE, "start_method": start_method}
    with start(**settings) as first:
        job_id = first.enqueue({"gate": str(gate)}, pipeline)
        job = first.wait_for_stage(job_id, "grandchild")
        first.process.kill()
        first.process.wait()
        gone = [job["pid"], _grandchild(job)]
        wait_until(lambda: not any(map(process_exists, gone)), "end of worker and grandchild", 3)

    gate.touch()
    with start(**settings) as second:
        wait_until(lambda: len(store.attempts(job_id)) == 2, "rescue")
        if pipeline == "grandchild":
            assert second.wait_for_end(job_id)["status"] == "completed"
        before, after = store.attempts(job_id)
    assert (before.outcome, before.cause) == ("lost", "node_lost")
    assert _duration(before) > timedelta(seconds=1.5)
    # The loss of a node is none of the job's attempts.
    assert (before.attempt, after.attempt) == (1, 1)
    assert store.job(job_id).node_losses == 1


@pytest.mark.parametrize(
    ("start_method", "pipeline"), [("forkserver", "gate"), ("spawn", "restless")]
)
def test_a_frozen_server_loses_its_job_and_can_change_nothing_afterwards(
    start: Start, store: Store, start_method: str, pipeline: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    settings = {**SHORT_LEASE, "start_method": start_method}
    with start(**settings) as first, start(**settings) as second:
        job_id = first.enqueue({"gate": str(gate)}, pipeline)
        old: int = wait_until(lambda: first.job(job_id)["pid"], "start of the worker")
        holder, other = first, second
        if store.node_pid(job_id) == second.pid:
            holder, other = second, first

        with frozen(holder.pid):
            wait_until(lambda: _has_other_pid(other.job(job_id), old), "second worker")
            if pipeline == "gate":
                # It has nothing to write, so only its manager can end it.
                assert process_exists(old)
            else:
                wait_until(lambda: not process_exists(old), "end by a refused write")
        wait_until(lambda: not process_exists(old), "end of the old worker")
        # The node comes back under a new identity.
        wait_until(
            lambda: [node.pid for node in store.nodes()].count(holder.pid) == 2, "new identity"
        )
        assert process_exists(other.job(job_id)["pid"])
        gate.touch()

        assert other.wait_for_end(job_id)["status"] == "completed"
        result = other.result(job_id)
        assert (first.stop(), second.stop()) == (0, 0)
    lost, kept = store.attempts(job_id)
    assert (lost.outcome, lost.cause, lost.pid) == ("lost", "node_lost", old)
    assert kept.outcome == "completed"
    assert store.result_claim_no(job_id) == kept.claim_no == 2
    # Whatever the old worker wrote, it wrote before it had lost the job.
    told = [event.stage for event in store.events(job_id)]
    begun = len(told) - told[::-1].index("running")
    own = ["waiting"] if pipeline == "gate" else [f"stage {n + 1}" for n in range(result)]
    assert told[begun - 2 :] == ["pending", "running", *own, "completed"]


def _has_other_pid(job: dict[str, Any], pid: int) -> bool:
    return job["pid"] not in {None, pid}


def test_a_node_that_cannot_renew_ends_its_workers_before_the_lease_is_over(
    start: Start, store: Store, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with start(**SHORT_LEASE) as service:
        job_id = service.enqueue({"gate": str(gate)}, "gate")
        pid = service.wait_for_stage(job_id, "waiting")["pid"]
        with store.holding_nodes():
            held = time.monotonic()
            wait_until(lambda: not process_exists(pid), "end of the worker")
            # The lease began before the row was held; one more moment is for the kill itself.
            assert time.monotonic() - held < 2 + 0.3


def test_a_limit_holds_while_the_database_does_not_answer(start: Start, store: Store) -> None:
    with start() as service:
        job_id = service.enqueue({"gate": "never"}, "gate", timeout_seconds=1.5)
        pid = service.wait_for_stage(job_id, "waiting")["pid"]
        with store.holding_jobs():
            wait_until(lambda: not process_exists(pid), "end of the worker", 5)
        job = service.wait_for_end(job_id)
        assert (job["status"], job["error"]["cause"]) == ("failed", "timed_out")


@pytest.mark.timeout(120)
def test_a_server_that_crashes_in_the_middle_costs_no_job_and_doubles_none(
    server: Server, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "auto_migrate": True}
    with (
        server.new_store() as store,
        running("serve", store.url, tmp_path / "log", **settings) as service,
    ):
        ids = _crash_amid_jobs(server, service, store, lambda: None)
        others = _attempts_beside_one_success_each(store, ids)

        # A claim whose answer got lost in the crash started nothing. It is given back at no cost
        # by a node that still is who it was; a disk that was slow to start the server again may
        # have cost the node its lease, and its claims with that.
        if len(store.nodes()) == 1:
            assert set(others) <= {UNANSWERED}, others
        else:
            assert {LEASE_ENDED[1:]} >= {other[1:] for other in others}, others
        assert len(others) <= SETTINGS["max_concurrent_jobs"]
        _works_as_before(service)


@pytest.mark.timeout(120)
def test_a_server_that_is_away_for_longer_than_a_lease_costs_no_job_and_doubles_none(
    server: Server, tmp_path: Path
) -> None:
    settings = {**SETTINGS, **SHORT_LEASE, "auto_migrate": True}
    with (
        server.new_store() as store,
        running("serve", store.url, tmp_path / "log", **settings) as service,
    ):

        def until_the_lease_has_ended() -> None:
            time.sleep(SHORT_LEASE["node_lease_seconds"])

        ids = _crash_amid_jobs(server, service, store, until_the_lease_has_ended)
        others = _attempts_beside_one_success_each(store, ids)

        assert len(store.nodes()) >= 2
        # A run that was under way is ended with its node's lease. What never ran is given back by
        # this node under its old identity, or rescued, whichever comes first.
        assert {UNANSWERED[1:], LEASE_ENDED[1:]} >= {other[1:] for other in others}, others
        _works_as_before(service)


# -- helpers --------------------------------------------------------------------------------------

UNANSWERED = (None, "released", "start_failed", "ClaimUnanswered")
LEASE_ENDED = (None, "lost", "node_lost", "NodeLost")


def _crash_amid_jobs(
    server: Server, service: Service, store: Store, meanwhile: Callable[[], None]
) -> list[str]:
    """Fifty short jobs that all end, though the server crashes after some of them."""
    ids = [service.enqueue({"seconds": 0.2, "steps": 4}, "demo-sleep") for _ in range(50)]
    completed = JobStatus.COMPLETED
    wait_until(lambda: store.count_jobs(completed) >= 10, "a good part of the jobs")

    server.crash()
    meanwhile()
    server.start()

    wait_until(lambda: store.count_jobs(completed) == len(ids), "the rest of the jobs", 60)
    return ids


def _attempts_beside_one_success_each(store: Store, ids: list[str]) -> list[tuple[Any, ...]]:
    """Attempts that did not complete, where each job ran just once to its end."""
    log = store.all_attempts()
    assert sorted(job_id for job_id, a in log if a.outcome == "completed") == sorted(ids)
    return [(a.pid, a.outcome, a.cause, a.error_class) for _, a in log if a.outcome != "completed"]


def _duration(attempt: Attempt) -> timedelta:
    assert attempt.ended_at is not None
    return attempt.ended_at - attempt.started_at


def _works_as_before(service: Service) -> None:
    """Both loops work, and so does the listener."""
    assert service.wait_for_end(service.enqueue({}, "demo-echo"))["status"] == "completed"
    _wait_for_watchdog(service)
    assert service.stop() == 0


def _grandchild(job: dict[str, Any]) -> int:
    [pid] = [int(m["message"]) for m in job["milestones"] if m["stage"] == "grandchild"]
    return pid
