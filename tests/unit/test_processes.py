"""`WorkerProcess` where something is missing, late or slow: no pidfd, a guard, a quick /proc."""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from support.mock_database import MockDatabase, claimed_job
from support.processes import living
from support.waiting import eventually
from unit import slow_guard

from app.domain.jobs import Cause, Registration
from app.domain.lifecycle import Cancelled, Died, Interrupted, Outcome
from app.orchestrator import destroying, launching, processes, recovery
from app.orchestrator.enforcing import LimitEnforcer
from app.orchestrator.launching import WorkerLauncher
from app.orchestrator.processes import WorkerProcess
from app.telemetry import Telemetry
from app.worker.descent import kill_descendants

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="guards exist on Linux only")

KILLED = Died(Cause.SIGNAL, "worker was ended by SIGKILL", signal=9)


@pytest.fixture
async def launcher() -> AsyncGenerator[WorkerLauncher, None]:
    launcher = WorkerLauncher("spawn", MockDatabase, Telemetry())
    yield launcher
    await launcher.close(2.0)


async def launched(launcher: WorkerLauncher, pipeline: str, **payload: Any) -> WorkerProcess:
    """A worker whose job runs and waits for its gate."""
    job = claimed_job(payload=json.dumps(payload))
    worker = await launcher.launch(job, Registration("mine", f"support.pipelines:{pipeline}"))

    async def runs() -> bool:
        worker.poll_reports()
        return worker.loaded_at is not None

    await eventually(runs, "the job")
    return worker


async def reaped(worker: WorkerProcess) -> Outcome | None:
    async def has_ended() -> bool:
        worker.poll_reports()
        worker.escalate(60.0)
        return worker.has_ended()

    await eventually(has_ended, "the end of the worker")
    assert await worker.end_group()
    worker.close()
    return worker.outcome()


# -- signals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_signals_reach_a_guard_that_has_no_pidfd(
    launcher: WorkerLauncher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    monkeypatch.setattr(processes, "_open_pidfd", lambda _: (None, False))
    worker = await launched(launcher, "Gate", gate=str(tmp_path / "gate"))

    if how == "stop":
        worker.stop(Cancelled())
    else:
        worker.kill(Cancelled())

    assert await reaped(worker) == Cancelled()
    assert worker.usage is not None  # its guard has ended it
    # By now the number may be a stranger's.
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: sent.append(number))
    worker.kill()
    assert sent == []


