"""What a worker and its guard tell their manager: short lines in a pipe, never waited for.

    pid N                           first, before any code of the job runs
    connected                       the database knows that the worker has begun
    loaded                          the pipeline is imported and constructed
    alive                           it made progress, or waits for a database that is away
    outcome                         the run is over, only the storing of its end is left
    leaving CODE                    the worker ends itself; any other exit code is the job's
    exited exit|signal N            by the guard: the worker is gone, what it left is being ended
    ended exit|signal N CPU PEAK    by the guard, last: nothing of the job is left

Nothing here may fail or delay a job: a full, closed or replaced pipe loses lines, no more.
"""

import contextlib
import os
import select
import time
from enum import StrEnum
from multiprocessing.connection import Connection
from typing import Final

SIGN_INTERVAL_SECONDS: Final = 0.5
LAST_WORD_SECONDS: Final = 1.0


class Report(StrEnum):
    """The first word of a line."""

    PID = "pid"
    CONNECTED = "connected"
    LOADED = "loaded"
    ALIVE = "alive"
    OUTCOME = "outcome"
    LEAVING = "leaving"
    EXITED = "exited"
    ENDED = "ended"


class ReportWriter:
    """The pipe's end in worker and guard.

    Args:
        connection: None where nobody listens.
    """

    def __init__(self, connection: Connection | None) -> None:
        # Kept: the descriptor is closed with it.
        self._connection = connection
        self._descriptor = -1 if connection is None else connection.fileno()
        self._signed_at = 0.0
        if connection is not None:
            # One that a forkserver hands over would otherwise reach every program of the job.
            os.set_inheritable(self._descriptor, False)
            os.set_blocking(self._descriptor, False)
        self._identity = self._found()

    def tell(self, report: Report, *details: object) -> None:
        """Write a line if there is room for it."""
        self._write(" ".join(map(str, (report, *details))))

    def sign(self) -> None:
        """Tell that the job is alive, at most about twice a second."""
        now = time.monotonic()
        if now - self._signed_at >= SIGN_INTERVAL_SECONDS:
            self._signed_at = now
            self.tell(Report.ALIVE)

    def tell_apart(self, report: Report, *details: object) -> bool:
        """As `tell`, but on a line of its own after any rubbish; whether there was room."""
        return self._write("\n" + " ".join(map(str, (report, *details))))

    def tell_last(self, report: Report, *details: object) -> None:
        """As `tell_apart`, but waits a moment for room."""
        poller = select.poll()
        with contextlib.suppress(OSError, ValueError):
            poller.register(self._descriptor, select.POLLOUT)
            poller.poll(LAST_WORD_SECONDS * 1_000)
        self.tell_apart(report, *details)

    def _write(self, line: str) -> bool:
        # A job may close what it did not open; its next file then has our number.
        if self._identity is not None and self._found() == self._identity:
            with contextlib.suppress(OSError):
                return os.write(self._descriptor, f"{line}\n".encode()) > 0
        return False

    def _found(self) -> tuple[int, int] | None:
        try:
            status = os.fstat(self._descriptor)
        except OSError:
            return None
        return status.st_dev, status.st_ino
