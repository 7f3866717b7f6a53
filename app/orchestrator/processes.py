"""One worker process: start it, signal everything it started, tell how it died.

Wakes come from the process's sentinel; whether it is dead is asked of its pidfd: when a forkserver
is killed, every sentinel fires with exit code 255 although the workers live on. Processes are
started, polled and joined from the event loop's own thread only; elsewhere exit codes get lost.
"""

import asyncio
import contextlib
import json
import multiprocessing
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from app.db.interface import DBFactory
from app.domain.errors import HaulageError
from app.domain.jobs import Cause, ClaimedJob, Registration
from app.domain.lifecycle import (
    Cancelled,
    Died,
    Interrupted,
    NodeLost,
    NotConnected,
    NotStarted,
    Outcome,
    Overran,
    Released,
)
from app.orchestrator.recovery import LiveWorker
from app.telemetry import Telemetry
from app.worker.entry import ExitCode, worker_entry

PRELOAD: Final = ("app.worker.entry", "app.db.postgres.adapter", "asyncpg")
GROUP_END_SECONDS: Final = 2.0

# What multiprocessing reports where it lost the status: never taken at its word.
_UNKNOWN_EXIT_CODE: Final = 255
_RECHECK_SECONDS: Final = 0.1
_SINGLE_THREADED: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_FAILED_STEP: Final = {
    ExitCode.NO_LOGGING: "its logging could not be set up",
    ExitCode.NO_EVENT_LOOP: "it got no event loop",
    ExitCode.BROKEN: "an error outside the pipeline, see the service's log",
}

StopReason = Cancelled | Released | Overran | NodeLost | NotStarted


class WorkerStartError(HaulageError):
    """No process came up for a claimed job."""


class WorkerProcess:
    """A started worker and the process group that it leads.

    Args:
        outcome_signal: gets a byte from the worker when its run is over and only the storing of
            the outcome is left.
    """

    def __init__(self, job: ClaimedJob, process: BaseProcess, outcome_signal: Connection) -> None:
        self.job = job
        self.pid: int = process.pid or 0
        self.started = time.monotonic()
        self.stop_reason: StopReason | None = None
        self.memory_bytes: int | None = None
        self._process = process
        self._outcome_signal = outcome_signal
        self._pidfd = _open_pidfd(self.pid)
        self._term_sent: float | None = None
        self._is_killed = False
        self._unwatch: Callable[[], object] | None = None

    @property
    def run_seconds(self) -> float:
        """Since the start, by the monotonic clock."""
        return time.monotonic() - self.started

    @property
    def has_outcome(self) -> bool:
        """Whether the run is over and the living worker only tries to store its outcome."""
        return not self.has_ended() and self._outcome_signal.poll(0)

    def seen(self) -> LiveWorker:
        """What recovery needs to know of it."""
        return LiveWorker(
            self.job.claim,
            self.job.limits,
            alive_seconds=self.run_seconds,
            run_seconds=self.run_seconds,
            is_loaded=True,
            memory_bytes=self.memory_bytes,
            is_storing=self.has_outcome,
        )

    @property
    def process_id(self) -> int:
        """Root of everything that runs for the job."""
        return self.pid

    def note_memory(self, memory_bytes: int | None) -> None:
        """Remember what all of its processes use now."""
        self.memory_bytes = memory_bytes

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call `on_end` once, from the running event loop, when the process has ended."""
        loop = asyncio.get_running_loop()

        def judge() -> None:
            self.unwatch()
            if self.has_ended():
                on_end()
            elif self._pidfd is not None:
                self._wait_for(loop, self._pidfd, judge)
            else:
                self._unwatch = loop.call_later(_RECHECK_SECONDS, judge).cancel

        self._wait_for(loop, self._process.sentinel, judge)

    def _wait_for(
        self, loop: asyncio.AbstractEventLoop, descriptor: int, callback: Callable[[], None]
    ) -> None:
        loop.add_reader(descriptor, callback)
        self._unwatch = lambda: loop.remove_reader(descriptor)

    def unwatch(self) -> None:
        """Stop calling back."""
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            unwatch()

    def has_ended(self) -> bool:
        """Whether the process itself is gone; its group may live on."""
        if self._pidfd is not None:
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            return bool(poller.poll(0))
        return self._process.exitcode is not None

    def stop(self, reason: StopReason) -> None:
        """Begin the ladder: SIGTERM to the group now, SIGKILL when `escalate` finds it overdue.

        The first reason counts.
        """
        if self.stop_reason is None:
            self.stop_reason = reason
            self._term_sent = time.monotonic()
            self._signal_group(signal.SIGTERM)

    def escalate(self, grace_seconds: float) -> bool:
        """SIGKILL to the group if its SIGTERM is older than the grace; whether it was sent."""
        if self._is_killed or self._term_sent is None:
            return False
        if time.monotonic() - self._term_sent < grace_seconds:
            return False
        self.kill()
        return True

    def kill(self, reason: StopReason | None = None) -> None:
        """SIGKILL to the whole group at once; without a reason it is for its exit to tell."""
        self.stop_reason = self.stop_reason or reason
        self._is_killed = True
        self._signal_group(signal.SIGKILL)

    async def end_group(self) -> bool:
        """After the leader's end: kill what it left behind; whether the group is empty now."""
        end = time.monotonic() + GROUP_END_SECONDS
        while _group_exists(self.pid):
            # Once the leader is reaped its pid may be given to a stranger; who holds it then is
            # not ours to signal.
            if self._is_reaped() and _process_exists(self.pid):
                return True
            if not _live_members(self.pid):
                return True
            self._signal_group(signal.SIGKILL)
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.01)
        return True

    def outcome(self) -> Outcome | None:
        """What to write about the attempt if its job still runs; None where the claim was lost."""
        code = self._exit_code()
        if self.stop_reason is not None and code != ExitCode.SETTLED:
            return self.stop_reason
        match code:
            case ExitCode.CLAIM_LOST:
                return None
            case ExitCode.NOT_CONNECTED:
                return NotConnected("the worker could not connect to the database")
            case int() if code in (ExitCode.TERMINATED, -signal.SIGTERM):
                return Interrupted("the worker was ended by SIGTERM from outside")
            case ExitCode.NO_LOGGING | ExitCode.NO_EVENT_LOOP | ExitCode.BROKEN:
                description = f"worker failed by itself: {_FAILED_STEP[ExitCode(code)]}"
                return Died(Cause.WORKER_BROKEN, description, exit_code=code)
            case None:
                return Died(Cause.WORKER_LOST, "worker is gone, its exit status is unknown")
            case int() if code < 0:
                return Died(
                    Cause.SIGNAL, f"worker was ended by {_signal_name(-code)}", signal=-code
                )
            case ExitCode.SETTLED:
                description = "worker ended with exit code 0 without storing a result"
                return Died(Cause.EXIT_CODE, description, exit_code=0)
            case _:
                return Died(Cause.EXIT_CODE, f"worker ended with exit code {code}", exit_code=code)

    def close(self) -> None:
        """Give back every descriptor; the process must have ended."""
        self.unwatch()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        self._outcome_signal.close()
        self._process.join(timeout=0.5)
        # ValueError: multiprocessing cannot tell that it ended; then nothing can be given back.
        with contextlib.suppress(ValueError):
            self._process.close()

    def _exit_code(self) -> int | None:
        if self._process.exitcode is None:
            self._process.join(timeout=0.5)
        code = self._process.exitcode
        return None if code == _UNKNOWN_EXIT_CODE else code

    def _is_reaped(self) -> bool:
        return self._process.exitcode is not None

    def _signal_group(self, number: signal.Signals) -> None:
        if self._is_reaped() and _process_exists(self.pid):
            return  # the pid is a stranger's by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
        # A worker that was started a moment ago may not lead a group yet.
        if self._pidfd is not None and not self.has_ended():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)


