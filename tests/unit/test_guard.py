"""Guard and worker as real processes: nothing outlives a job, and its end is told truly."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from support.mock_database import MockDatabase, claimed_job
from support.processes import living
from support.waiting import eventually

from app.domain.jobs import Cause, Registration
from app.domain.lifecycle import Cancelled, Died, Outcome, Overran
from app.orchestrator.launching import WorkerLauncher
from app.orchestrator.processes import WorkerProcess
from app.telemetry import Telemetry

pytestmark = pytest.mark.skipif(os.name != "posix", reason="guards exist on Linux only")

TIMED_OUT = Overran(Cause.TIMED_OUT, "too long")
KILLED = Died(Cause.SIGNAL, "worker was ended by SIGKILL", signal=9)
NO_RESULT = Died(
    Cause.EXIT_CODE, "worker ended with exit code 0 without storing a result", exit_code=0
)


@pytest.fixture(params=["forkserver", "spawn"])
async def launcher(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[WorkerLauncher, None]:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    launcher = WorkerLauncher(request.param, MockDatabase, Telemetry())
    await launcher.warm_up()
    yield launcher
    await launcher.close(2.0)


async def launched(launcher: WorkerLauncher, pipeline: str, **payload: Any) -> WorkerProcess:
    job = claimed_job(payload=json.dumps(payload))
    return await launcher.launch(job, Registration("mine", f"support.pipelines:{pipeline}"))


async def scattered(
    launcher: WorkerLauncher, folder: Path, then: str = "wait"
) -> tuple[WorkerProcess, set[int]]:
    """A worker and the processes of its job, its own included."""
    worker = await launched(launcher, "Scattering", folder=str(folder), then=then)
    return worker, await pids_in(folder)


async def pids_in(folder: Path) -> set[int]:
    async def told() -> set[int]:
        file = folder / "pids"
        return set(map(int, file.read_text().split())) if file.exists() else set()

    return await eventually(told, "the pids of the job")


async def end_of(worker: WorkerProcess) -> Outcome | None:
    """Reap the worker as the manager does; AssertionError if anything of its job is left."""
    has_ended = asyncio.Event()
    worker.watch(has_ended.set)
    try:
        async with asyncio.timeout(20.0):
            while not has_ended.is_set():
                worker.poll_reports()
                worker.escalate(60.0)
                try:
                    async with asyncio.timeout(0.1):
                        await has_ended.wait()
                except TimeoutError:
                    continue
        assert await worker.end_group()
        return worker.outcome()
    finally:
        worker.close()


@pytest.mark.parametrize(
    ("then", "outcome"),
    [
        ("return", NO_RESULT),
        ("die", KILLED),
        ("exit", Died(Cause.EXIT_CODE, "worker ended with exit code 9", exit_code=9)),
    ],
)
async def test_nothing_is_left_of_a_job_that_ends_by_itself(
    launcher: WorkerLauncher, tmp_path: Path, then: str, outcome: Outcome
) -> None:
    worker, pids = await scattered(launcher, tmp_path, then)

    assert await end_of(worker) == outcome

    assert len(pids) == 6
    assert living(pids) == set()
    assert worker.usage is not None
    assert (worker.usage.cpu_seconds or 0) > 0
    assert (worker.usage.peak_memory_bytes or 0) > 4_000_000


async def test_nothing_is_left_of_a_job_that_is_killed(
    launcher: WorkerLauncher, tmp_path: Path
) -> None:
    worker, pids = await scattered(launcher, tmp_path)
    assert len(living(pids)) == 6

    worker.kill(TIMED_OUT)

    assert await end_of(worker) == TIMED_OUT
    assert living(pids) == set()
    assert worker.usage is not None


async def test_nothing_is_left_of_a_job_that_is_stopped(
    launcher: WorkerLauncher, tmp_path: Path
) -> None:
    worker, pids = await scattered(launcher, tmp_path)

    worker.stop(Cancelled())

    # The worker heeds SIGTERM; what it left did not get to.
    assert await end_of(worker) == Cancelled()
    assert living(pids) == set()


async def test_nothing_is_left_when_the_guard_is_killed(
    launcher: WorkerLauncher, tmp_path: Path
) -> None:
    worker, pids = await scattered(launcher, tmp_path)

    os.kill(worker.pid, signal.SIGKILL)

    assert await end_of(worker) == KILLED
    assert living(pids) == set()
    assert worker.usage is None


async def test_a_frozen_guard_goes_on_to_kill(launcher: WorkerLauncher, tmp_path: Path) -> None:
    worker, pids = await scattered(launcher, tmp_path)
    os.kill(worker.pid, signal.SIGSTOP)

    worker.kill()

    assert await end_of(worker) == KILLED
    assert living(pids) == set()
    assert worker.usage is not None


async def test_nothing_is_left_when_a_frozen_guard_is_ended_from_outside(
    launcher: WorkerLauncher, tmp_path: Path
) -> None:
    worker, pids = await scattered(launcher, tmp_path)
    os.kill(worker.pid, signal.SIGSTOP)

    worker.destroy()

    assert await end_of(worker) == KILLED
    assert living(pids) == set()


async def test_a_guard_that_somebody_ends_by_sigterm_passes_it_on(
    launcher: WorkerLauncher, tmp_path: Path
) -> None:
    worker, pids = await scattered(launcher, tmp_path)

    os.kill(worker.pid, signal.SIGTERM)

    outcome = await end_of(worker)
    assert "SIGTERM from outside" in getattr(outcome, "description", "")
    assert living(pids) == set()


async def test_a_kill_that_comes_before_the_guard_is_ready_is_not_lost(
    launcher: WorkerLauncher, tmp_path: Path
) -> None:
    for _ in range(5):
        worker = await launched(launcher, "Scattering", folder=str(tmp_path), then="wait")
        worker.kill()
        assert await end_of(worker) == KILLED


async def test_a_worker_leads_its_own_session_beside_its_guard(
    launcher: WorkerLauncher, tmp_path: Path
) -> None:
    worker, _ = await scattered(launcher, tmp_path)
    worker.poll_reports()
    pid = worker.worker_pid
    assert pid is not None
    assert pid != worker.pid
    assert os.getsid(pid) == os.getpgid(pid) == pid
    assert os.getsid(worker.pid) == worker.pid
    assert oom_score(pid) == 500
    assert oom_score(worker.pid) == oom_score(os.getpid())
    assert os.getpriority(os.PRIO_PROCESS, worker.pid) < os.getpriority(os.PRIO_PROCESS, pid)

    worker.kill()
    await end_of(worker)


def oom_score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


async def test_what_a_worker_tells_is_heard(launcher: WorkerLauncher, tmp_path: Path) -> None:
    worker = await launched(launcher, "Gate", gate=str(tmp_path / "gate"))

    async def has_loaded() -> bool:
        worker.poll_reports()
        return worker.loaded_at is not None

    await eventually(has_loaded, "the pipeline's loading")

    assert worker.connected_at is not None
    assert worker.last_sign is not None
    assert not worker.has_outcome
    (tmp_path / "gate").touch()
    assert await end_of(worker) == NO_RESULT


async def test_rubbish_in_the_report_pipe_harms_nobody(launcher: WorkerLauncher) -> None:
    worker = await launched(launcher, "Rubbish")

    assert await end_of(worker) == NO_RESULT

    assert worker.worker_pid not in {None, 1}
    assert worker.usage is not None


async def test_a_job_that_closes_every_descriptor_leaves_nothing(
    launcher: WorkerLauncher, tmp_path: Path
) -> None:
    worker = await launched(launcher, "Closing", folder=str(tmp_path))

    outcome = await end_of(worker)

    assert isinstance(outcome, Died)
    assert outcome.cause in {Cause.WORKER_BROKEN, Cause.EXIT_CODE}
    assert living(await pids_in(tmp_path)) == set()


async def test_a_job_may_use_process_pools(launcher: WorkerLauncher) -> None:
    worker = await launched(launcher, "Pools")

    assert await end_of(worker) == NO_RESULT
    # Pipelines that raise are settled too: what tells them apart is that the loading was heard.
    assert worker.loaded_at is not None
