"""Stopping: jobs get their grace, then go back to the queue, and nothing is left running."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.processes import descendants, living
from support.service import (
    ROOT,
    Service,
    environment,
    running,
    running_command,
    wait_until,
)
from system.conftest import SETTINGS, Start
from system.servers import Server
from system.stores import Store

from app.domain.jobs import JobStatus

# The promise is the grace and two seconds; the rest is for the interpreter's end on a busy machine.
FINAL_SECONDS = 2.0
SLACK_SECONDS = 2.0
# Nothing but waiting happens then: there is time to spare within the two seconds.
FROZEN_SLACK_SECONDS = 0.3
WAITING_REQUESTS = 3
BODY = b'{"payload": {}, "pipeline": "demo-echo"}'
REQUEST = (
    b"POST /enqueue HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
)
UVICORN_SCRIPT = str(Path(sys.executable).with_name("uvicorn"))
AT_ONCE_SECONDS = FINAL_SECONDS + SLACK_SECONDS
# A node that is soon missed.
SHORT_LEASE: dict[str, float] = {"node_lease_seconds": 2, "heartbeat_interval_seconds": 0.4}
SHORT_SLEEP = {"seconds": 0.05, "steps": 1}
# How often a signal comes at each kind of moment: 67 make two hundred.
ROUNDS = int(os.environ.get("SHUTDOWN_ROUNDS", "5"))


def _start_grandchild(store: Store, pipeline: str = "grandchild") -> tuple[str, set[int]]:
    """A job that would run for ever; its id, its worker and its grandchild."""
    [job_id] = store.insert_jobs(pipeline, {"gate": "never"})
    message = wait_until(lambda: store.milestones(job_id).get("grandchild"), "grandchild")
    return job_id, {store.attempts(job_id)[0].pid or 0, int(message)}


def _stop(service: Service, number: int = signal.SIGTERM) -> float:
    """Seconds that an orderly stop took."""
    began = time.monotonic()
    assert service.stop(number) == 0, service.log.read_text()
    return time.monotonic() - began


def _assert_given_back(store: Store, job_id: str, count: int = 1) -> None:
    row = store.job(job_id)
    assert (row.status, row.attempt, row.node_losses) == ("pending", 0, 0)
    assert row.run_at <= store.now()
    told = [(a.outcome, a.cause, a.attempt) for a in store.attempts(job_id)]
    assert told == [("released", "shutdown", 1)] * count
    assert {node.state for node in store.nodes()} == {"stopped"}


@pytest.mark.parametrize(
    ("role", "number"),
    [("serve", signal.SIGTERM), ("worker", signal.SIGINT)],
    ids=["serve-SIGTERM", "worker-SIGINT"],
)
def test_a_job_that_ends_within_the_grace_is_completed_and_none_is_started(
    start: Start, store: Store, tmp_path: Path, role: str, number: int
) -> None:
    gate = tmp_path / "gate"
    with start(role, max_concurrent_jobs=1, shutdown_grace_seconds=30) as service:
        [job_id] = store.insert_jobs("gate", {"gate": str(gate)})
        wait_until(lambda: "waiting" in store.milestones(job_id), "start of the job")
        [waiting] = store.insert_jobs("demo-echo")

        service.process.send_signal(number)
        wait_until(lambda: "manager.draining" in service.log.read_text(), "drain")
        gate.touch()

        assert service.process.wait(AT_ONCE_SECONDS) == 0
    assert store.job(job_id).status == "completed"
    assert store.job(waiting).status == "pending"
    assert not store.attempts(waiting)


@pytest.mark.parametrize(("role", "pipeline"), [("serve", "grandchild"), ("worker", "stubborn")])
def test_a_job_that_outlasts_the_grace_goes_back_with_its_attempt(
    start: Start, store: Store, start_method: str, role: str, pipeline: str
) -> None:
    with start(role, start_method=start_method, shutdown_grace_seconds=1) as service:
        job_id, processes = _start_grandchild(store, pipeline)
        processes |= descendants(service.pid)

        seconds = _stop(service)

        assert 1.0 <= seconds < 1.0 + FINAL_SECONDS + SLACK_SECONDS
    wait_until(lambda: not living(processes), f"end of {processes}", 1)
    _assert_given_back(store, job_id)
    wait_until(lambda: not store.left_sessions(), "end of our sessions")


@pytest.mark.parametrize(
    ("role", "number"),
    [("serve", signal.SIGINT), ("worker", signal.SIGTERM)],
    ids=["serve-SIGINT", "worker-SIGTERM"],
)
def test_a_second_signal_ends_a_long_grace(
    start: Start, store: Store, role: str, number: int
) -> None:
    with start(role, shutdown_grace_seconds=600) as service:
        job_id, processes = _start_grandchild(store)
        service.process.send_signal(number)
        wait_until(lambda: "manager.draining" in service.log.read_text(), "drain")
        assert living(processes) == processes

        assert _stop(service, number) < AT_ONCE_SECONDS
    assert not living(processes)
    _assert_given_back(store, job_id)


def test_a_database_that_does_not_answer_holds_up_no_shutdown(start: Start, store: Store) -> None:
    with start(shutdown_grace_seconds=0.5) as service:
        _, processes = _start_grandchild(store)
        with store.holding_jobs():
            assert _stop(service) < 0.5 + FINAL_SECONDS + SLACK_SECONDS
        assert not living(processes)


def test_a_database_that_is_gone_holds_up_no_shutdown(server: Server, tmp_path: Path) -> None:
    settings = {**SETTINGS, "auto_migrate": True, "shutdown_grace_seconds": 0.5}
    with server.new_store() as store:
        with running("serve", store.url, tmp_path / "log", **settings) as service:
            job_id, processes = _start_grandchild(store)
            server.crash()
            try:
                assert _stop(service) < 0.5 + FINAL_SECONDS + SLACK_SECONDS
            finally:
                server.start()
        assert not living(processes)
        # Nobody could note it: the next node does, once the lease is over.
        assert store.job(job_id).status == "running"


@pytest.mark.timeout(150)
@pytest.mark.parametrize("signals", [1, 2])
def test_a_database_that_is_frozen_holds_up_no_shutdown(
    server: Server, tmp_path: Path, signals: int
) -> None:
    grace_seconds = 0.5 if signals == 1 else 600
    settings = {**SETTINGS, **SHORT_LEASE, "auto_migrate": True}
    settings["shutdown_grace_seconds"] = grace_seconds
    with server.new_store() as store:
        with running("serve", store.url, tmp_path / "log", **settings) as service:
            job_id, processes = _start_grandchild(store)
            with server.frozen(), _waiting_requests(service) as waiting:
                began = time.monotonic()
                service.process.send_signal(signal.SIGTERM)
                if signals == 2:
                    wait_until(lambda: "manager.draining" in service.log.read_text(), "drain")
                    began, grace_seconds = time.monotonic(), 0.0
                    service.process.send_signal(signal.SIGTERM)
                assert service.process.wait(10) == 0, service.log.read_text()
                lasted = time.monotonic() - began
                assert [_status(connection) for connection in waiting] == [503] * WAITING_REQUESTS
            assert lasted < grace_seconds + FINAL_SECONDS + FROZEN_SLACK_SECONDS
            assert "Traceback" not in service.log.read_text()
            assert not living(processes)
        # Nobody could note it: the next node does, once the lease is over.
        settings["shutdown_grace_seconds"] = 0.5
        with running("worker", store.url, tmp_path / "next-log", **settings):
            wait_until(lambda: store.attempts(job_id)[0].ended_at, "rescue", 10)
        assert store.attempts(job_id)[0].outcome == "lost"


@contextlib.contextmanager
def _waiting_requests(service: Service) -> Iterator[list[socket.socket]]:
    """Connections whose requests the service has taken and cannot answer."""
    address = urlsplit(service.url or "")
    with contextlib.ExitStack() as closing:
        waiting = [
            closing.enter_context(socket.create_connection((address.hostname, address.port)))
            for _ in range(WAITING_REQUESTS)
        ]
        for connection in waiting:
            connection.sendall(REQUEST)
        for _ in range(2):
            # Answered after those before it have been read.
            assert service.client.get("/livez").status_code == 200
        yield waiting


def _status(connection: socket.socket) -> int:
    with connection.makefile("rb") as answer:
        return int(answer.readline().split()[1])


# -- while the others go on -----------------------------------------------------------------------


@pytest.mark.timeout(150)
@pytest.mark.parametrize("does_finish", [True, False], ids=["finishes", "killed"])
def test_a_draining_node_keeps_its_job_for_longer_than_its_lease_and_takes_no_other(
    start: Start, store: Store, tmp_path: Path, *, does_finish: bool
) -> None:
    gate = tmp_path / "gate"
    with start("worker", **SHORT_LEASE, shutdown_grace_seconds=600) as draining:
        [job_id] = store.insert_jobs("gate", {"gate": str(gate)})
        wait_until(lambda: "waiting" in store.milestones(job_id), "start of the job")
        worker = store.attempts(job_id)[0].pid or 0
        with start("worker", **SHORT_LEASE) as other:
            draining.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "manager.draining" in draining.log.read_text(), "drain")
            [taken] = store.insert_jobs("demo-echo")
            wait_until(lambda: store.job(taken).status == "completed", "next job")
            assert store.node_pid(taken) == other.pid

            drained_at = store.now()
            later = drained_at + timedelta(seconds=2 * SHORT_LEASE["node_lease_seconds"])
            wait_until(lambda: store.heartbeat_at(draining.pid) > later, "heartbeats")
            assert len(store.attempts(job_id)) == 1

            if does_finish:
                gate.touch()
                assert draining.process.wait(AT_ONCE_SECONDS) == 0
                [attempt] = store.attempts(job_id)
                assert attempt.outcome == "completed"
            else:
                draining.process.kill()
                draining.process.wait()
                killed_at = store.now()
                wait_until(lambda: len(store.attempts(job_id)) == 2, "rescue")
                lost, again = store.attempts(job_id)
                assert (lost.outcome, again.attempt) == ("lost", 1)
                assert store.node_pid(job_id) == other.pid
                lease = SHORT_LEASE["node_lease_seconds"] + SETTINGS["watchdog_interval_seconds"]
                assert again.started_at - killed_at < timedelta(seconds=lease + 2)
                wait_until(lambda: not living({worker}), "end of the worker")


def test_a_claim_that_is_under_way_at_the_signal_leaves_no_job_running(
    start: Start, store: Store
) -> None:
    # Nothing but the wake-up makes it claim.
    settings = {"shutdown_grace_seconds": 1, "poll_interval_seconds": 600}
    with start("worker", **settings) as service:
        running_id, processes = _start_grandchild(store)
        [job_id] = store.insert_jobs("demo-echo", notify=False)
        with store.holding_claims(job_id) as does_claim_wait:
            store.wake()
            wait_until(does_claim_wait, "a claim that waits")
            service.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "manager.draining" in service.log.read_text(), "drain")
        assert service.process.wait(1 + AT_ONCE_SECONDS) == 0
    assert not living(processes)
    _assert_given_back(store, running_id)
    row = store.job(job_id)
    assert (row.status, row.attempt, row.node_losses) == ("pending", 0, 0)
    assert {a.outcome for a in store.attempts(job_id)} <= {"released"}


# -- at any moment --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(60 + 24 * ROUNDS)
def test_a_signal_at_any_moment_ends_the_process_and_loses_no_job(
    store: Store, tmp_path: Path
) -> None:
    # From its launch on, from the moment when it may claim, and with nothing to do.
    chance = random.SystemRandom()
    idle = [("manager.started", chance.uniform(0.0, 0.3)) for _ in range(ROUNDS)]
    while_starting = [("launch", chance.uniform(0.1, 1.2)) for _ in range(ROUNDS)]
    at_work = [("manager.started", chance.uniform(0.0, 0.5)) for _ in range(ROUNDS)]
    for number, (event, moment) in enumerate(idle + while_starting + at_work):
        if number == len(idle):
            store.insert_jobs("demo-sleep", SHORT_SLEEP, 80 * ROUNDS)
        log = tmp_path / f"log-{number}"
        _end_a_worker(store.url, log, event, moment)
        assert store.count_jobs(JobStatus.RUNNING) == 0, (event, moment, log.read_text())
    log_of_attempts = store.all_attempts()
    assert {a.outcome for _, a in log_of_attempts} <= {"completed", "released"}
    completed = [job_id for job_id, a in log_of_attempts if a.outcome == "completed"]
    assert len(completed) == len(set(completed))


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
    store: Store, tmp_path: Path, start_method: str, program: list[str]
) -> None:
    command = [sys.executable, *program, "app.main:create_app", "--factory", "--port", "0"]
    settings = {**SETTINGS, "start_method": start_method}
    with running_command(
        command, store.url, tmp_path / "log", r"running on (http://\S+)", **settings
    ) as service:
        job_id, processes = _start_grandchild(store)
        processes |= descendants(service.pid)
        began = time.monotonic()
        # uvicorn raises its signal again when it is done.
        assert service.stop() in {0, -signal.SIGTERM}
        assert time.monotonic() - began < 1 + FINAL_SECONDS + SLACK_SECONDS
    wait_until(lambda: not living(processes), f"end of {processes}", 2)
    _assert_given_back(store, job_id)
