"""Jobs as a client sees them, run by real worker processes."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from support.processes import descendants, living, open_files
from support.service import Service, process_exists, wait_until
from system.conftest import Start
from system.stores import UNFINISHED, Store

SHORT_JOBS = {"forkserver": 300, "spawn": 40}


def test_a_job_runs_to_its_end_in_a_process_of_its_own(
    service: Service, shared_store: Store
) -> None:
    job_id = service.enqueue({"seconds": 0.1, "steps": 2}, "demo-sleep")

    job = service.wait_for_end(job_id)

    assert job["status"] == "completed"
    assert job["progress"]["fraction"] == 1.0
    assert [m["stage"] for m in job["milestones"]] == ["sleeping"]
    assert service.result(job_id) == {"slept_seconds": 0.1}
    assert job["pid"] not in {None, service.pid}
    wait_until(lambda: not process_exists(job["pid"]), "end of the worker")
    [attempt] = shared_store.attempts(job_id)
    assert (attempt.outcome, attempt.cause, attempt.attempt) == ("completed", None, 1)
    assert attempt.ended_at is not None
    assert attempt.started_at <= attempt.ended_at
    assert (attempt.peak_memory_bytes or 0) > 1_000_000
    assert (attempt.cpu_seconds or 0) > 0
    assert service.client.get("/readyz").json()["wake_ups"] == "listening"


@pytest.mark.slow
def test_many_short_jobs_run_once_each_and_leave_nothing(
    start: Start, store: Store, start_method: str
) -> None:
    count = SHORT_JOBS[start_method]
    with start(start_method=start_method) as service:
        _run_echo_jobs(service, store, count // 10)
        files = open_files(service.pid)

        _run_echo_jobs(service, store, count)

        # The pool may grow by its few connections; a leak would be two descriptors for each job.
        wait_until(lambda: open_files(service.pid) < files + count // 5, "closed descriptors")
        started = descendants(service.pid)
        assert service.stop() == 0
    wait_until(lambda: not living(started), f"end of {started}")
    wait_until(lambda: not store.left_sessions(), "end of our sessions")
    assert store.count_jobs() == count + count // 10


def _run_echo_jobs(service: Service, store: Store, count: int) -> None:
    ids = {service.enqueue({"n": n}, "demo-echo") for n in range(count)}
    wait_until(lambda: not store.count_jobs(*UNFINISHED), f"end of {count} jobs", 40)
    # Exactly one attempt each, and none of them with a lost exit code.
    for job_id in ids:
        assert [(a.claim_no, a.outcome) for a in store.attempts(job_id)] == [(1, "completed")]


def test_a_payload_of_a_megabyte_and_a_result_of_two_arrive_unchanged(service: Service) -> None:
    payload = {"text": "grün " * 200_000, "big": 2**64, "precise": 2**53 + 1, "nested": [[{}]]}
    payload["$dollar.dot"] = {"$set": "$set"}

    echo = service.enqueue(payload, "demo-echo")
    large = service.enqueue({"characters": 1_000_000}, "large")

    assert service.wait_for_end(echo)["status"] == "completed"
    assert service.result(echo)["echo"] == payload
    assert service.wait_for_end(large)["status"] == "completed"
    assert service.result(large) == {"text": "ä" * 1_000_000}


def test_whatever_a_job_says_reaches_its_log(service: Service, shared_store: Store) -> None:
    job_id = service.enqueue({}, "speak")
    assert service.wait_for_end(job_id)["status"] == "completed"

    assert sorted(_log(shared_store, job_id)) == [
        ("pipeline.speak", 30, "from the logger"),
        ("some.library", 40, "from a library"),
        ("stderr", 30, "from stderr"),
        ("stdout", 20, "from a child"),
        ("stdout", 20, "from print"),
        ("stdout", 20, "invalid \ufffd\ufffd bytes"),
        ("stdout", 20, "without an end"),
    ]


def test_a_job_that_prints_five_megabytes_is_neither_held_up_nor_kept_whole(
    service: Service, shared_store: Store
) -> None:
    job_id = service.enqueue({"megabytes": 5}, "noise")
    assert service.wait_for_end(job_id)["status"] == "completed"

    lines = _log(shared_store, job_id)
    assert len(lines) == 10_001
    assert lines[0] == ("stdout", 20, "\ufffd\ufffd noise " + "x" * 88)
    assert lines[-1][2].endswith("more lines were dropped: a job keeps 10000 per attempt")


def _log(store: Store, job_id: str) -> list[tuple[str, int, str]]:
    assert len(store.attempts(job_id)) == 1
    return [(line.source, line.level, line.text) for line in store.log(job_id)]


def test_a_checkpoint_of_the_first_attempt_is_there_for_the_second(
    service: Service, shared_store: Store
) -> None:
    job_id = service.enqueue({}, "checkpoint", max_attempts=2)
    _skip_the_wait_after_the_first_attempt(shared_store, job_id)

    assert service.wait_for_end(job_id)["status"] == "completed"
    assert service.result(job_id) == {"found": {"attempt": 1, "rows": [1, 2]}, "attempt": 2}


def test_calls_that_a_killed_attempt_has_paid_for_are_not_paid_again(
    service: Service, shared_store: Store
) -> None:
    calls = [f"{uuid.uuid4()} {number}" for number in range(4)]
    payload = {"calls": calls, "dies_before": 3}
    job_id = service.enqueue(payload, "paying", max_attempts=2)
    _skip_the_wait_after_the_first_attempt(shared_store, job_id)

    assert service.wait_for_end(job_id)["status"] == "completed"
    assert service.result(job_id) == 1
    [usage] = shared_store.usage(job_id)
    assert (usage.calls, usage.cached_calls) == (3 + 1, 3)


def _skip_the_wait_after_the_first_attempt(store: Store, job_id: str) -> None:
    wait_until(lambda: any(a.ended_at for a in store.attempts(job_id)), "first attempt")
    store.make_due(job_id)


def test_long_messages_and_many_milestones_are_all_kept(
    service: Service, tmp_path: Path, shared_store: Store
) -> None:
    gate = tmp_path / "gate"
    job_id = service.enqueue({"gate": str(gate), "message": "m" * 20_000}, "restless")
    service.wait_for_stage(job_id, "stage 20")
    gate.touch()

    job = service.wait_for_end(job_id)
    count = service.result(job_id)

    assert [m["stage"] for m in job["milestones"]] == [f"stage {n + 1}" for n in range(count)]
    assert all(m["message"].endswith("m [cut]") for m in job["milestones"])
    assert [line for *_, line in _log(shared_store, job_id)] == [
        f"at {n + 1}" for n in range(count)
    ]


@pytest.mark.one_store
def test_answers_are_sent_without_waiting_for_acknowledgements(service: Service) -> None:
    service.client.get("/livez")
    times = [service.client.get("/livez").elapsed.total_seconds() for _ in range(20)]
    # A client acknowledges the headers after 40 ms only, and the body would wait for that.
    assert min(times) < 0.03


@pytest.mark.one_store
def test_a_pipeline_is_constructed_with_its_registered_arguments(service: Service) -> None:
    job_id = service.enqueue({}, "greeting")
    assert service.wait_for_end(job_id)["status"] == "completed"
    assert service.result(job_id) == "Hullo!!!"


@pytest.mark.one_store
@pytest.mark.parametrize("name", ["os:system", "antigravity:x", "app.db:Engine", "../x:Y"])
def test_an_import_path_from_a_request_is_refused(service: Service, name: str) -> None:
    answer = service.client.post("/enqueue", json={"payload": {}, "pipeline": name})
    assert answer.status_code == 422
    assert "no pipeline" in answer.json()["detail"]


def test_a_job_that_is_due_later_waits_and_one_of_higher_priority_overtakes(
    start: Start, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with start(max_concurrent_jobs=1) as service:
        first = service.enqueue({"gate": str(gate)}, "gate")
        service.wait_for_stage(first, "waiting")
        low, high = (service.enqueue({}, "demo-echo", priority=n) for n in (-1, 1))
        later = service.enqueue({}, "demo-echo", delay_seconds=600)
        gate.touch()

        ends: list[Any] = [service.wait_for_end(job)["finished_at"] for job in (first, high, low)]

        assert ends == sorted(ends)
        assert service.job(later)["status"] == "pending"
