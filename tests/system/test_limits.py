"""Limits of running jobs, each with its own cause, and what pipelines choose themselves."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from support.processes import descendants, living
from support.service import Service, wait_until
from system.conftest import Start
from system.stores import Store

MIB = 1024 * 1024


def told_pids(job: dict[str, Any]) -> set[int]:
    """The worker and what it told of in its progress."""
    return {job["pid"], *(int(pid) for pid in job["progress"]["message"].split() if len(pid) > 2)}


@pytest.mark.one_store
@pytest.mark.parametrize(
    ("pipeline", "payload", "limits", "stage", "cause"),
    [
        ("grandchild", {"gate": "never"}, {"timeout_seconds": 1}, "grandchild", "timed_out"),
        ("stubborn", {}, {"timeout_seconds": 1}, "grandchild", "timed_out"),
        ("quiet", {"reports": 12}, {"stall_seconds": 1}, "quiet", "stalled"),
        (
            "hungry",
            {"megabytes": 200, "gate": "never"},
            {"memory_limit_bytes": 128 * MIB},
            "eating",
            "out_of_memory",
        ),
        (
            "hungry-family",
            {"children": 3, "gate": "never"},
            {"memory_limit_bytes": 160 * MIB},
            "eating",
            "out_of_memory",
        ),
    ],
    ids=["run time", "run time, stubborn", "stall", "memory", "memory of children"],
)
def test_a_job_ends_with_all_that_it_started_when_it_exceeds_a_limit(
    service: Service,
    shared_store: Store,
    pipeline: str,
    payload: dict[str, Any],
    limits: dict[str, Any],
    stage: str,
    cause: str,
) -> None:
    job_id = service.enqueue(payload, pipeline, **limits)
    pids = told_pids(service.wait_for_stage(job_id, stage))

    ended = service.wait_for_end(job_id)

    assert (ended["status"], ended["error"]["cause"]) == ("failed", cause)
    assert "the limit is" in ended["error"]["message"]
    assert not living(pids)
    [attempt] = shared_store.attempts(job_id)
    assert (attempt.outcome, attempt.cause) == ("failed", cause)
    # Known also of what was killed.
    assert (attempt.cpu_seconds or 0) > 0
    assert (attempt.peak_memory_bytes or 0) > 8 * MIB


@pytest.mark.one_store
def test_a_module_whose_import_hangs_ends_with_the_start_limit(start: Start, store: Store) -> None:
    hangs = {"import-hangs": "support.broken.hangs:Never"}
    with start(pipelines=hangs, job_start_timeout_seconds=1) as service:
        job_id = service.enqueue({}, "import-hangs", max_attempts=1)
        ended = service.wait_for_end(job_id)
        assert (ended["status"], ended["error"]["cause"]) == ("failed", "start_timed_out")
        assert service.wait_for_end(service.enqueue({}, "demo-echo"))["status"] == "completed"
    assert not living({ended["pid"]})


@pytest.mark.one_store
def test_a_job_that_goes_on_is_not_stalled(service: Service) -> None:
    job_id = service.enqueue({"seconds": 3}, "steady", stall_seconds=1)

    assert service.wait_for_end(job_id)["status"] == "completed"


@pytest.mark.one_store
def test_a_job_within_its_memory_completes(service: Service, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job_id = service.enqueue(
        {"megabytes": 20, "gate": str(gate)}, "hungry", memory_limit_bytes=160 * MIB
    )
    service.wait_for_stage(job_id, "eating")
    gate.touch()

    assert service.wait_for_end(job_id)["status"] == "completed"


@pytest.mark.one_store
def test_a_job_that_says_nothing_is_limited_by_the_settings(start: Start) -> None:
    with start(job_timeout_seconds=0.5, job_memory_limit_bytes=128 * MIB) as service:
        slow = service.enqueue({"seconds": 600}, "demo-sleep")
        hungry = service.enqueue({"megabytes": 200, "gate": "never"}, "hungry", timeout_seconds=600)

        assert service.wait_for_end(slow)["error"]["cause"] == "timed_out"
        assert service.wait_for_end(hungry)["error"]["cause"] == "out_of_memory"


@pytest.mark.one_store
def test_a_class_declares_what_its_jobs_get(start: Start, store: Store) -> None:
    with start() as service:
        failing = service.enqueue({"fail": True}, "declared")
        waiting = service.enqueue({}, "declared")
        strict = service.enqueue({"fail": True}, "declared", max_attempts=1)

        told = service.job(failing)
        limits = (told["max_attempts"], told["timeout_seconds"], told["stall_seconds"])
        assert limits == (2, 1.5, 90)
        assert service.wait_for_end(strict)["attempt"] == 1
        wait_until(
            lambda: [a.cause for a in store.attempts(waiting)][:1] == ["timed_out"],
            "end of the first attempt",
        )
        assert store.job(waiting).status == "pending"


# -- what a pipeline chooses ------------------------------------------------------------------


def test_a_pipeline_asks_for_a_later_attempt(service: Service, shared_store: Store) -> None:
    job_id = service.enqueue(
        {"attempts": [["retry_later", 3_600, "rate limited"]]}, "chooser", max_attempts=2
    )
    wait_until(lambda: service.job(job_id)["error"], "end of the first attempt")

    job = service.job(job_id)
    assert (job["status"], job["attempt"]) == ("pending", 1)
    assert (job["error"]["cause"], job["error"]["message"]) == ("retry_later", "rate limited")
    [attempt] = shared_store.attempts(job_id)
    assert attempt.ended_at is not None
    delay = (shared_store.job(job_id).run_at - attempt.ended_at).total_seconds()
    # Never earlier than asked.
    assert 3_600 <= delay <= 3_600 * 1.1
    service.client.post(f"/jobs/{job_id}/cancel")


@pytest.mark.parametrize(
    ("attempt", "status", "cause", "message"),
    [
        (["retry_later", 60, "busy"], "failed", "retry_later", "busy"),
        (["give_up", "no such account"], "failed", "gave_up", "no such account"),
        (["swallow"], "failed", "exception", "from outside"),
    ],
)
def test_a_pipeline_ends_its_last_attempt(
    service: Service, attempt: list[Any], status: str, cause: str, message: str
) -> None:
    job = service.wait_for_end(service.enqueue({"attempts": [attempt]}, "chooser"))

    assert (job["status"], job["error"]["cause"]) == (status, cause)
    assert job["error"]["message"] == message


def test_giving_up_uses_no_further_attempt(service: Service, shared_store: Store) -> None:
    job_id = service.enqueue({"attempts": [["give_up", "no"]]}, "chooser", max_attempts=5)

    assert service.wait_for_end(job_id)["status"] == "failed"
    assert len(shared_store.attempts(job_id)) == 1


def test_a_job_with_nothing_to_do_is_complete(service: Service, shared_store: Store) -> None:
    job_id = service.enqueue({"attempts": [["nothing_to_do", "no new rows"]]}, "chooser")

    job = service.wait_for_end(job_id)

    assert (job["status"], job["error"]) == ("completed", None)
    assert service.result(job_id) == {"nothing_to_do": "no new rows"}
    assert [a.cause for a in shared_store.attempts(job_id)] == ["nothing_to_do"]


def test_a_failing_job_does_not_starve_its_equals(start: Start, store: Store) -> None:
    with start(max_concurrent_jobs=1) as service:
        failing = service.enqueue({"message": "no"}, "demo-fail", max_attempts=50)
        wait_until(lambda: service.job(failing)["error"], "first failure")
        others = [service.enqueue({}, "demo-echo") for _ in range(10)]
        for job_id in others:
            assert service.wait_for_end(job_id)["status"] == "completed"
        # Its delay puts it behind whoever is due already.
        assert len(store.attempts(failing)) <= 2


# -- time in which nobody can do anything -----------------------------------------------------


def test_a_job_that_waits_for_the_database_is_not_stalled(
    start: Start, store: Store, tmp_path: Path
) -> None:
    with start() as service:
        job_id = service.enqueue({"seconds": 1}, "steady", stall_seconds=1)
        wait_until(lambda: service.job(job_id)["pid"], "start of the worker")
        with store.holding_job(job_id):
            end = time.monotonic() + 4
            wait_until(lambda: time.monotonic() > end, "longer than the limit")
        assert service.wait_for_end(job_id)["status"] == "completed"


@pytest.mark.one_store
@pytest.mark.parametrize("limit", ["timeout_seconds", "stall_seconds"])
def test_a_standstill_of_the_whole_machine_counts_for_no_limit(
    start: Start, tmp_path: Path, limit: str
) -> None:
    gate = tmp_path / "gate"
    with start() as service:
        job_id = service.enqueue({"gate": str(gate)}, "gate", **{limit: 4})
        service.wait_for_stage(job_id, "waiting")
        frozen = [service.pid, *descendants(service.pid)]
        # As a paused container or a suspended machine; shorter than the lease.
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        end = time.monotonic() + 5
        wait_until(lambda: time.monotonic() > end, "longer than the limit")
        for pid in reversed(frozen):
            os.kill(pid, signal.SIGCONT)
        gate.touch()
        assert service.wait_for_end(job_id)["status"] == "completed"
