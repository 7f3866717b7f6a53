"""What a fresh worker process does to itself before any user code runs.

It gets a guard where the system has what a guard needs (Linux), leads a session and process group
of its own, and takes a modest place in line. Without a guard it watches its manager itself and
takes its group with it when the manager is gone.
"""

import contextlib
import multiprocessing
import os
import resource
import signal
import sys
import threading
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final

from app.domain.jobs import Claim, Usage
from app.worker import guard
from app.worker.descent import Mark
from app.worker.reports import Report, ReportWriter

_OOM_SCORE: Final = 500
# Measured while jobs burnt every core: the 99th percentile of POST /enqueue fell from 3.1 to 2.6
# times its idle value on a quiet machine, from 2.7 to 1.35 on a busy one; 10 and 19 did no better.
_NICENESS: Final = 5


def isolate(claim: Claim, reports: ReportWriter) -> guard.StopNote:
    """Become the worker of a claim; with a guard this returns in another process.

    Must come first: what runs before it runs in the guard as well. The note is for its guard to
    write on; without one it stays empty.
    """
    if guard.HAS_GUARD:
        note = guard.fork_worker(reports)
        mark = Mark.of(claim)
        guard.set_name(mark.name)
        os.environ[mark.variable] = mark.value
    else:
        note = guard.StopNote()
        _lead_group()
        watch_manager()
    reports.tell(Report.PID, os.getpid())
    go_first()
    give_way()
    if "numpy" in sys.modules:
        # Children of one preloaded process would all draw the same numbers.
        sys.modules["numpy"].random.seed()
    return note


def go_first() -> None:
    """Be what the kernel ends when memory is short, rather than the service."""
    with contextlib.suppress(OSError):  # not Linux, or not allowed: the work is still done
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))


def bound_memory(size_bytes: int) -> None:
    """Have every allocation fail that would take this process beyond so much.

    Counted is what is private and writable, used or not (Linux; elsewhere it may not count at all).
    """
    with contextlib.suppress(OSError, ValueError):  # somebody has set a lower one for good
        resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, size_bytes))


def _lead_group() -> None:
    if os.getpgrp() != os.getpid():
        os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def give_way() -> None:
    """Let the service and the database answer first while jobs burn every core."""
    os.nice(_NICENESS)
    # Where Linux groups processes by session, niceness counts inside the session only.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICENESS))


def watch_manager() -> None:
    """Without a guard: end the whole process group as soon as the manager's process is gone.

    A job that holds the interpreter's lock in one C call delays that until the call is over.
    """
    manager = multiprocessing.parent_process()
    if manager is None:
        return

    def wait_and_end() -> None:
        wait([manager.sentinel])
        end_group()

    threading.Thread(target=wait_and_end, name="haulage-manager-watch", daemon=True).start()


def end_group() -> None:
    """SIGKILL for this process and everything that it started in its group."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def usage() -> Usage:
    """What this process and its ended children have used."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    unit = 1 if sys.platform == "darwin" else 1024
    return Usage(
        peak_memory_bytes=max(own.ru_maxrss, children.ru_maxrss) * unit,
        cpu_seconds=own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime,
    )