class WorkerLauncher:
    """Starts workers by one start method.

    Args:
        start_method: "forkserver" (worker modules preloaded) or "spawn".
        db_factory: picklable; each worker opens its own connection with it.
    """

    def __init__(self, start_method: str, db_factory: DBFactory, telemetry: Telemetry) -> None:
        self._context: BaseContext = multiprocessing.get_context(start_method)
        self._db_factory = db_factory
        self._telemetry = telemetry
        self._is_preloading = start_method == "forkserver"

    def warm_up(self) -> None:
        """Start the forkserver and check what it really preloaded; about half a second."""
        # Numeric libraries start one thread per core at import; a process with threads must not
        # be forked, and jobs that run side by side would fight for the cores.
        for name in _SINGLE_THREADED:
            os.environ.setdefault(name, "1")
        if not self._is_preloading:
            return
        self._context.set_forkserver_preload(list(PRELOAD))
        with _hidden_main():
            probe = self._context.Process(target=_count_missing, args=(PRELOAD,))  # type: ignore[attr-defined]
            probe.start()
        probe.join(timeout=30.0)
        if probe.exitcode != 0:
            # multiprocessing swallows a failed preload; each job would then pay for the imports.
            self._telemetry.emit("preload.incomplete", modules_missing=probe.exitcode)
        probe.close()

    def launch(self, job: ClaimedJob, registration: Registration) -> WorkerProcess:
        """Start a worker for a claimed job.

        Raises:
            WorkerStartError: with the reason; no process is left behind.
        """
        reading, writing = multiprocessing.Pipe(duplex=False)
        try:
            process = self._context.Process(  # type: ignore[attr-defined]
                target=worker_entry,
                args=(job.id, job.payload, self._db_factory, registration.target, "haulage.worker"),
                kwargs={
                    "claim_no": job.claim_no,
                    "attempt": job.attempt,
                    "max_attempts": job.max_attempts,
                    "node_losses": job.node_losses,
                    "pipeline_name": registration.name,
                    "constructor_args": json.dumps(dict(registration.arguments)),
                    "timeout_seconds": job.timeout_seconds,
                    "claimed_at": job.claimed_at.isoformat(),
                    "outcome_signal": writing,
                },
                name=f"haulage-worker-{job.id}",
                daemon=False,
            )
            with _hidden_main():
                process.start()
        except Exception as error:
            reading.close()
            raise WorkerStartError(f"{type(error).__name__}: {error}") from error
        finally:
            writing.close()
        return WorkerProcess(job, process, reading)


def _count_missing(modules: Sequence[str]) -> None:
    sys.exit(sum(module not in sys.modules for module in modules))


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    # Every child would run the parent's main module again: measured 150 to 650 ms under a server
    # whose main imports the web stack, and a fork bomb under a script without a main guard.
    main: Any = sys.modules["__main__"]
    hidden = {
        name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in vars(main)
    }
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, an old kernel, or gone already
        return None


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _live_members(group: int) -> bool:
    """Whether a process of the group still runs; zombies wait for a parent that we are not."""
    try:
        pids = [entry for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208
    except OSError:
        return True
    for pid in pids:
        try:
            stat = Path("/proc", pid, "stat").read_text()
        except OSError:
            continue
        # After the command's closing bracket: state, parent, group.
        state, _parent, its_group = stat.rpartition(")")[2].split()[:3]
        if int(its_group) == group and state not in "ZX":
            return True
    return False


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
