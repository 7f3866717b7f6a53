"""One worker process: signal everything it started, hear what it tells, tell how it died.

On Linux the process that the manager starts is the worker's guard (`app.worker.guard`): it is
watched and signalled by its pidfd, and its last report has the worker's true exit status. Nothing
here touches multiprocessing's status pipes: the launcher's thread alone does, since two readers
lose exit codes, and a killed forkserver makes up a 255 for children that live on.
"""

import asyncio
import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Final, Protocol

from app.domain.jobs import ClaimedJob, Usage
from app.domain.lifecycle import Cancelled, NodeLost, NotStarted, Outcome, Overran, Released
from app.orchestrator.destroying import Destroyer
from app.orchestrator.exits import OWN_EXIT_CODES, outcome_of_exit, outcome_of_worker
from app.orchestrator.groups import kill_group, signal_group
from app.orchestrator.recovery import LiveWorker
from app.orchestrator.reports import ReportReader
from app.worker import guard
from app.worker.descent import Mark, kill_marked
from app.worker.entry import ExitCode

# How long a guard may take to end everything before that is done from outside.
GUARD_SECONDS: Final = 1.0
GROUP_END_SECONDS: Final = 2.0

# What multiprocessing reports where it lost the status: never taken at its word.
_UNKNOWN_EXIT_CODE: Final = 255
_RECHECK_SECONDS: Final = 0.01

StopReason = Cancelled | Released | Overran | NodeLost | NotStarted


class ProcessOwner(Protocol):
    """Who alone may ask and close a process of multiprocessing."""

    async def exit_code(self, process: BaseProcess) -> int | None:
        """Its exit code, None where that is not known within a moment."""

    def give_back(self, process: BaseProcess) -> None:
        """Close it once it has ended."""


