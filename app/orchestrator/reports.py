"""The manager's end of a worker's report pipe: what it has heard, and when.

A pipeline can write anything into the pipe. Reading never blocks, never raises, takes a bounded
amount at a time and keeps no more than one short line; what it does not understand it drops.
"""

import contextlib
import os
import time
from dataclasses import dataclass
from typing import Final

from app.domain.jobs import Usage
from app.worker.reports import Report

MAX_READ_BYTES: Final = 65_536
# The most that an ordinary user can make a pipe hold, and what is read at the end.
MAX_PIPE_BYTES: Final = 1_048_576
_MAX_LINE_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class Ended:
    """A guard's last line.

    Attributes:
        exit_code: the worker's; negative for the signal that ended it.
    """

    exit_code: int
    usage: Usage


class ReportReader:
    """What one worker has told; instants are this process's monotonic clock, at reading.

    Args:
        descriptor: the pipe's reading end, owned from now on.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._rest = b""
        self._is_skipping = False
        self.worker_pid: int | None = None
        self.connected_at: float | None = None
        self.loaded_at: float | None = None
        self.last_sign: float | None = None
        self.has_outcome = False
        self.left_by: int | None = None
        self.exited_at: float | None = None
        self.ended: Ended | None = None
        self._exited: int | None = None

    @property
    def exit_code(self) -> int | None:
        """The worker's, negative for a signal; None where its guard has not told of its end."""
        return self._exited if self.ended is None else self.ended.exit_code

    def poll(self, max_bytes: int = MAX_READ_BYTES) -> int:
        """Take in what is there; how many bytes that was."""
        if self._descriptor is None:
            return 0
        try:
            chunk = os.read(self._descriptor, max_bytes)
        except OSError:  # nothing there
            return 0
        self._take(chunk)
        return len(chunk)

    def drain(self) -> None:
        """Take in all that is left of a job that has ended."""
        left = 2 * MAX_PIPE_BYTES
        while left > 0 and (count := self.poll()):
            left -= count

    def excuse(self, seconds: float) -> None:
        """Move what was heard so far nearer to now."""
        now = time.monotonic()

        def moved(instant: float | None) -> float | None:
            return None if instant is None else min(now, instant + seconds)

        self.connected_at = moved(self.connected_at)
        self.loaded_at = moved(self.loaded_at)
        self.last_sign = moved(self.last_sign)

    def close(self) -> None:
        """Give the descriptor back; what was heard stays."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _take(self, chunk: bytes) -> None:
        *lines, rest = (self._rest + chunk).split(b"\n")
        if self._is_skipping and lines:
            # The end of a line whose beginning was dropped.
            self._is_skipping = False
            del lines[0]
        for line in lines:
            if len(line) <= _MAX_LINE_BYTES:
                self._understand(line.decode("ascii", "replace").split())
        if len(rest) > _MAX_LINE_BYTES:
            self._is_skipping = True
        self._rest = b"" if self._is_skipping else rest

    def _understand(self, words: list[str]) -> None:
        now = time.monotonic()
        # ValueError: rubbish where a number was due.
        with contextlib.suppress(ValueError):
            match words:
                case [Report.PID, pid] if self.worker_pid is None:
                    # The first one comes before any code of the job: later ones are not ours.
                    self.worker_pid = int(pid)
                case [Report.CONNECTED]:
                    self.connected_at = self.connected_at or now
                case [Report.LOADED]:
                    self.loaded_at = self.loaded_at or now
                case [Report.OUTCOME]:
                    self.has_outcome = True
                case [Report.LEAVING, code_of_its_own]:
                    self.left_by = int(code_of_its_own)
                # Nobody writes after the guard, so the last one of each is true.
                case [Report.EXITED, "exit" | "signal" as how, number]:
                    self._exited = _exit_code(how, int(number))
                    self.exited_at = self.exited_at or now
                case [Report.ENDED, "exit" | "signal" as how, number, cpu, peak]:
                    self.ended = _ended(_exit_code(how, int(number)), float(cpu), int(peak))
                case [Report.ALIVE]:
                    pass
                case _:
                    return
            self.last_sign = now


# Both raise ValueError for numbers that no guard tells, and no table would take.


def _exit_code(how: str, number: int) -> int:
    if not 0 <= number < 256:  # noqa: PLR2004
        raise ValueError(number)
    return number if how == "exit" else -number


def _ended(exit_code: int, cpu_seconds: float, peak_bytes: int) -> Ended:
    if not (0 <= cpu_seconds < 1e12 and 0 <= peak_bytes < 1 << 62):  # noqa: PLR2004
        raise ValueError(cpu_seconds, peak_bytes)
    return Ended(exit_code, Usage(peak_bytes, cpu_seconds))