# -- how a worker ended ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["exit", "terminate"])
async def test_an_end_is_told_truly_where_the_guard_did_not_get_to_its_last_word(
    launcher: WorkerLauncher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    monkeypatch.setattr(launching, "worker_entry", slow_guard.worker_entry)
    worker = await launched(
        launcher, "AfterGate", gate=str(tmp_path / "gate"), folder=str(tmp_path), then="exit"
    )
    assert worker.worker_pid is not None

    async def told() -> bool:
        return (tmp_path / "pids").exists()

    await eventually(told, "the grandchild")
    if how == "exit":
        (tmp_path / "gate").touch()
    else:
        os.kill(worker.worker_pid, signal.SIGTERM)

    outcome = await reaped(worker)

    if how == "exit":
        assert outcome == Died(Cause.EXIT_CODE, "worker ended with exit code 9", exit_code=9)
    else:
        assert isinstance(outcome, Interrupted)
    assert worker.usage is None
    assert not living({int((tmp_path / "pids").read_text())})


# -- ends from outside ----------------------------------------------------------------------------


class Scans:
    """Looks at /proc that take until the test says so."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.under_way = 0
        self.most_at_once = 0
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        patch.setattr(destroying, "kill_descendants", self._scan)

    def _scan(self, root: int) -> bool:
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        self.has_begun.set()
        self.may_end.wait(20.0)
        self.under_way -= 1
        return kill_descendants(root)


@pytest.fixture
async def frozen_guard(
    launcher: WorkerLauncher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> WorkerProcess:
    """One that is overdue to be ended from outside."""
    worker = await launched(launcher, "Gate", gate=str(tmp_path / "gate"))
    monkeypatch.setattr(processes, "GUARD_SECONDS", 0.0)
    # Neither SIGUSR1 nor SIGCONT gets to it.
    monkeypatch.setattr(worker, "_signal", lambda _: None)
    os.kill(worker.pid, signal.SIGSTOP)
    worker.kill()
    return worker


def ours(worker: WorkerProcess) -> set[int]:
    return living({worker.pid, worker.worker_pid or 0})


async def gone(worker: WorkerProcess) -> bool:
    return not ours(worker)


async def test_a_long_look_at_its_processes_holds_up_no_loop_and_is_one_at_a_time(
    frozen_guard: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans = Scans(monkeypatch)
    assert frozen_guard.escalate(0.0)
    assert await asyncio.to_thread(scans.has_begun.wait, 20.0)
    for _ in range(10):
        assert not frozen_guard.escalate(0.0)
    scans.may_end.set()

    assert await reaped(frozen_guard) == KILLED
    assert scans.most_at_once == 1


async def test_a_group_is_emptied_while_a_look_at_it_is_under_way(
    frozen_guard: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GROUP_END_SECONDS", 0.1)
    scans = Scans(monkeypatch)

    # What is left is found by its marks; only the guard itself is still to come.
    assert not await frozen_guard.end_group()
    frozen_guard.close()

    assert scans.under_way == scans.most_at_once == 1
    assert ours(frozen_guard) <= {frozen_guard.pid}
    scans.may_end.set()
    await eventually(lambda: gone(frozen_guard), "the end of the guard")


@pytest.mark.parametrize("is_in_thread", [False, True])
async def test_who_is_closed_while_a_look_is_under_way_is_ended_all_the_same(
    frozen_guard: WorkerProcess, monkeypatch: pytest.MonkeyPatch, *, is_in_thread: bool
) -> None:
    monkeypatch.setattr(destroying, "MOMENT_SECONDS", 0.01)
    scans = Scans(monkeypatch)
    if is_in_thread:  # as a launch that was given up
        await asyncio.to_thread(frozen_guard.end_at_once, 0.1)
    else:  # as a shutdown
        frozen_guard.destroy()
        frozen_guard.close()
    assert scans.under_way == 1

    scans.may_end.set()

    await eventually(lambda: gone(frozen_guard), "the end of the guard")
    assert scans.most_at_once == 1


async def test_who_is_destroyed_is_gone_at_once_where_it_has_few_processes(
    frozen_guard: WorkerProcess,
) -> None:
    frozen_guard.destroy()
    assert frozen_guard._wait(5.0)
    assert await reaped(frozen_guard) == KILLED


async def test_who_is_destroyed_is_ended_here_where_no_thread_can_be_started(
    frozen_guard: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        frozen_guard.destroy()
    assert await reaped(frozen_guard) == KILLED


# -- a worker that stores its outcome -------------------------------------------------------------


@pytest.fixture
async def storing(launcher: WorkerLauncher, tmp_path: Path) -> AsyncGenerator[WorkerProcess, None]:
    """Its run is over since SIGTERM came, and the database is slow."""
    worker = await launched(launcher, "Gate", gate=str(tmp_path / "gate"))
    assert worker.worker_pid is not None
    os.kill(worker.worker_pid, signal.SIGSTOP)
    worker.stop(Cancelled())
    worker._reports.has_outcome = True
    yield worker
    worker.kill()
    assert await reaped(worker) == Cancelled()


async def test_the_end_of_the_grace_cuts_no_storing_short(storing: WorkerProcess) -> None:
    assert not storing.escalate(0.0)
    assert storing._kill_sent is None

    storing._reports.has_outcome = False

    assert storing.escalate(0.0)
    assert storing._kill_sent is not None


async def test_who_is_killed_while_it_stores_is_ended_from_outside_if_need_be(
    storing: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GUARD_SECONDS", 0.0)
    os.kill(storing.pid, signal.SIGSTOP)
    monkeypatch.setattr(storing, "_signal", lambda _: None)
    storing.kill()
    assert storing.escalate(60.0)
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("silence", "is_killed"), [(lambda s: s - 10, False), (lambda s: s + 1, True)]
)
async def test_who_stores_without_a_word_for_too_long_is_killed(
    storing: WorkerProcess, silence: Callable[[float], float], *, is_killed: bool
) -> None:
    assert storing.last_sign is not None
    storing._reports.last_sign = storing.last_sign - silence(recovery.STORING_SILENCE_SECONDS)
    enforcer = LimitEnforcer(
        {storing.job.id: storing}, 0.0, Telemetry(), measure_memory=lambda *_: None
    )

    await enforcer.enforce()

    assert (storing._kill_sent is not None) == is_killed
    assert storing.stop_reason == Cancelled()
