"""A service on MongoDB as a user starts it: the same jobs, the same faults, the same ends."""

import signal
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support import mongo
from support.mongo import Mongod
from support.processes import frozen
from support.service import Service, process_exists, running, wait_until
from system.conftest import SETTINGS

SHORT_LEASE: dict[str, Any] = {"node_lease_seconds": 2, "heartbeat_interval_seconds": 0.4}

pytestmark = pytest.mark.system


@pytest.fixture
def service(mongo_database_url: str, tmp_path: Path) -> Iterator[Service]:
    with running("serve", mongo_database_url, tmp_path / "log", **SETTINGS) as service:
        yield service


def outcomes(service: Service, job_id: str) -> list[tuple[int, str, str | None]]:
    """Number, outcome and cause of each claim of the job, oldest first."""
    found = service.client.get(f"/jobs/{job_id}/attempts").json()["items"]
    return [(a["attempt"], a["outcome"], a["cause"]) for a in found]


def test_a_job_runs_to_its_end_in_a_process_of_its_own(service: Service) -> None:
    job_id = service.enqueue({"seconds": 0.1, "steps": 2}, "demo-sleep")

    job = service.wait_for_end(job_id)

    assert job["status"] == "completed"
    assert [m["stage"] for m in job["milestones"]] == ["sleeping"]
    assert service.result(job_id) == {"slept_seconds": 0.1}
    assert job["pid"] not in {None, service.pid}
    assert outcomes(service, job_id) == [(1, "completed", None)]
    assert service.client.get("/readyz").json()["wake_ups"] == "listening"


def test_a_payload_of_a_megabyte_and_a_result_of_two_arrive_unchanged(service: Service) -> None:
    payload = {"text": "grün " * 200_000, "big": 2**64, "$dollar.dot": {"$set": 2**53 + 1}}

    echo = service.enqueue(payload, "demo-echo")
    large = service.enqueue({"characters": 1_000_000}, "large")

    assert service.wait_for_end(echo)["status"] == "completed"
    assert service.result(echo)["echo"] == payload
    assert service.wait_for_end(large)["status"] == "completed"
    assert service.result(large) == {"text": "ä" * 1_000_000}


def test_a_worker_that_is_killed_fails_its_job_and_says_so(service: Service) -> None:
    job = service.wait_for_end(service.enqueue({"how": "kill"}, "demo-crash"))

    assert (job["status"], job["error"]["cause"]) == ("failed", "signal")
    assert job["error"]["message"] == "worker was ended by SIGKILL"
    assert outcomes(service, job["id"]) == [(1, "failed", "signal")]


def test_a_running_job_is_cancelled_with_its_process(service: Service, tmp_path: Path) -> None:
    job_id = service.enqueue({"gate": str(tmp_path / "gate")}, "gate")
    pid = service.wait_for_stage(job_id, "waiting")["pid"]

    assert service.client.post(f"/jobs/{job_id}/cancel").status_code < 300

    assert service.wait_for_end(job_id)["status"] == "cancelled"
    wait_until(lambda: not process_exists(pid), "end of the worker")


def test_a_job_starts_at_another_node_long_before_its_next_poll(
    mongo_database_url: str, tmp_path: Path
) -> None:
    with (
        running("api", mongo_database_url, tmp_path / "api", **SETTINGS) as api,
        running(
            "worker", mongo_database_url, tmp_path / "worker", **SETTINGS, poll_interval_seconds=30
        ),
    ):
        latencies = []
        for _ in range(7):
            job = api.wait_for_end(api.enqueue({}, "demo-echo"))
            created, started = map(datetime.fromisoformat, (job["created_at"], job["started_at"]))
            latencies.append((started - created).total_seconds())
        assert sorted(latencies)[3] < 0.2


def test_another_node_rescues_the_job_of_one_that_was_killed(
    mongo_database_url: str, tmp_path: Path
) -> None:
    gate, settings = tmp_path / "gate", {**SETTINGS, **SHORT_LEASE}
    with running("serve", mongo_database_url, tmp_path / "first", **settings) as first:
        job_id = first.enqueue({"gate": str(gate)}, "gate")
        pid = first.wait_for_stage(job_id, "waiting")["pid"]
        first.process.kill()
        first.process.wait()
        wait_until(lambda: not process_exists(pid), "end of the worker", 3)

    gate.touch()
    with running("serve", mongo_database_url, tmp_path / "second", **settings) as second:
        assert second.wait_for_end(job_id)["status"] == "completed"
        # The loss of a node is none of the job's attempts.
        assert outcomes(second, job_id) == [(1, "lost", "node_lost"), (1, "completed", None)]


def test_a_frozen_node_loses_its_job_and_can_change_nothing_afterwards(
    mongo_database_url: str, tmp_path: Path
) -> None:
    gate, settings = tmp_path / "gate", {**SETTINGS, **SHORT_LEASE}
    with running("serve", mongo_database_url, tmp_path / "first", **settings) as first:
        job_id = first.enqueue({"gate": str(gate)}, "gate")
        old: int = first.wait_for_stage(job_id, "waiting")["pid"]
        with running("serve", mongo_database_url, tmp_path / "second", **settings) as second:
            with frozen(first.pid):
                wait_until(lambda: second.job(job_id)["pid"] not in {None, old}, "second worker")
            wait_until(lambda: not process_exists(old), "end of the old worker")
            gate.touch()

            assert second.wait_for_end(job_id)["status"] == "completed"
            told = outcomes(second, job_id)
    assert told == [(1, "lost", "node_lost"), (1, "completed", None)]


def test_a_server_that_is_killed_in_the_middle_costs_no_job(tmp_path: Path) -> None:
    settings = {**SETTINGS, "auto_migrate": True}
    with (
        mongo.replica_set(1) as (url, [server]),
        running("serve", url, tmp_path / "log", **settings) as service,
    ):
        ids = [service.enqueue({"seconds": 0.3}, "demo-sleep") for _ in range(12)]
        wait_until(lambda: service.job(ids[1])["status"] == "completed", "some of the jobs")
        _crash(server)

        for job_id in ids:
            assert service.wait_for_end(job_id, 60)["status"] == "completed"
            *others, (_, last, _) = outcomes(service, job_id)
            assert last == "completed"
            # A claim whose answer got lost has started nothing and is given back; a disk that is
            # slow to start the server again may cost the node its lease, and its claims with that.
            assert {outcome for _, outcome, _ in others} <= {"released", "lost"}
        after = service.enqueue({}, "demo-echo")
        assert service.wait_for_end(after)["status"] == "completed"


def _crash(server: Mongod) -> None:
    server.stop(signal.SIGKILL)
    server.start()
    server.wait_until_it_answers()
