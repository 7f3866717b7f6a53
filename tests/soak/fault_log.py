"""Faults as they were done: what, when, to whom; one JSON line each, written at once."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final


class FaultKind(StrEnum):
    """What is done to the processes under test, from outside."""

    KILL_WORKER = "kill -9 of a job's process"
    KILL_GUARD = "kill -9 of a guard"
    FREEZE_WORKER = "freeze a job's process"
    KILL_MANAGER = "kill -9 of a manager"
    FREEZE_MANAGER = "freeze a manager past its lease"
    PAUSE_MANAGER = "freeze a manager for a moment"
    FREEZE_NODE = "freeze a whole node past its lease"
    STOP_NODE = "SIGTERM of a node"
    KILL_FORKSERVER = "kill -9 of a forkserver"
    KILL_BACKEND = "terminate backends"
    FREEZE_BACKEND = "freeze a backend"
    CRASH_DATABASE = "immediate restart of PostgreSQL"


# These hit every node alike.
DATABASE_KINDS: Final = frozenset(
    {FaultKind.KILL_BACKEND, FaultKind.FREEZE_BACKEND, FaultKind.CRASH_DATABASE}
)
# These stop a manager, not its jobs' processes or not only them.
FREEZING_KINDS: Final = frozenset(
    {FaultKind.FREEZE_MANAGER, FaultKind.PAUSE_MANAGER, FaultKind.FREEZE_NODE}
)


@dataclass(slots=True)
class Fault:
    """One fault.

    Attributes:
        began: instant of the shot (soak.witness.now); `ended` when what was frozen went on, or the
            database was back; the same as `began` for what takes no time.
        target: in words.
        node_pid: the manager's process, None for faults of the database.
        pid: the job's process, where one was meant.
    """

    kind: FaultKind
    began: float
    ended: float
    target: str
    node_pid: int | None = None
    pid: int | None = None


class FaultLog:
    """The file of faults."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Note a fault that is over."""
        self.faults.append(fault)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(fault)) + "\n")


def read_faults(path: Path) -> list[Fault]:
    """The faults of a log, in the order of their shots."""
    return sorted(_read(path), key=lambda fault: fault.began)


def _read(path: Path) -> Iterator[Fault]:
    if path.exists():
        for line in path.read_text().splitlines():
            fields = json.loads(line)
            yield Fault(**{**fields, "kind": FaultKind(fields["kind"])})
