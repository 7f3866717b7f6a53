"""Starting workers, off the event loop and within a bounded time.

    launch --> [ one thread: Process.start, exit codes, close ] --> WorkerProcess
       '-- time-out: kill the forkserver that does not answer; a worker that comes up all the same
           is ended at once

multiprocessing's processes are touched by that one thread only: two readers of a status pipe lose
exit codes. It is a daemon, so that its hanging holds up nobody's end.
"""

import asyncio
import contextlib
import json
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Final, TypeVar

from app.db.interface import DBFactory
from app.domain.errors import HaulageError
from app.domain.jobs import ClaimedJob, Registration
from app.orchestrator.memory import oom_counter, oom_kills
from app.orchestrator.processes import WorkerProcess
from app.orchestrator.reports import ReportReader
from app.telemetry import Telemetry
from app.worker.descent import children, children_of, kill_if
from app.worker.entry import worker_entry
from app.worker.guard import HAS_GUARD

# Beside them the adapter that workers will have, with its driver.
PRELOAD: Final = ("app.worker.entry",)
ADAPTERS: Final = "app.db."
START_SECONDS: Final = 10.0
LATE_SECONDS: Final = 0.5
WARM_UP_SECONDS: Final = 30.0
UNWANTED_SECONDS: Final = 1.0
EXIT_CODE_SECONDS: Final = 0.5
CLOSE_SECONDS: Final = 0.2

_RECHECK_SECONDS: Final = 0.02
_SINGLE_THREADED: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_T = TypeVar("_T")


class WorkerStartError(HaulageError):
    """No process came up for a claimed job."""


