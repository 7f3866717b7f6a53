"""What a fresh worker process does to itself before any user code runs.

It becomes the leader of its own session and process group, so that one signal reaches everything
that the job starts; it watches its manager and takes the whole group with it when the manager is
gone (a parent-death signal does not work under forkserver and never reaches grandchildren).
"""

import contextlib
import fcntl
import multiprocessing
import os
import resource
import signal
import sys
import threading
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final

from app.domain.jobs import Usage

_OOM_SCORE: Final = 500
# Measured while jobs burnt every core: the 99th percentile of POST /enqueue fell from 3.1 to 2.6
# times its idle value on a quiet machine, from 2.7 to 1.35 on a busy one; 10 and 19 did no better.
_NICENESS: Final = 5


def isolate() -> None:
    """Own session, default signals, and a modest place in line for CPU and memory."""
    if os.getpgrp() != os.getpid():
        os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError):  # not Linux, or not allowed: the job still runs
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    give_way()
    if "numpy" in sys.modules:
        # Children of one preloaded process would all draw the same numbers.
        sys.modules["numpy"].random.seed()


def give_way() -> None:
    """Let the service and the database answer first while jobs burn every core."""
    os.nice(_NICENESS)
    # Where Linux groups processes by session, niceness counts inside the session only.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICENESS))


def watch_manager() -> None:
    """End the whole process group as soon as the manager's process is gone."""
    manager = multiprocessing.parent_process()
    if manager is None:
        return
    _have_the_kernel_watch(manager.sentinel)

    def wait_and_end() -> None:
        wait([manager.sentinel])
        end_group()

    threading.Thread(target=wait_and_end, name="haulage-manager-watch", daemon=True).start()


def _have_the_kernel_watch(sentinel: int) -> None:
    # A thread never gets its turn while the job holds the interpreter's lock in one C call. The
    # sentinel is a pipe that nobody writes to any more: its only event is the manager's end, and
    # Linux sends the signal of our choice for it.
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            fcntl.fcntl(sentinel, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(sentinel, fcntl.F_SETOWN, -os.getpgrp())
            flags = fcntl.fcntl(sentinel, fcntl.F_GETFL)
            fcntl.fcntl(sentinel, fcntl.F_SETFL, flags | os.O_ASYNC)


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
