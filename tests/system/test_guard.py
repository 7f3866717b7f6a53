"""What a job starts, whatever it does to hide it, is gone with the job, the node or the guard."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from support.processes import children, command_of, living, parents
from support.service import Service, process_exists, wait_until
from system.conftest import Start
from system.stores import Store

# The store takes no part in this.
pytestmark = pytest.mark.one_store

# Time enough to start everything by spawn on a busy machine.
LIMIT_SECONDS = 8
# From a kill to the end that is stored, when everything else on the machine burns the cores.
NOTICED_SECONDS = 10


def _scattered(service: Service, job_id: str) -> set[int]:
    """The processes of a job that has started them all, its worker included."""
    service.wait_for_stage(job_id, "scattered")
    [text] = [m["message"] for m in service.job(job_id)["milestones"] if m["stage"] == "scattered"]
    return set(map(int, text.split()))


def _forkserver(service: Service) -> int:
    [pid] = [pid for pid in children(service.pid) if "forkserver" in command_of(pid)]
    return pid


@pytest.mark.parametrize("then", ["return", "die"])
def test_nothing_is_left_of_a_job_that_has_ended(
    service: Service, tmp_path: Path, then: str
) -> None:
    job_id = service.enqueue({"folder": str(tmp_path), "then": then}, "scattering")
    job = service.wait_for_end(job_id)
    assert job["status"] == ("completed" if then == "return" else "failed")
    pids = _scattered(service, job_id)
    # A crash is told when everything is gone; a worker that settled its job goes a moment later.
    wait_until(lambda: not living(pids), "end of the job's processes", 0.01 if then == "die" else 5)


def test_nothing_is_left_of_a_job_past_its_limit_and_its_cost_is_known(
    service: Service, shared_store: Store, tmp_path: Path
) -> None:
    payload = {"folder": str(tmp_path), "then": "wait"}
    job_id = service.enqueue(payload, "scattering", timeout_seconds=LIMIT_SECONDS)
    pids = _scattered(service, job_id)

    assert service.wait_for_end(job_id)["error"]["cause"] == "timed_out"

    assert living(pids) == set()
    [attempt] = shared_store.attempts(job_id)
    assert (attempt.cpu_seconds or 0) > 0
    assert (attempt.peak_memory_bytes or 0) > 4_000_000


def test_nothing_is_left_when_the_service_stops(start: Start, tmp_path: Path) -> None:
    with start() as service:
        job_id = service.enqueue({"folder": str(tmp_path), "then": "wait"}, "scattering")
        pids = _scattered(service, job_id)
        assert service.stop() == 0
    assert living(pids) == set()


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_nothing_is_left_when_the_manager_is_killed(
    start: Start, tmp_path: Path, start_method: str
) -> None:
    with start(start_method=start_method) as service:
        job_id = service.enqueue({"folder": str(tmp_path), "then": "wait"}, "scattering")
        pids = _scattered(service, job_id)
        service.process.kill()
        service.process.wait()
        wait_until(lambda: not living(pids), "end of the job's processes", 5)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_nothing_is_left_when_something_happens_to_the_guard(
    service: Service, shared_store: Store, tmp_path: Path, number: int
) -> None:
    payload = {"folder": str(tmp_path), "then": "wait"}
    limit = LIMIT_SECONDS if number == signal.SIGSTOP else None
    job_id = service.enqueue(payload, "scattering", timeout_seconds=limit)
    pids = _scattered(service, job_id)
    guard = parents()[service.job(job_id)["pid"]]

    os.kill(guard, number)
    job = service.wait_for_end(job_id)

    assert job["status"] == "failed"
    assert job["error"]["cause"] == ("signal" if number == signal.SIGKILL else "timed_out")
    assert living(pids | {guard}) == set()


def test_a_killed_worker_is_noticed_at_once(
    service: Service, shared_store: Store, tmp_path: Path
) -> None:
    """By the database's clock; the bound is one that a busy machine keeps.

    The promise is one second, and benchmarks/recovery.py measures it.
    """
    job_id = service.enqueue({"gate": str(tmp_path / "gate")}, "gate")
    pid = service.wait_for_stage(job_id, "waiting")["pid"]
    killed_at = shared_store.now()
    os.kill(pid, signal.SIGKILL)
    job = service.wait_for_end(job_id)
    [attempt] = shared_store.attempts(job_id)
    assert attempt.ended_at is not None
    assert (attempt.ended_at - killed_at).total_seconds() < NOTICED_SECONDS
    assert job["error"]["message"] == "worker was ended by SIGKILL"


def test_jobs_that_use_process_pools_work(service: Service) -> None:
    job_id = service.enqueue({}, "pools")
    assert service.wait_for_end(job_id)["status"] == "completed"
    assert service.result(job_id) == [5, 4, 3, 2, 1, 3, 2, 1, 7]


def test_rubbish_to_the_manager_ends_no_job(service: Service) -> None:
    job_id = service.enqueue({}, "rubbish")
    job = service.wait_for_end(job_id)
    assert job["status"] == "completed", job
    assert "filled" in [m["stage"] for m in job["milestones"]]


def test_ends_are_told_truly_when_the_forkserver_is_killed(
    start: Start, store: Store, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    ends: dict[str, Any] = {
        "return": ("completed", None, None),
        "die": ("failed", None, 9),
        "exit": ("failed", 9, None),
    }
    with start(start_method="forkserver") as service:
        ids = {
            then: service.enqueue({"gate": str(gate), "then": then}, "after-gate") for then in ends
        }
        wait_until(lambda: all(service.job(i)["pid"] for i in ids.values()), "start of the workers")
        forkserver = _forkserver(service)
        os.kill(forkserver, signal.SIGKILL)
        wait_until(lambda: not process_exists(forkserver), "end of the forkserver")
        assert service.wait_for_end(service.enqueue({}, "demo-echo"))["status"] == "completed"
        gate.touch()
        for then, job_id in ids.items():
            service.wait_for_end(job_id)
            [attempt] = store.attempts(job_id)
            told = (attempt.outcome, attempt.exit_code, attempt.signal)
            assert told == ends[then]
        assert service.stop() == 0


def test_a_forkserver_that_is_stopped_is_replaced_while_the_service_answers(
    start: Start, store: Store
) -> None:
    with start(start_method="forkserver") as service:
        assert service.wait_for_end(service.enqueue({}, "demo-echo"))["status"] == "completed"
        stopped = _forkserver(service)
        os.kill(stopped, signal.SIGSTOP)
        job_id = service.enqueue({}, "demo-echo")
        slowest = 0.0
        while service.job(job_id)["status"] != "completed":
            began = time.monotonic()
            assert service.client.get("/livez").status_code == 200
            slowest = max(slowest, time.monotonic() - began)
            assert process_exists(service.pid)
            time.sleep(0.05)
        assert slowest < 2
        assert _forkserver(service) != stopped
        assert [a.cause for a in store.attempts(job_id)] == ["start_failed", None]
        assert service.stop() == 0


def test_a_forkserver_that_is_stopped_does_not_hold_up_a_shutdown(
    start: Start, store: Store, tmp_path: Path
) -> None:
    with start(start_method="forkserver") as service:
        running = service.enqueue({"gate": str(tmp_path / "gate")}, "gate")
        service.wait_for_stage(running, "waiting")
        os.kill(_forkserver(service), signal.SIGSTOP)
        starting = service.enqueue({}, "demo-echo")
        wait_until(lambda: store.attempts(starting), "claim")
        began = time.monotonic()
        assert service.stop() == 0
        # The grace is one second.
        assert time.monotonic() - began < 1 + 2 + 4
    for job_id in (running, starting):
        [attempt] = store.attempts(job_id)
        assert (attempt.outcome, attempt.cause) == ("released", "shutdown")
