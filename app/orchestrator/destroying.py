"""Ending a guard and everything below it from outside, in a thread.

A look at a job's thousands of processes takes long, and the event loop answers for the whole node
meanwhile. Nothing here belongs to the worker's object: that may be closed while this is under way.
"""

import threading
from typing import Final

from app.worker.descent import kill_descendants, kill_if, status_of

# Enough for any job but a huge one.
MOMENT_SECONDS: Final = 0.05
_ROUNDS: Final = 5


class Destroyer:
    """Ends one guard, in at most one thread at a time.

    Args:
        pid: the guard's.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._thread: threading.Thread | None = None

    def begin(self) -> bool:
        """Begin, for a guard that has not ended; False where it is under way already."""
        if self._thread is not None and self._thread.is_alive():
            return False
        status = status_of(self._pid)
        if status is None:
            return False
        # No daemon: at a shutdown it is the interpreter's end that waits for it.
        thread = threading.Thread(
            target=_destroy,
            args=(self._pid, status.started_ticks),
            name="haulage-destroy",
            daemon=False,
        )
        try:
            thread.start()
        except RuntimeError:  # no thread is left, maybe for this very job's sake
            _destroy(self._pid, status.started_ticks)
        else:
            self._thread = thread
        return True

    def wait(self) -> None:
        """Return when it is over, or after a moment."""
        if self._thread is not None:
            self._thread.join(MOMENT_SECONDS)


def _destroy(pid: int, started_ticks: int) -> None:
    for _ in range(_ROUNDS):
        status = status_of(pid)
        if status is None or status.started_ticks != started_ticks:
            return  # it ended, and the id may be a stranger's
        if not kill_descendants(pid):
            break
    kill_if(pid, lambda status: status.started_ticks == started_ticks)
