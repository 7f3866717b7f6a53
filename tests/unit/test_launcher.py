"""`WorkerLauncher`: starts that fail or hang, ends told truly, and nothing left of any of them."""

import asyncio
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import AsyncGenerator
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from support.mock_database import MockDatabase, claimed_job
from support.processes import children, command_of, frozen, living
from support.service import process_exists
from support.waiting import eventually
from unit import unguarded

from app.db.interface import DBFactory
from app.domain.jobs import Cause, Registration
from app.domain.lifecycle import Died, Outcome
from app.orchestrator import launching
from app.orchestrator.launching import WorkerLauncher, WorkerStartError
from app.orchestrator.memory import oom_kills
from app.orchestrator.processes import WorkerProcess
from app.telemetry import Event, Telemetry
from app.worker import guard

_unpicklable: DBFactory = lambda: MockDatabase()  # noqa: E731, PLW0108  a lambda cannot cross
ECHO = "app.pipelines.demo:Echo"


@pytest.fixture(autouse=True)
def _numeric_libraries_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")


@pytest.fixture
async def launcher() -> AsyncGenerator[WorkerLauncher, None]:
    """One with a forkserver."""
    launcher = WorkerLauncher("forkserver", MockDatabase, Telemetry())
    await launcher.warm_up()
    yield launcher
    await launcher.close(2.0)


async def launched(launcher: WorkerLauncher, target: str = ECHO, **payload: Any) -> WorkerProcess:
    job = claimed_job(payload=json.dumps(payload))
    return await launcher.launch(job, Registration("mine", target))


async def outcome_of(worker: WorkerProcess) -> Outcome | None:
    has_ended = asyncio.Event()
    worker.watch(has_ended.set)
    async with asyncio.timeout(20.0):
        await has_ended.wait()
    assert await worker.end_group()
    worker.close()
    return worker.outcome()


def forkserver_pid() -> int:
    [pid] = [pid for pid in children(os.getpid()) if "forkserver" in command_of(pid)]
    return pid


def open_descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


# -- starts that fail -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factory", "arguments"),
    [(_unpicklable, {}), (MockDatabase, {"size": object()})],
    ids=["factory that cannot be pickled", "arguments that are not JSON"],
)
async def test_a_launch_that_fails_says_why_and_leaves_nothing(
    factory: DBFactory, arguments: dict[str, object]
) -> None:
    launcher = WorkerLauncher("spawn", factory, Telemetry())
    with pytest.raises(WorkerStartError):  # what is made once is made now
        await launcher.launch(claimed_job(), Registration("echo", ECHO, arguments))
    before = open_descriptors()

    with pytest.raises(WorkerStartError, match=r"pickle|JSON"):
        await launcher.launch(claimed_job(), Registration("echo", ECHO, arguments))

    assert open_descriptors() == before
    await launcher.close()


