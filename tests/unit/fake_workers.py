"""Workers without processes: they end when a test says so, and remember what was done to them."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from support.mock_database import MockDatabase, claimed_job

from app.domain.jobs import Cause, ClaimedJob, Limits, Registration, Usage
from app.domain.lifecycle import Completed, Died, Outcome
from app.orchestrator.launching import WorkerLauncher
from app.orchestrator.manager import QueueManager
from app.orchestrator.options import ManagerOptions
from app.orchestrator.processes import StopReason, WorkerProcess
from app.orchestrator.recovery import LiveWorker
from app.telemetry import Event, Telemetry

PIPELINES = {"demo-echo": Registration("demo-echo", "app.pipelines.demo:Echo")}
KILLED = Died(Cause.SIGNAL, "worker was ended by SIGKILL", signal=9)
SETTLED = Completed('"stored by the worker itself"')


class FakeWorker:
    """Stands in for a WorkerProcess.

    Attributes:
        ends_on_stop: whether SIGTERM ends it at once; SIGKILL always does.
        may_be_emptied: set it to let `end_group` return.
    """

    def __init__(self, job: ClaimedJob, run_seconds: float = 0.0) -> None:
        self.job = job
        self.pid = 4_711
        self.run_seconds = run_seconds
        self.stop_reason: StopReason | None = None
        self.worker_pid: int | None = 4_712
        self.connected_at: float | None = None
        self.loaded_at: float | None = None
        self.last_sign: float | None = None
        self.usage: Usage | None = None
        self.has_outcome = False
        self.excused_seconds = 0.0
        self.memory_bytes: int | None = None
        self.ends_on_stop = True
        self.is_killed = asyncio.Event()
        self.may_be_emptied = asyncio.Event()
        self.may_be_emptied.set()
        self.is_closed = False
        self._has_ended = False
        self._outcome: Outcome | None = None
        self._on_end: Callable[[], None] = lambda: None

    def end(self, outcome: Outcome | None) -> None:
        """The process ends by itself; None means that it lost its claim."""
        if not self._has_ended:
            self._has_ended = True
            self._outcome = outcome
            self._on_end()

    def poll_reports(self) -> None:
        pass

    def seen(self) -> LiveWorker:
        return LiveWorker(
            self.job.claim,
            self.job.limits,
            alive_seconds=self.run_seconds,
            run_seconds=self.run_seconds,
            is_loaded=True,
            memory_bytes=self.memory_bytes,
            is_storing=self.has_outcome,
        )

    def note_memory(self, memory_bytes: int | None) -> None:
        self.memory_bytes = memory_bytes

    def watch(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end

    def has_ended(self) -> bool:
        return self._has_ended

    def stop(self, reason: StopReason) -> None:
        self.stop_reason = self.stop_reason or reason
        if self.ends_on_stop:
            self.end(KILLED)

    def escalate(self, grace_seconds: float) -> bool:
        if self.stop_reason is None or self.is_killed.is_set():
            return False
        self.kill()
        return True

    def kill(self, reason: StopReason | None = None) -> None:
        self.stop_reason = self.stop_reason or reason
        self.is_killed.set()
        self.end(KILLED)

    def destroy(self) -> None:
        self.kill()

    def end_at_once(self, timeout_seconds: float) -> None:
        self.kill()
        self.close()

    @property
    def may_have_settled(self) -> bool:
        return self.has_outcome

    def excuse(self, seconds: float) -> None:
        self.excused_seconds += seconds

    async def end_group(self) -> bool:
        await self.may_be_emptied.wait()
        return True

    def outcome(self) -> Outcome | None:
        return self.stop_reason or self._outcome

    def close(self) -> None:
        self.is_closed = True


class FakeLauncher:
    """Stands in for a WorkerLauncher; a queued failure is raised instead of a launch.

    Attributes:
        may_launch: clear it to let launches hang.
        may_warm_up: the same for the preparation.
    """

    def __init__(self) -> None:
        self.workers: list[FakeWorker] = []
        self.failures: list[Exception] = []
        self.may_launch = asyncio.Event()
        self.may_launch.set()
        self.is_launching = asyncio.Event()
        self.may_warm_up = asyncio.Event()
        self.may_warm_up.set()

    async def warm_up(self) -> None:
        await self.may_warm_up.wait()

    async def close(self) -> None:
        pass

    async def launch(self, job: ClaimedJob, registration: Registration) -> FakeWorker:
        self.is_launching.set()
        await self.may_launch.wait()
        if self.failures:
            raise self.failures.pop(0)
        worker = FakeWorker(job)
        self.workers.append(worker)
        return worker


class Node:
    """A queue manager on a scripted database with fake workers."""

    def __init__(self, db: MockDatabase | None = None, **options: Any) -> None:
        self.db = db or MockDatabase()
        self.events: list[Event] = []
        self.launcher = FakeLauncher()
        defaults: dict[str, Any] = {
            "max_concurrent_jobs": 4,
            # Nothing happens by the clock unless a test wants it.
            "poll_interval_seconds": 60.0,
            "watchdog_interval_seconds": 60.0,
            "heartbeat_interval_seconds": 60.0,
            "node_lease_seconds": 240.0,
            "shutdown_grace_seconds": 0.0,
            "default_limits": Limits(),
        }
        self.manager = QueueManager(
            lambda: self.db,
            pipelines=PIPELINES,
            options=ManagerOptions(**{**defaults, **options}),
            telemetry=Telemetry([self.events.append]),
        )
        launcher = cast("WorkerLauncher", self.launcher)
        self.manager._launcher = self.manager._claimer._launcher = launcher

    def running(self, **job: Any) -> FakeWorker:
        """A worker that is there already."""
        worker = FakeWorker(claimed_job(**job))
        self.manager._running_processes[worker.job.id] = cast("WorkerProcess", worker)
        worker.watch(self.manager._on_process_end)
        return worker

    def verdicts(self) -> list[tuple[str, str, Cause | None]]:
        """What was written about which job: status and cause, in order."""
        return [(claim.job_id, v.status, v.cause) for claim, v in self.db.finished]

    def told(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]
