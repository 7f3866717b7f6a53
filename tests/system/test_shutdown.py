"""Stopping: jobs get their grace, then go back to the queue, and nothing is left running."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.cluster import crash
from support.processes import descendants, living
from support.service import (
    ROOT,
    Service,
    environment,
    running,
    running_command,
    wait_until,
)
from support.sql import attempts, holding, insert_job, job_row, milestones, our_connections, value
from system.conftest import SETTINGS, Start

from app.db.postgres.embedded import EmbeddedPostgres

# The promise is the grace and two seconds; the rest is for the interpreter's end on a busy machine.
FINAL_SECONDS = 2.0
SLACK_SECONDS = 2.0
UVICORN_SCRIPT = str(Path(sys.executable).with_name("uvicorn"))
AT_ONCE_SECONDS = FINAL_SECONDS + SLACK_SECONDS


def _start_grandchild(url: str, pipeline: str = "grandchild") -> tuple[str, set[int]]:
    """A job that would run for ever; its id, its worker and its grandchild."""
    [job_id] = insert_job(url, pipeline, '{"gate": "never"}')
    message = wait_until(lambda: milestones(url, job_id).get("grandchild"), "grandchild")
    return job_id, {attempts(url, job_id)[0]["pid"], int(message)}


def _stop(service: Service, number: int = signal.SIGTERM) -> float:
    """Seconds that an orderly stop took."""
    began = time.monotonic()
    assert service.stop(number) == 0, service.log.read_text()
    return time.monotonic() - began


def _assert_given_back(url: str, job_id: str, count: int = 1) -> None:
    row = job_row(url, job_id)
    assert (row["status"], row["attempt"], row["node_losses"]) == ("pending", 0, 0)
    assert row["run_at"] <= value(url, "select now()")
    told = [(a["outcome"], a["cause"], a["attempt"]) for a in attempts(url, job_id)]
    assert told == [("released", "shutdown", 1)] * count
    assert value(url, "select count(*) from haulage.nodes where state <> 'stopped'") == 0


@pytest.mark.parametrize(
    ("role", "number"),
    [("serve", signal.SIGTERM), ("worker", signal.SIGINT)],
    ids=["serve-SIGTERM", "worker-SIGINT"],
)
def test_a_job_that_ends_within_the_grace_is_completed_and_none_is_started(
    start: Start, database_url: str, tmp_path: Path, role: str, number: int
) -> None:
    gate = tmp_path / "gate"
    with start(role, max_concurrent_jobs=1, shutdown_grace_seconds=30) as service:
        [job_id] = insert_job(database_url, "gate", json.dumps({"gate": str(gate)}))
        wait_until(lambda: "waiting" in milestones(database_url, job_id), "start of the job")
        [waiting] = insert_job(database_url, "demo-echo")

        service.process.send_signal(number)
        wait_until(lambda: "manager.draining" in service.log.read_text(), "drain")
        gate.touch()

        assert service.process.wait(AT_ONCE_SECONDS) == 0
    assert job_row(database_url, job_id)["status"] == "completed"
    assert job_row(database_url, waiting)["status"] == "pending"
    assert not attempts(database_url, waiting)


@pytest.mark.parametrize(("role", "pipeline"), [("serve", "grandchild"), ("worker", "stubborn")])
def test_a_job_that_outlasts_the_grace_goes_back_with_its_attempt(
    start: Start, database_url: str, start_method: str, role: str, pipeline: str
) -> None:
    with start(role, start_method=start_method, shutdown_grace_seconds=1) as service:
        job_id, processes = _start_grandchild(database_url, pipeline)
        processes |= descendants(service.pid)

        seconds = _stop(service)

        assert 1.0 <= seconds < 1.0 + FINAL_SECONDS + SLACK_SECONDS
    wait_until(lambda: not living(processes), f"end of {processes}", 1)
    _assert_given_back(database_url, job_id)
    wait_until(lambda: not our_connections(database_url), "end of our sessions")


@pytest.mark.parametrize(
    ("role", "number"),
    [("serve", signal.SIGINT), ("worker", signal.SIGTERM)],
    ids=["serve-SIGINT", "worker-SIGTERM"],
)
def test_a_second_signal_ends_a_long_grace(
    start: Start, database_url: str, role: str, number: int
) -> None:
    with start(role, shutdown_grace_seconds=600) as service:
        job_id, processes = _start_grandchild(database_url)
        service.process.send_signal(number)
        wait_until(lambda: "manager.draining" in service.log.read_text(), "drain")
        assert living(processes) == processes

        assert _stop(service, number) < AT_ONCE_SECONDS
    assert not living(processes)
    _assert_given_back(database_url, job_id)


def test_a_database_that_does_not_answer_holds_up_no_shutdown(
    start: Start, database_url: str
) -> None:
    with start(shutdown_grace_seconds=0.5) as service:
        _, processes = _start_grandchild(database_url)
        with holding(database_url, "lock table haulage.jobs in access exclusive mode"):
            assert _stop(service) < 0.5 + FINAL_SECONDS + SLACK_SECONDS
        assert not living(processes)


def test_a_database_that_is_gone_holds_up_no_shutdown(
    cluster: EmbeddedPostgres, tmp_path: Path
) -> None:
    cluster.ensure_database("gone")
    url = cluster.url("gone")
    settings = {**SETTINGS, "auto_migrate": True, "shutdown_grace_seconds": 0.5}
    with running("serve", url, tmp_path / "log", **settings) as service:
        job_id, processes = _start_grandchild(url)
        crash(cluster)
        try:
            assert _stop(service) < 0.5 + FINAL_SECONDS + SLACK_SECONDS
        finally:
            cluster.start()
    assert not living(processes)
    # Nobody could note it: the next node does, once the lease is over.
    assert job_row(url, job_id)["status"] == "running"


# -- at any moment --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_signal_at_any_moment_ends_the_process_and_loses_no_job(
    database_url: str, tmp_path: Path
) -> None:
    insert_job(database_url, "demo-sleep", '{"seconds": 0.05, "steps": 1}', 400)
    # From its launch on, and from the moment when it may claim.
    chance = random.SystemRandom()
    while_starting = [("launch", chance.uniform(0.1, 1.2)) for _ in range(5)]
    at_work = [("manager.started", chance.uniform(0.0, 0.5)) for _ in range(5)]
    for number, (event, moment) in enumerate(while_starting + at_work):
        log = tmp_path / f"log-{number}"
        _end_a_worker(database_url, log, event, moment)
        running_jobs = "select count(*) from haulage.jobs where status = 'running'"
        assert value(database_url, running_jobs) == 0, (event, moment, log.read_text())
    odd = "select count(*) from haulage.job_attempts where outcome not in ('completed', 'released')"
    assert value(database_url, odd) == 0
    doubled = (
        "select count(*) from (select from haulage.job_attempts where outcome = 'completed'"
        " group by job_id having count(*) > 1) twice"
    )
    assert value(database_url, doubled) == 0


def _end_a_worker(url: str, log: Path, event: str, moment: float) -> None:
    settings = {**SETTINGS, "shutdown_grace_seconds": 0.2}
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "app", "worker"],
            cwd=ROOT,
            env=environment(url, **settings),
            stderr=errors,
        )
    if event != "launch":
        wait_until(lambda: event in log.read_text(), event)
    # The moment itself is what is tried; nothing is waited for.
    time.sleep(moment)
    started = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    # 0 with our handlers, the default action before they are there: then nothing is claimed yet.
    code = process.wait(0.2 + AT_ONCE_SECONDS)
    assert code in {0, -signal.SIGTERM}, (event, moment, log.read_text())
    wait_until(lambda: not living(started), f"end of {started}, {moment} s after {event}", 2)


# -- under somebody else's server -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("start_method", "program"),
    [
        ("forkserver", ["-m", "uvicorn"]),
        ("spawn", [UVICORN_SCRIPT]),
    ],
    ids=["forkserver-module", "spawn-script"],
)
def test_stop_alone_does_it_all_under_a_plain_server(
    database_url: str, tmp_path: Path, start_method: str, program: list[str]
) -> None:
    command = [sys.executable, *program, "app.main:create_app", "--factory", "--port", "0"]
    settings = {**SETTINGS, "start_method": start_method}
    with running_command(
        command, database_url, tmp_path / "log", r"running on (http://\S+)", **settings
    ) as service:
        job_id, processes = _start_grandchild(database_url)
        processes |= descendants(service.pid)
        began = time.monotonic()
        # uvicorn raises its signal again when it is done.
        assert service.stop() in {0, -signal.SIGTERM}
        assert time.monotonic() - began < 1 + FINAL_SECONDS + SLACK_SECONDS
    wait_until(lambda: not living(processes), f"end of {processes}", 2)
    _assert_given_back(database_url, job_id)
