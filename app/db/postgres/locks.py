"""Locks between processes that no death can leave behind: the kernel drops them with their holder.

Each is a `flock` on a file. A child that is handed the descriptor holds the lock together with its
parent, and alone once the parent has let go or died.
"""

import os
import time
from pathlib import Path

from app.domain.errors import EmbeddedDatabaseError

try:
    import fcntl
except ImportError as missing:  # Windows
    raise EmbeddedDatabaseError(
        "the embedded PostgreSQL runs on Linux and macOS only: set HAULAGE_DATABASE_URL"
    ) from missing

POLL_SECONDS = 0.02


class FileLock:
    """One lock on one file, not inherited by children unless they are given `fileno()`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock, shared or exclusive."""
        return self._fd is not None

    def fileno(self) -> int:
        """Return the descriptor that carries the lock; only while it is held."""
        if self._fd is None:
            raise ValueError(f"{self._path} is not locked")
        return self._fd

    def try_exclusive(self) -> bool:
        """Take the lock alone, or turn a shared one into it; False leaves nothing held."""
        return self._try(fcntl.LOCK_EX)

    def try_shared(self) -> bool:
        """Take the lock with others; False leaves nothing held."""
        return self._try(fcntl.LOCK_SH)

    def wait_exclusive(self, timeout_seconds: float) -> bool:
        """Try until the lock is ours alone; False when the time is over."""
        deadline = time.monotonic() + timeout_seconds
        while not self.try_exclusive():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def release(self) -> None:
        """Let go; does nothing when nothing is held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _try(self, mode: int) -> bool:
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._fd, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            return False
        return True
