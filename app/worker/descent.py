"""Who descends from whom, by /proc; and killing processes that nobody here has started.

A job's processes are found in two ways: below its guard, whatever sessions they made, and, where
the guard is gone, by three marks that children inherit: the worker's session, a variable of the
environment and the process's name. A process id is only signalled while a descriptor pins it and
its place in the tree has been looked at anew, since ids are given to strangers.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from app.domain.jobs import Claim

_DEAD: Final = "ZX"
# Where the fields that follow the name have the start.
_STARTED: Final = 19


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The first fields of /proc/<pid>/stat.

    Attributes:
        started_ticks: when it started, since the boot; with its id that is its identity.
    """

    name: str
    state: str
    parent: int
    group: int
    session: int
    started_ticks: int

    @property
    def is_alive(self) -> bool:
        """Whether it still runs or could; a zombie does not."""
        return self.state not in _DEAD


@dataclass(frozen=True, slots=True)
class Mark:
    """What the processes of one claim carry.

    Attributes:
        name: process name; inherited by fork, replaced by exec.
        variable: of the environment, with this value; inherited by exec.
    """

    name: str
    value: str
    variable: str = "HAULAGE_CLAIM"

    @classmethod
    def of(cls, claim: Claim) -> "Mark":
        """The mark of a claim; the kernel keeps 15 characters of a name."""
        name = f"job-{claim.job_id[-8:]}.{claim.claim_no % 100}"
        return cls(name, f"{claim.job_id}/{claim.claim_no}")


def status_of(pid: int) -> ProcessStatus | None:
    """None where no process has this id."""
    text = _read(f"/proc/{pid}/stat").decode("utf-8", "replace")
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if len(fields) <= _STARTED:
        return None
    name, numbers = head.partition("(")[2], (int(fields[n]) for n in (1, 2, 3, _STARTED))
    return ProcessStatus(name, fields[0], *numbers)


def children(pid: int) -> set[int]:
    """The processes whose parent is `pid`; one that starts or ends meanwhile may be missing."""
    if not os.path.exists(f"/proc/{pid}/task/{pid}/children"):  # noqa: PTH110  a hot path
        return {child for child, parent in _parents().items() if parent == pid}
    return {child for thread in _entries(f"/proc/{pid}/task") for child in children_of(pid, thread)}


def children_of(pid: int, thread: int) -> set[int]:
    """The processes that one thread of `pid` started."""
    return set(map(int, _read(f"/proc/{pid}/task/{thread}/children").split()))


def descendants(root: int) -> dict[int, int]:
    """Every process below `root` and its parent; what starts meanwhile may be missing."""
    found: dict[int, int] = {}
    layer = [root]
    while layer:
        parent = layer.pop()
        fresh = children(parent) - found.keys() - {root}
        found |= dict.fromkeys(fresh, parent)
        layer += fresh
    return found


def kill_descendants(root: int) -> bool:
    """SIGKILL for everything below `root`, once; whether anything of it was alive."""
    # Once its parent is killed a child is handed to the root, if that is a guard.
    return _kill_all(
        {pid: partial(_is_child, {parent, root}) for pid, parent in descendants(root).items()}
    )


def kill_marked(mark: Mark, session: int | None) -> bool:
    """SIGKILL for every process with one of the marks, once; whether anything was alive.

    Args:
        session: the worker's, where it is known.
    """
    variable = f"{mark.variable}={mark.value}".encode()

    def has_mark(pid: int, status: ProcessStatus) -> bool:
        return status.name == mark.name or variable in _read(f"/proc/{pid}/environ").split(b"\0")

    if session is not None:
        leader = status_of(session)
        if leader is not None and leader.is_alive and not has_mark(session, leader):
            session = None  # the worker is gone and a stranger has its id

    def is_ours(pid: int, status: ProcessStatus) -> bool:
        return status.session == session or has_mark(pid, status)

    found: dict[int, Callable[[ProcessStatus], bool]] = {}
    for pid in _entries("/proc"):
        status = status_of(pid)
        if status is not None and status.is_alive and is_ours(pid, status):
            found[pid] = partial(is_ours, pid)
    found.pop(os.getpid(), None)
    return _kill_all(found)


def kill_if(pid: int, is_wanted: Callable[[ProcessStatus], bool]) -> bool:
    """SIGKILL for a living process that is the wanted one; whether there was one."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):
        # Not Linux, an old kernel, or no descriptor left: then without the pin.
        pidfd = None
    try:
        status = status_of(pid)
        if status is None or not status.is_alive or not is_wanted(status):
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if pidfd is None:
                os.kill(pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return True
    finally:
        if pidfd is not None:
            os.close(pidfd)


def is_group_alive(group: int) -> bool:
    """Whether a process of the group still runs; True where there is no /proc to ask."""
    pids = _entries("/proc")
    found = map(status_of, pids)
    return not pids or any(s.group == group and s.is_alive for s in found if s is not None)


def _is_child(parents: Collection[int], status: ProcessStatus) -> bool:
    return status.parent in parents


def _kill_all(wanted: Mapping[int, Callable[[ProcessStatus], bool]]) -> bool:
    return sum(kill_if(pid, is_wanted) for pid, is_wanted in wanted.items()) > 0


def _parents() -> dict[int, int]:
    found = {pid: status_of(pid) for pid in _entries("/proc")}
    return {pid: status.parent for pid, status in found.items() if status is not None}


def _entries(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdecimal()]  # noqa: PTH208  hot
    except OSError:
        return []


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  a hot path
            return file.read()
    except OSError:  # it ended meanwhile, or belongs to somebody else
        return b""
