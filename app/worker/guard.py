"""The guard: a small process between the manager and each worker, on Linux.

    manager --starts--> guard --forks--> worker --starts--> whatever the job starts
       |  SIGTERM: pass it on   |
       |  SIGUSR1: kill all     | child subreaper: who loses its parent becomes the guard's child
       '- pipe ends: kill all   '-> `ended` line, then the worker's exit code

It ends only when nothing is left that the job ever started, whatever sessions it made, and it is
what knows the worker's true exit status and cost. Should it be killed, the kernel ends the worker
with it. Nothing of the job's code may run in it, and it must never wait for anything but its
children.
"""

import contextlib
import ctypes
import functools
import gc
import mmap
import multiprocessing
import os
import resource
import select
import signal
import sys
from typing import Final

from app.worker.descent import kill_descendants
from app.worker.reports import Report, ReportWriter

HAS_GUARD: Final = sys.platform == "linux"
KILL_SIGNAL: Final = signal.SIGUSR1
# A shell's way to say in an exit code that a signal ended a process.
SIGNAL_BASE: Final = 128

_BROKEN: Final = 70
_SET_DEATH_SIGNAL: Final = 1
_SET_NAME: Final = 15
_SET_SUBREAPER: Final = 36
_HANDLED: Final = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGCHLD,
)
_FIRST_REPEAT_SECONDS: Final = 0.002
_LAST_REPEAT_SECONDS: Final = 0.2


class StopNote:
    """Tells a worker that it was told to end, whatever its job has made of the signal.

    A page that guard and worker share: no descriptor that a job could close.
    """

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, 1)

    def write(self) -> None:
        """Note that SIGTERM is on its way."""
        self._page[0] = 1

    @property
    def is_written(self) -> bool:
        """Whether the guard has passed SIGTERM on."""
        return self._page[0] != 0


def fork_worker(reports: ReportWriter) -> StopNote:
    """Become the guard and return in the worker, a new process; the guard never returns.

    The worker leads a session and a process group of its own, has default signals, and dies with
    its guard.
    """
    manager = multiprocessing.parent_process()
    # Whatever comes before this ends a process that has started nothing yet; later it waits.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    if os.getpgrp() != os.getpid():
        os.setsid()
    _control(_SET_SUBREAPER, 1)
    note = StopNote()
    guard = os.getpid()
    worker = os.fork()
    if worker == 0:
        _begin_as_worker(guard, mask)
        return note
    exit_code = _BROKEN
    try:
        sentinel = None if manager is None else manager.sentinel
        exit_code = _Guard(worker, sentinel, reports, note).watch()
    finally:
        os._exit(exit_code)


def set_name(name: str) -> None:
    """Name this process, and what it forks, in lists of processes; 15 characters are kept."""
    _control(_SET_NAME, name.encode())


def _begin_as_worker(guard: int, mask: set[signal.Signals | int] | set[int]) -> None:
    os.setsid()
    for number in _HANDLED:
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    _control(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != guard:  # it ended before the kernel was told
        os._exit(_BROKEN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _control(option: int, value: int | bytes) -> None:
    # Without it the job still runs; less of what it leaves behind is found.
    with contextlib.suppress(OSError, AttributeError):
        argument = value if isinstance(value, bytes) else ctypes.c_ulong(value)
        _libc().prctl(option, argument, 0, 0, 0)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


class _Guard:
    """The loop of a guard, woken by signals and by the manager's end."""

    def __init__(
        self, worker: int, manager: int | None, reports: ReportWriter, note: StopNote
    ) -> None:
        gc.disable()  # a collection would touch, and so copy, every page shared with the worker
        self._worker = worker
        self._reports = reports
        self._note = note
        self._status: int | None = None
        self._is_ending = False
        self._has_to_stop = False
        self._has_told = False
        set_name("haulage-guard")
        with contextlib.suppress(OSError, ValueError):
            _, limit = resource.getrlimit(resource.RLIMIT_CORE)
            resource.setrlimit(resource.RLIMIT_CORE, (0, limit))
        self._wake_ups, waking = os.pipe()
        for descriptor in (self._wake_ups, waking):
            os.set_blocking(descriptor, False)
        self._poller = select.poll()
        self._poller.register(self._wake_ups, select.POLLIN)
        if manager is not None:
            # Nobody writes to it any more: what counts is that its other end is closed.
            self._poller.register(manager, 0)
        self._install_handlers(waking)

    def _install_handlers(self, waking: int) -> None:
        def end(*_: object) -> None:
            self._is_ending = True

        def stop(*_: object) -> None:
            self._has_to_stop = True

        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, end)
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)

    def watch(self) -> int:
        """Return the worker's exit code once no child is left."""
        pause_seconds = _FIRST_REPEAT_SECONDS
        while self._reap():
            if self._has_to_stop:
                self._has_to_stop = False
                self._pass_on(signal.SIGTERM)
            if self._status is not None and not self._has_told:
                # Until there is room for it: it may be all that is heard of the end.
                self._has_told = self._reports.tell_apart(Report.EXITED, *self._end())
            if self._is_ending:
                # Again and again: what is being killed may still be forking.
                kill_descendants(os.getpid())
                self._wait(pause_seconds)
                pause_seconds = min(2 * pause_seconds, _LAST_REPEAT_SECONDS)
            else:
                self._wait(None)
        return self._say_farewell()

    def _wait(self, seconds: float | None) -> None:
        for descriptor, _ in self._poller.poll(None if seconds is None else seconds * 1_000):
            if descriptor == self._wake_ups:
                with contextlib.suppress(OSError):
                    os.read(self._wake_ups, 4_096)
            else:
                self._is_ending = True
                self._poller.unregister(descriptor)

    def _reap(self) -> bool:
        """Take every child that has ended; whether any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._worker:
                self._status = status
                self._is_ending = True

    def _pass_on(self, number: signal.Signals) -> None:
        if self._status is not None:
            return  # its id may be a stranger's
        self._note.write()
        try:
            os.killpg(self._worker, number)
        except ProcessLookupError:  # it leads no group yet
            os.kill(self._worker, number)

    def _say_farewell(self) -> int:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._reports.tell_last(
            Report.ENDED,
            *self._end(),
            f"{used.ru_utime + used.ru_stime:.6f}",
            used.ru_maxrss * 1_024,
        )
        how, number = self._end()
        return number if how == "exit" else SIGNAL_BASE + number

    def _end(self) -> tuple[str, int]:
        """How the worker ended, as reports tell it."""
        code = _BROKEN if self._status is None else os.waitstatus_to_exitcode(self._status)
        return "exit" if code >= 0 else "signal", abs(code)
