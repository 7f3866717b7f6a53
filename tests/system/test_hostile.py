"""Jobs that do harm in every way we know, each beside a job that does none.

Whatever a job does to its process, the service answers throughout, the neighbour completes at its
first attempt, the next job is an ordinary one, the hostile job's end is told truly, and nothing of
it is left.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.hostile_endings import DATA, ENDINGS, ERRORS, SURROUNDINGS, Case
from support.processes import descendants, held_files, with_mark, with_name
from support.service import Service, wait_until
from support.sql import attempts, job_row
from system.conftest import Start
from system.stores import SQL

from app.domain.jobs import Claim
from app.worker.descent import Mark

pytestmark = pytest.mark.needs(SQL)

ANSWER_SECONDS = 1.0
POOL_GROWTH = 6
CASES = [*ENDINGS, *ERRORS, *SURROUNDINGS, *DATA]
# One of each kind of end, by the other start method too.
SPAWNED = [
    case
    for case in CASES
    if case.name
    in {
        *("sys-exit 0", "exit-at-once 0", "signal-itself SIGKILL", "block-in-c", "stray-exit"),
        *("cancel-by-sigterm", "return-from-a-fork", "leave-threads", "generator"),
        *("raise-it UnprintableError", "close-descriptors"),
    }
]


@pytest.fixture(scope="session")
def warm(service: Service) -> Service:
    """The service with all that its first job starts for good."""
    service.wait_for_end(service.enqueue({}, "demo-echo"))
    return service


@contextmanager
def answering(service: Service) -> Iterator[None]:
    """Asks `/livez` all the time; every answer comes soon."""
    is_over = threading.Event()
    seconds: list[float] = []
    wrong: list[object] = []

    def ask() -> None:
        with httpx2.Client(base_url=service.url or "", timeout=30.0) as client:
            while not is_over.wait(0.02):
                began = time.monotonic()
                try:
                    response = client.get("/livez")
                except httpx2.HTTPError as error:
                    wrong.append(error)
                    continue
                seconds.append(time.monotonic() - began)
                if response.status_code != 200:
                    wrong.append(response)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        is_over.set()
        asking.join()
    assert not wrong
    assert max(seconds) < ANSWER_SECONDS


@contextmanager
def unharmed(service: Service, url: str, folder: Path) -> Iterator[None]:
    """A neighbour runs meanwhile, and another job afterwards, as if nothing were."""
    before = descendants(service.pid), held_files(service.pid)
    gate = folder / "gate"
    neighbour = service.enqueue({"gate": str(gate)}, "gate")
    service.wait_for_stage(neighbour, "waiting")
    with answering(service):
        yield
        following = service.enqueue({"n": 1}, "demo-echo")
        ended = [service.wait_for_end(following)]
        gate.touch()
        ended.append(service.wait_for_end(neighbour))
    for job in ended:
        assert job["status"] == "completed"
        assert [a["outcome"] for a in attempts(url, job["id"])] == ["completed"]
    assert service.result(neighbour) == {"attempt": 1}

    # The pool of connections may grow; what belongs to a job is pipes and pidfds.
    def has_given_back() -> bool:
        more = held_files(service.pid) - before[1]
        return more.total() - more["socket"] == 0 and more["socket"] <= POOL_GROWTH

    wait_until(lambda: descendants(service.pid) <= before[0], "end of its processes")
    wait_until(has_given_back, "closed descriptors")


def assert_told_truly(service: Service, url: str, case: Case, job: dict[str, Any]) -> None:
    error = job["error"]
    assert (job["status"], error is None) == (case.status, case.error_class is None), error
    if error is not None:
        assert (error["cause"], error["error_class"]) == (case.cause, case.error_class), error
        assert case.message in error["message"]
        assert (error["traceback"] is not None) == case.has_traceback, error
    [attempt] = attempts(url, job["id"])
    assert attempt["ended_at"] is not None
    assert (attempt["outcome"], attempt["cause"]) == (case.status, case.cause)
    assert attempt["cpu_seconds"] >= 0
    if case.status == "completed" and case.result is not None:
        assert service.result(job["id"]) == case.result


def processes_of(job_id: str) -> set[int]:
    """Whatever carries the job's mark, wherever it has got to."""
    mark = Mark.of(Claim(job_id, 1))
    return with_mark(f"{mark.variable}={mark.value}") | with_name(mark.name)


def _assert_harmless(service: Service, url: str, folder: Path, case: Case) -> None:
    with unharmed(service, url, folder):
        payload = {"harm": case.harm, **case.payload}
        job_id = service.enqueue(payload, case.pipeline, **case.limits)
        # The largest results take half a minute on a machine that is busy with other work.
        job = service.wait_for_end(job_id, 120)
        # What a worker that settled its job itself has left is ended right after.
        wait_until(lambda: not processes_of(job_id), "end of its processes", 5)
    assert_told_truly(service, url, case, job)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
@pytest.mark.parametrize("start_method", ["forkserver"], indirect=True)
def test_a_hostile_job_harms_nobody_and_its_end_is_told_truly(
    warm: Service, shared_url: str, tmp_path: Path, case: Case
) -> None:
    _assert_harmless(warm, shared_url, tmp_path, case)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in SPAWNED])
@pytest.mark.parametrize("start_method", ["spawn"], indirect=True)
def test_a_hostile_job_that_was_spawned_harms_nobody_either(
    warm: Service, shared_url: str, tmp_path: Path, case: Case
) -> None:
    _assert_harmless(warm, shared_url, tmp_path, case)


# -- what a job makes of being told to end --------------------------------------------------------

# Libraries and frameworks install handlers too; each of these ends by an error of its own making.
HANDLERS = [
    "exit-by-sigterm",
    "exit-in-the-middle-by-sigterm",
    "cancel-by-sigterm",
    "fail-by-sigterm",
]


@pytest.mark.parametrize("harm", HANDLERS)
@pytest.mark.parametrize("start_method", ["forkserver"], indirect=True)
def test_a_cancelled_job_with_a_handler_of_its_own_is_cancelled_and_not_failed(
    warm: Service, shared_url: str, harm: str
) -> None:
    job_id = warm.enqueue({"harm": harm}, "hostile")
    warm.wait_for_stage(job_id, "waiting")

    assert warm.client.post(f"/jobs/{job_id}/cancel").status_code in {200, 202}

    assert warm.wait_for_end(job_id)["status"] == "cancelled"
    assert [a["outcome"] for a in attempts(shared_url, job_id)] == ["cancelled"]


def test_jobs_with_handlers_of_their_own_go_back_when_their_node_stops(
    start: Start, database_url: str
) -> None:
    with start(shutdown_grace_seconds=0.2) as service:
        ids = [service.enqueue({"harm": harm}, "hostile") for harm in HANDLERS]
        for job_id in ids:
            service.wait_for_stage(job_id, "waiting")
        assert service.stop() == 0
    for job_id in ids:
        row = job_row(database_url, job_id)
        assert (row["status"], row["attempt"], row["node_losses"]) == ("pending", 0, 0)
        [attempt] = attempts(database_url, job_id)
        assert (attempt["outcome"], attempt["cause"]) == ("released", "shutdown")
