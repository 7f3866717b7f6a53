"""Witness files: what the processes of a job say about themselves, one file per job.

Each line is one write in append mode, so lines of several processes never mix:

    <instant> <run> <what> <number>

Instants are those of CLOCK_BOOTTIME, which all processes of one machine share; a stopped process
says nothing. Imported by the pipelines inside their workers: the standard library only.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

TICK_SECONDS: Final = 0.1


class What(StrEnum):
    """What a run can say; the number belongs to STARTED (pid), LOADED and SAVED (step)."""

    STARTED = "started"
    LOADED = "loaded"
    SAVED = "saved"
    TICK = "tick"
    CHILD = "child"
    ENDED = "ended"


def now() -> float:
    """The instant, in seconds of the clock that every process of this machine shares."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Witness:
    """The writing side, inside a run."""

    def __init__(self, folder: str, job_id: str) -> None:
        self.path = Path(folder, job_id)
        self.run = f"{os.getpid()}-{time.clock_gettime_ns(time.CLOCK_BOOTTIME)}"
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, what: What, number: int = 0) -> None:
        """Add a line; it is out of this process when the call returns."""
        os.write(self._file, f"{now():.6f} {self.run} {what} {number}\n".encode())


@dataclass(slots=True)
class Run:
    """One run of a job as its file shows it.

    Attributes:
        loaded: the instant at which it asked for its checkpoint and the step found there.
        saved: each step whose checkpoint was acknowledged, with the instant.
        last_seen: the last line of the job's own process.
        child_last_seen: the last line of its grandchild, None without one.
        ended: when it was through with its work; None where it was cut off.
    """

    id: str
    job_id: str
    pid: int = 0
    started: float = 0.0
    loaded: tuple[float, int] | None = None
    saved: list[tuple[float, int]] = field(default_factory=list)
    last_seen: float = 0.0
    child_last_seen: float | None = None
    ended: float | None = None

    def note(self, instant: float, what: What, number: int) -> None:
        """Take in one line."""
        if what is What.CHILD:
            self.child_last_seen = instant
            return
        self.last_seen = instant
        match what:
            case What.STARTED:
                self.started, self.pid = instant, number
            case What.LOADED:
                self.loaded = instant, number
            case What.SAVED:
                self.saved.append((instant, number))
            case What.ENDED:
                self.ended = instant
            case _:
                pass


def read_runs(folder: Path) -> dict[str, list[Run]]:
    """Every run by job, in the order of their starts."""
    return {
        path.name: sorted(_runs(path), key=lambda run: run.started) for path in folder.iterdir()
    }


def _runs(path: Path) -> list[Run]:
    runs: dict[str, Run] = {}
    for instant, run_id, what, number in _lines(path):
        run = runs.setdefault(run_id, Run(run_id, path.name))
        run.note(instant, what, number)
    return list(runs.values())


def _lines(path: Path) -> Iterator[tuple[float, str, What, int]]:
    for line in path.read_text().splitlines():
        instant, run_id, what, number = line.split()
        yield float(instant), run_id, What(what), int(number)