class ProcessThread:
    """The one thread that starts, polls and closes processes of multiprocessing."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._calls = queue.SimpleQueue()
        self._unclosed: list[BaseProcess] = []
        self._thread: threading.Thread | None = None

    @property
    def native_id(self) -> int | None:
        """The kernel's id of the thread, None while there is none."""
        return None if self._thread is None else self._thread.native_id

    def submit(self, call: Callable[[], _T]) -> Future[_T]:
        """Run `call` after everything that was submitted before."""
        future: Future[_T] = Future()
        self._calls.put((future, call))
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, args=(self._calls,), name="haulage-starts", daemon=True
            )
            self._thread.start()
        return future

    async def exit_code(self, process: BaseProcess) -> int | None:
        """Its exit code, None where that is not known within a moment."""

        def look() -> int | None:
            process.join(EXIT_CODE_SECONDS)
            return process.exitcode

        answer = asyncio.wrap_future(self.submit(look))
        await asyncio.wait({answer}, timeout=2 * EXIT_CODE_SECONDS)
        return answer.result() if answer.done() else None

    def give_back(self, process: BaseProcess) -> None:
        """Close it once it has ended."""
        self.submit(partial(self._unclosed.append, process))

    async def clear(self, timeout_seconds: float) -> bool:
        """Return when every process that was given back is closed; False after the time-out."""
        end = time.monotonic() + timeout_seconds
        while time.monotonic() < end:
            answer = asyncio.wrap_future(self.submit(lambda: len(self._unclosed)))
            await asyncio.wait({answer}, timeout=end - time.monotonic())
            if not answer.done():
                break
            if answer.result() == 0:
                return True
            await asyncio.sleep(_RECHECK_SECONDS)
        return False

    def close(self) -> None:
        """End when all that was submitted is done; what cannot be closed is let go."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._calls.put(None)
            # A queue of its own for the next thread: this one may hang.
            self._calls = queue.SimpleQueue()
        for process in tuple(self._unclosed):
            # Else the interpreter's end would wait for it.
            getattr(multiprocessing.process, "_children", set()).discard(process)

    def _run(
        self, calls: "queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]"
    ) -> None:
        while True:
            try:
                item = calls.get(timeout=_RECHECK_SECONDS if self._unclosed else None)
            except queue.Empty:
                item = self._nothing()
            if item is None:
                self._close_ended()
                return
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001  it belongs to who asked
                    future.set_exception(error)
            self._close_ended()
            # An exception holds its frames, and those hold descriptors.
            del item, future, call

    @staticmethod
    def _nothing() -> tuple[Future[Any], Callable[[], Any]]:
        return Future(), lambda: None

    def _close_ended(self) -> None:
        # A forkserver that is stopped does not tell of an end: asked again later.
        left = []
        for process in self._unclosed:
            if process.exitcode is None:
                left.append(process)
            else:
                process.close()
        self._unclosed[:] = left


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
        self._preload = (*PRELOAD, *_adapter_of(db_factory))
        self._is_preloading = start_method == "forkserver"
        self._thread = ProcessThread()
        self._count_oom_kills = partial(oom_kills, oom_counter())
        self._killed_forkserver: int | None = None

    async def warm_up(self) -> None:
        """Start the forkserver and check what it really preloaded; about half a second."""
        # Numeric libraries start one thread per core at import; a process with threads must not
        # be forked, and jobs that run side by side would fight for the cores.
        for name in _SINGLE_THREADED:
            os.environ.setdefault(name, "1")
        if not self._is_preloading:
            return
        self._context.set_forkserver_preload(list(self._preload))
        counted = asyncio.wrap_future(self._thread.submit(self._count_missing))
        if not await _is_done(counted, WARM_UP_SECONDS):
            self._end_starters()
        missing = counted.result() if counted.done() else len(self._preload)
        if missing != 0:
            # multiprocessing swallows a failed preload; each job would then pay for the imports.
            self._telemetry.emit("preload.incomplete", modules_missing=missing)

    async def launch(self, job: ClaimedJob, registration: Registration) -> WorkerProcess:
        """Start a worker for a claimed job.

        Raises:
            WorkerStartError: with the reason, or after START_SECONDS; no process is left behind,
                nor is one by a cancellation.
        """
        started = self._thread.submit(partial(self._start, job, registration))
        answer = asyncio.wrap_future(started)
        try:
            is_answered = await _is_done(answer, START_SECONDS)
        except asyncio.CancelledError:
            answer.cancel()
            started.add_done_callback(self._end_unwanted)
            raise
        if not is_answered:
            answer.cancel()
            started.add_done_callback(self._end_unwanted)
            self._end_starters()
            raise WorkerStartError(f"no process came up within {START_SECONDS:g} s")
        return answer.result()

    async def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """End the thread, within the time-out; a later launch begins another one."""
        try:
            if not await self._thread.clear(timeout_seconds / 2):
                # A forkserver that is stopped would hold up the end of this process.
                self._end_starters()
                await self._thread.clear(timeout_seconds / 2)
        finally:
            self._thread.close()

    # -- in the thread ------------------------------------------------------------------------

    def _start(self, job: ClaimedJob, registration: Registration) -> WorkerProcess:
        reading, writing_end = os.pipe()
        reports, writing = ReportReader(reading), Connection(writing_end, readable=False)
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
                    "report_pipe": writing,
                },
                name=f"haulage-worker-{job.id}",
                daemon=False,
            )
            self._wait_for_killed()
            with _hidden_main():
                process.start()
        except Exception as error:
            reports.close()
            raise WorkerStartError(f"{type(error).__name__}: {error}") from error
        finally:
            writing.close()
        return WorkerProcess(job, process, reports, self._thread, self._count_oom_kills)

    def _wait_for_killed(self) -> None:
        pid, self._killed_forkserver = self._killed_forkserver, None
        if pid is not None and hasattr(os, "waitid"):
            # Looked at but not taken: multiprocessing does that. Until its end is there to see,
            # the next start would ask it once more.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    def _count_missing(self) -> int | None:
        with _hidden_main():
            probe = self._context.Process(target=_count_missing, args=(self._preload,))  # type: ignore[attr-defined]
            probe.start()
        probe.join(timeout=WARM_UP_SECONDS)
        missing: int | None = probe.exitcode
        self._thread.give_back(probe)
        return missing

    # -- where a start hangs ------------------------------------------------------------------

    def _end_unwanted(self, started: "Future[WorkerProcess]") -> None:
        if not started.cancelled() and started.exception() is None:
            self._thread.submit(partial(started.result().end_at_once, UNWANTED_SECONDS))

    def _end_starters(self) -> None:
        """Kill whoever the start under way may wait for, so that it raises."""
        us = os.getpid()
        if self._is_preloading:
            # Private to multiprocessing, and ours: no other way leads out of a start that waits
            # for a forkserver that is stopped.
            pid = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)
            if isinstance(pid, int):
                self._killed_forkserver = pid
                _kill_beginners(children(pid), pid)
                if not kill_if(pid, lambda status: status.parent == us) and not HAS_GUARD:
                    with contextlib.suppress(OSError):  # no /proc to ask
                        os.kill(pid, signal.SIGKILL)
        elif HAS_GUARD and self._thread.native_id is not None:
            tracker = getattr(resource_tracker, "_resource_tracker", None)
            started = children_of(us, self._thread.native_id)
            _kill_beginners(started - {getattr(tracker, "_pid", None)}, us)


async def _is_done(answer: "asyncio.Future[Any]", timeout_seconds: float) -> bool:
    """Whether the launcher's thread answers within the time-out."""
    await asyncio.wait({answer}, timeout=timeout_seconds)
    # A node that was frozen wakes up with its time over, and the answer only on its way.
    await asyncio.wait({answer}, timeout=LATE_SECONDS)
    return answer.done()


def _kill_beginners(pids: set[int], parent: int) -> None:
    """Kill those that have not come as far as a guard, which first leads a session of its own."""
    for pid in pids:
        kill_if(pid, lambda status, pid=pid: status.parent == parent and status.session != pid)  # type: ignore[misc]


def _adapter_of(db_factory: DBFactory) -> list[str]:
    """The module of the adapter that a factory builds, where it is one of ours."""
    module = getattr(db_factory, "func", db_factory).__module__
    return [module] if module.startswith(ADAPTERS) else []


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