class WorkerProcess:
    """A started worker with everything that it starts.

    Args:
        reports: what the worker tells.
        count_oom_kills: the counter of processes that were killed for want of memory.
    """

    def __init__(
        self,
        job: ClaimedJob,
        process: BaseProcess,
        reports: ReportReader,
        owner: ProcessOwner,
        count_oom_kills: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.job = job
        self.pid: int = process.pid or 0
        self.started = time.monotonic()
        self.stop_reason: StopReason | None = None
        self.memory_bytes: int | None = None
        self._peak_bytes = 0
        self._process = process
        self._reports = reports
        self._owner = owner
        self._mark = Mark.of(job.claim)
        self._pidfd, self._is_gone = _open_pidfd(self.pid)
        self._destroyer = Destroyer(self.pid)
        self._term_sent: float | None = None
        self._kill_sent: float | None = None
        self._lost_exit_code: int | None = None
        self._count_oom_kills = count_oom_kills
        self._oom_kills_before = count_oom_kills()
        self._unwatch: Callable[[], object] | None = None
        self._is_closed = False

    # -- what it tells ------------------------------------------------------------------------

    @property
    def run_seconds(self) -> float:
        """Since the start, by the monotonic clock."""
        return time.monotonic() - self.started

    @property
    def worker_pid(self) -> int | None:
        """The process that runs the job's code; None until it said so."""
        return self._reports.worker_pid

    @property
    def connected_at(self) -> float | None:
        """When it was heard that the database knows of the worker; monotonic clock."""
        return self._reports.connected_at

    @property
    def loaded_at(self) -> float | None:
        """When it was heard that the pipeline is constructed; monotonic clock."""
        return self._reports.loaded_at

    @property
    def last_sign(self) -> float | None:
        """When anything was heard last; monotonic clock."""
        return self._reports.last_sign

    @property
    def usage(self) -> Usage | None:
        """What the job has used; known at its end, None where its guard could not tell."""
        if self._reports.ended is None:
            return None
        told = self._reports.ended.usage
        return replace(told, peak_memory_bytes=max(told.peak_memory_bytes or 0, self._peak_bytes))

    @property
    def may_have_settled(self) -> bool:
        """Whether the worker came as far as storing its outcome itself."""
        return self._reports.has_outcome

    @property
    def has_outcome(self) -> bool:
        """Whether the run is over and the living worker only tries to store its outcome."""
        self.poll_reports()
        is_storing = self._reports.has_outcome and self._reports.exited_at is None
        return is_storing and not self.has_ended()

    def poll_reports(self) -> None:
        """Hear what the worker has told since; never blocks."""
        self._reports.poll()

    def seen(self) -> LiveWorker:
        """What recovery needs to know of it."""
        now = time.monotonic()
        self.poll_reports()
        connected, loaded, sign = self.connected_at, self.loaded_at, self.last_sign
        return LiveWorker(
            self.job.claim,
            self.job.limits,
            alive_seconds=now - self.started,
            run_seconds=None if connected is None else max(0.0, now - connected),
            is_loaded=loaded is not None,
            quiet_seconds=0.0 if sign is None else max(0.0, now - sign),
            memory_bytes=self.memory_bytes,
            is_storing=self.has_outcome,
        )

    def excuse(self, seconds: float) -> None:
        """Count so much time of the past for no limit."""
        self.started += seconds
        self._reports.excuse(seconds)

    def note_memory(self, memory_bytes: int | None) -> None:
        """Remember what all of its processes use now."""
        self.memory_bytes = memory_bytes
        self._peak_bytes = max(self._peak_bytes, memory_bytes or 0)

    # -- its end ------------------------------------------------------------------------------

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call `on_end` once, from the running event loop, when the process has ended."""
        loop = asyncio.get_running_loop()
        descriptor = self._process.sentinel if self._pidfd is None else self._pidfd

        def tell() -> None:
            self.unwatch()
            on_end()

        if self._is_gone:
            self._unwatch = loop.call_soon(tell).cancel
        else:
            loop.add_reader(descriptor, tell)
            self._unwatch = lambda: loop.remove_reader(descriptor)

    def unwatch(self) -> None:
        """Stop calling back."""
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            unwatch()

    def has_ended(self) -> bool:
        """Whether the process is gone; with a guard that means: nothing of the job is left."""
        if self._is_gone or self._is_closed:
            return self._is_gone
        if self._pidfd is None:
            return bool(wait([self._process.sentinel], timeout=0))
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def stop(self, reason: StopReason) -> None:
        """Begin the ladder: SIGTERM to the group now, the kill when `escalate` finds it overdue.

        The first reason counts.
        """
        if self.stop_reason is None:
            self.stop_reason = reason
            self._term_sent = time.monotonic()
            self._signal(signal.SIGTERM)

    def escalate(self, grace_seconds: float) -> bool:
        """Go on with what is overdue: SIGTERM -> kill -> destroy; whether it did.

        What has been killed is ended at any cost. SIGTERM alone cuts no storing short.
        """
        now = time.monotonic()
        # A guard also kills on its own, when its worker has ended.
        killing_since = self._kill_sent or self._reports.exited_at
        if killing_since is not None:
            if now - killing_since < GUARD_SECONDS:
                return False
            return self._begin_to_destroy()
        if self._term_sent is None or now - self._term_sent < grace_seconds or self.has_outcome:
            return False
        self.kill()
        return True

    def kill(self, reason: StopReason | None = None) -> None:
        """SIGKILL for everything of the job; without a reason it is for its exit to tell."""
        self.stop_reason = self.stop_reason or reason
        self._kill_sent = self._kill_sent or time.monotonic()
        self._signal(guard.KILL_SIGNAL if guard.HAS_GUARD else signal.SIGKILL)
        # A guard that somebody stopped goes on and does it.
        self._signal(signal.SIGCONT)

    def destroy(self) -> None:
        """End everything from outside, the guard last: it does not answer.

        It goes on in a thread where that takes more than a moment.
        """
        self._begin_to_destroy()
        self._destroyer.wait()

    def _begin_to_destroy(self) -> bool:
        if guard.HAS_GUARD:
            return not self.has_ended() and self._destroyer.begin()
        self._signal(signal.SIGKILL)
        return True

    async def end_group(self) -> bool:
        """Return when nothing of the job is left, within a few seconds; whether that is so.

        After a process that has ended, or was told to.
        """
        end = time.monotonic() + GROUP_END_SECONDS
        while not self.has_ended() and time.monotonic() < end:
            self.poll_reports()  # a guard whose last word finds no room would wait for it
            self.escalate(0.0)
            await asyncio.sleep(_RECHECK_SECONDS)
        self._reports.drain()
        if self._reports.ended is not None:
            return self.has_ended()
        # No guard has said that it is over.
        if not guard.HAS_GUARD:
            self._lost_exit_code = await self._owner.exit_code(self._process)
        end = time.monotonic() + GROUP_END_SECONDS
        while is_left := await asyncio.to_thread(self._sweep):
            if time.monotonic() > end:
                break
            await asyncio.sleep(_RECHECK_SECONDS)
        if self._lost_exit_code is None:
            self._lost_exit_code = await self._owner.exit_code(self._process)
        return self.has_ended() and not is_left

    def _sweep(self) -> bool:
        """Kill what a guard that is gone has left; whether anything was."""
        if guard.HAS_GUARD:
            return kill_marked(self._mark, self._reports.worker_pid)
        return kill_group(self.pid, is_reaped=self._lost_exit_code is not None)

    def end_at_once(self, timeout_seconds: float) -> None:
        """Kill, wait, destroy and close, in the launcher's thread: for one that nobody wants."""
        self.kill()
        if not self._wait(timeout_seconds):
            self.destroy()
            self._wait(timeout_seconds)
        self._reports.drain()
        if self._reports.ended is None:
            self._lost_exit_code = self._process.exitcode
            end = time.monotonic() + timeout_seconds
            while self._sweep() and time.monotonic() < end:
                time.sleep(_RECHECK_SECONDS)
        self.close()

    def _wait(self, timeout_seconds: float) -> bool:
        if self._is_gone:
            return True
        descriptor = self._process.sentinel if self._pidfd is None else self._pidfd
        return bool(wait([descriptor], timeout=timeout_seconds))

    def outcome(self) -> Outcome | None:
        """What to write about the attempt if its job still runs; None where the claim was lost."""
        self.poll_reports()
        code = self._exit_code()
        is_its_own = self._is_own_exit(code)
        if self.stop_reason is not None and not (is_its_own and code == ExitCode.SETTLED):
            return self.stop_reason
        if is_its_own and code in OWN_EXIT_CODES:
            return outcome_of_worker(ExitCode(code))
        return outcome_of_exit(code, is_out_of_memory=self._is_out_of_memory())

    def close(self) -> None:
        """Give back every descriptor; what has not ended is closed when it has."""
        self.unwatch()
        if self._is_closed:
            return
        self._is_gone = self.has_ended()
        self._is_closed = True
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        self._reports.close()
        self._owner.give_back(self._process)

    # -- helpers ------------------------------------------------------------------------------

    def _is_own_exit(self, code: int | None) -> bool:
        """Whether an exit code means what `ExitCode` says, and not what the job means by it."""
        # A guard that is gone without a word has told nothing of its worker either.
        has_guard_failed = guard.HAS_GUARD and self._reports.exit_code is None
        return has_guard_failed or self._reports.left_by == code

    def _exit_code(self) -> int | None:
        if self._reports.exit_code is not None:
            return self._reports.exit_code
        code = self._lost_exit_code
        if code is None or code == _UNKNOWN_EXIT_CODE:
            return None
        if guard.HAS_GUARD and code > guard.SIGNAL_BASE:
            return guard.SIGNAL_BASE - code
        if code == -guard.KILL_SIGNAL and self._kill_sent is not None:
            return -signal.SIGKILL  # it reached a guard that had not begun
        return code

    def _is_out_of_memory(self) -> bool:
        if self._kill_sent is not None or self._oom_kills_before is None:
            return False
        return (self._count_oom_kills() or 0) > self._oom_kills_before

    def _signal(self, number: int) -> None:
        if self.has_ended() or self._is_closed:
            return
        if not guard.HAS_GUARD:
            signal_group(self.pid, number)
            return
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd is None:
                os.kill(self.pid, number)
            else:
                signal.pidfd_send_signal(self._pidfd, number)


def _open_pidfd(pid: int) -> tuple[int | None, bool]:
    """The descriptor, and whether the process is gone already."""
    try:
        return os.pidfd_open(pid), False
    except ProcessLookupError:
        return None, True
    except (AttributeError, OSError):  # not Linux
        return None, False