async def test_a_forkserver_that_does_not_answer_is_replaced_and_the_loop_goes_on_meanwhile(
    launcher: WorkerLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = forkserver_pid()
    monkeypatch.setattr(launching, "START_SECONDS", 0.5)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    turning = asyncio.create_task(turn())
    os.kill(old, signal.SIGSTOP)
    with pytest.raises(WorkerStartError, match=r"within 0\.5 s"):
        await launched(launcher)
    turning.cancel()
    assert turns > 10
    monkeypatch.setattr(launching, "START_SECONDS", 30.0)

    worker = await launched(launcher)

    assert isinstance(await outcome_of(worker), Died)
    assert forkserver_pid() != old
    assert not process_exists(old)


async def test_a_process_that_came_up_while_its_manager_was_frozen_is_kept(
    launcher: WorkerLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a node finds it that wakes up: the time is over, and the answer is on its way.
    monkeypatch.setattr(launching, "START_SECONDS", 0.0)
    monkeypatch.setattr(launching, "LATE_SECONDS", 20.0)
    before = forkserver_pid()

    worker = await launched(launcher)

    assert isinstance(await outcome_of(worker), Died)
    assert forkserver_pid() == before


async def test_a_payload_larger_than_a_pipe_does_not_hang_at_a_forkserver_that_is_stopped(
    launcher: WorkerLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "START_SECONDS", 0.5)
    os.kill(forkserver_pid(), signal.SIGSTOP)

    with pytest.raises(WorkerStartError):
        await launched(launcher, text="x" * 250_000)

    monkeypatch.setattr(launching, "START_SECONDS", 30.0)
    assert isinstance(await outcome_of(await launched(launcher)), Died)


async def test_a_forkserver_that_does_not_answer_holds_up_no_start_of_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[Event] = []
    launcher = WorkerLauncher("forkserver", MockDatabase, Telemetry([events.append]))
    await launcher.warm_up()
    monkeypatch.setattr(launching, "WARM_UP_SECONDS", 0.5)

    os.kill(forkserver_pid(), signal.SIGSTOP)

    await launcher.warm_up()

    assert [event.name for event in events] == ["preload.incomplete"]
    await launcher.close(2.0)


# -- starts that nobody wants any more ------------------------------------------------------------


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
async def test_a_worker_that_comes_up_after_its_launch_was_given_up_is_ended(
    start_method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launcher = WorkerLauncher(start_method, MockDatabase, Telemetry())
    await launcher.warm_up()
    may_go_on, workers = threading.Event(), []
    start = launcher._start

    def held_up(*arguments: Any) -> WorkerProcess:
        worker = start(*arguments)
        workers.append(worker)
        may_go_on.wait(10.0)
        return worker

    monkeypatch.setattr(launcher, "_start", held_up)
    launch = asyncio.create_task(
        launched(launcher, "support.pipelines:Gate", gate=str(tmp_path / "never"))
    )

    async def is_up() -> bool:
        return bool(workers)

    await eventually(is_up, "the process")
    launch.cancel()
    await asyncio.gather(launch, return_exceptions=True)
    may_go_on.set()

    async def is_gone() -> bool:
        return not process_exists(workers[0].pid)

    await eventually(is_gone, "the end of the unwanted worker")
    await launcher.close(5.0)
    assert not living({workers[0].worker_pid or 0})
    assert multiprocessing.active_children() == []


async def test_a_launch_that_never_began_starts_nothing(launcher: WorkerLauncher) -> None:
    may_go_on = threading.Event()
    launcher._thread.submit(may_go_on.wait)
    launch = asyncio.create_task(launched(launcher))
    await asyncio.sleep(0)
    launch.cancel()
    await asyncio.gather(launch, return_exceptions=True)
    before = children(os.getpid()) | children(forkserver_pid())

    may_go_on.set()
    await launcher.close(2.0)

    assert children(os.getpid()) | children(forkserver_pid()) <= before


# -- ends -----------------------------------------------------------------------------------------


async def test_ends_are_told_truly_when_the_forkserver_is_killed_while_workers_run(
    launcher: WorkerLauncher, tmp_path: Path
) -> None:
    workers = {
        then: await launched(
            launcher, "support.pipelines:AfterGate", gate=str(tmp_path / "gate"), then=then
        )
        for then in ("return", "die", "exit")
    }
    forkserver = forkserver_pid()
    os.kill(forkserver, signal.SIGKILL)

    async def is_gone() -> bool:
        return not process_exists(forkserver)

    await eventually(is_gone, "the end of the forkserver")
    # Its children's sentinels fire with an exit code that is made up; the next start reads it.
    assert isinstance(await outcome_of(await launched(launcher)), Died)
    assert not any(worker.has_ended() for worker in workers.values())
    (tmp_path / "gate").touch()

    ends = {then: await outcome_of(worker) for then, worker in workers.items()}

    told = {then: (e.exit_code, e.signal) for then, e in ends.items() if isinstance(e, Died)}
    assert told == {"return": (0, None), "die": (None, 9), "exit": (9, None)}


async def test_an_end_is_told_while_the_forkserver_is_stopped(
    launcher: WorkerLauncher, tmp_path: Path
) -> None:
    worker = await launched(
        launcher, "support.pipelines:AfterGate", gate=str(tmp_path / "gate"), then="exit"
    )
    with frozen(forkserver_pid()):
        (tmp_path / "gate").touch()
        outcome = await outcome_of(worker)
        assert isinstance(outcome, Died)
        assert outcome.exit_code == 9
    assert await launcher._thread.clear(5.0)


async def test_a_stopped_forkserver_does_not_hold_up_the_end_of_the_node(
    launcher: WorkerLauncher, tmp_path: Path
) -> None:
    worker = await launched(
        launcher, "support.pipelines:AfterGate", gate=str(tmp_path / "gate"), then="exit"
    )
    os.kill(forkserver_pid(), signal.SIGSTOP)
    (tmp_path / "gate").touch()
    await outcome_of(worker)

    async with asyncio.timeout(5.0):
        await launcher.close(1.0)

    # The interpreter's end waits for each of these.
    assert multiprocessing.active_children() == []


async def test_two_hundred_jobs_leave_no_descriptor_and_no_process(
    launcher: WorkerLauncher,
) -> None:
    async def eight() -> None:
        workers = [await launched(launcher) for _ in range(8)]
        for worker in workers:
            outcome = await outcome_of(worker)
            assert isinstance(outcome, Died)
            assert outcome.exit_code == 0
        assert await launcher._thread.clear(5.0)

    await eight()
    before = open_descriptors()
    for _ in range(25):
        await eight()

    assert open_descriptors() <= before
    assert children(forkserver_pid()) == set()


@pytest.mark.parametrize(
    ("after", "cause"), [("oom_kill 4\n", Cause.OUT_OF_MEMORY), ("oom_kill 3\n", Cause.SIGNAL)]
)
async def test_a_sigkill_while_the_system_ran_out_of_memory_is_told_apart(
    launcher: WorkerLauncher, tmp_path: Path, after: str, cause: Cause
) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("low 7\noom 9\noom_kill 3\n")
    launcher._count_oom_kills = partial(oom_kills, counter)
    worker = await launched(
        launcher, "support.pipelines:AfterGate", gate=str(tmp_path / "gate"), then="die"
    )
    counter.write_text(after)
    (tmp_path / "gate").touch()

    outcome = await outcome_of(worker)

    assert isinstance(outcome, Died)
    assert (outcome.cause, outcome.signal) == (cause, 9)


# -- without a guard ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["return", "kill", "stop"])
async def test_a_group_is_ended_where_there_is_no_guard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    asking: set[str] = set()
    ask: property = vars(BaseProcess)["exitcode"]

    def exit_code(process: BaseProcess) -> Any:
        asking.add(threading.current_thread().name)
        return ask.__get__(process)

    monkeypatch.setattr(BaseProcess, "exitcode", property(exit_code))
    monkeypatch.setattr(guard, "HAS_GUARD", False)
    monkeypatch.setattr(launching, "worker_entry", unguarded.worker_entry)
    launcher = WorkerLauncher("spawn", MockDatabase, Telemetry())
    gate = tmp_path / "gate"
    worker = await launched(
        launcher, "support.pipelines:AfterGate", gate=str(gate), folder=str(tmp_path), then="return"
    )

    async def told() -> bool:
        return (tmp_path / "pids").exists()

    await eventually(told, "the grandchild")
    grandchild = int((tmp_path / "pids").read_text())
    match how:
        case "return":
            gate.touch()
        case "kill":
            worker.kill()
        case _:
            os.killpg(worker.pid, signal.SIGTERM)

    outcome = await outcome_of(worker)

    assert worker.worker_pid == worker.pid
    assert not process_exists(grandchild)
    match how:
        case "return":
            assert isinstance(outcome, Died)
            assert outcome.exit_code == 0
        case "kill":
            assert outcome == Died(Cause.SIGNAL, "worker was ended by SIGKILL", signal=9)
        case _:
            assert "SIGTERM" in getattr(outcome, "description", "")
    await launcher.close(2.0)
    assert asking == {"haulage-starts"}
