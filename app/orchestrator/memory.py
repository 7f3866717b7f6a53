"""How much memory a job takes, and whether the kernel has killed for want of it (Linux)."""

import resource
import sys
from pathlib import Path
from typing import Final

from app.worker.descent import descendants

_PAGE_BYTES: Final = resource.getpagesize()
_CGROUPS: Final = Path("/sys/fs/cgroup")
_VMSTAT: Final = Path("/proc/vmstat")


def tree_memory_bytes(pid: int, threshold_bytes: int | None = None) -> int | None:
    """Memory of everything below the process `pid`, itself not counted; None off Linux.

    The sum of resident sets counts a page once for each process that shares it. That is cheap to
    ask and never too little; only where it exceeds the threshold are shared pages divided among
    their holders (PSS, about 50 times as dear), for those processes that let us look.
    """
    if sys.platform != "linux":
        return None
    tree = descendants(pid)
    resident = {child: _resident_bytes(child) for child in tree}
    total = sum(resident.values())
    if threshold_bytes is None or total <= threshold_bytes:
        return total
    shares = {child: _proportional_bytes(child) for child in tree}
    return sum(resident[child] if share is None else share for child, share in shares.items())


def oom_counter() -> Path | None:
    """The file that counts kills for want of memory: our cgroup's, else the whole machine's."""
    for line in _lines(Path("/proc/self/cgroup")):
        if line.startswith("0::"):
            events = _CGROUPS / line.removeprefix("0::").lstrip("/") / "memory.events"
            if _count_in(events) is not None:
                return events
    return _VMSTAT if _count_in(_VMSTAT) is not None else None


def oom_kills(counter: Path | None) -> int | None:
    """How many processes the kernel has killed so far; None where nothing counts them.

    Args:
        counter: as `oom_counter` gives it.
    """
    return None if counter is None else _count_in(counter)


def _count_in(path: Path) -> int | None:
    for line in _lines(path):
        name, _, number = line.partition(" ")
        if name == "oom_kill" and number.strip().isdecimal():
            return int(number)
    return None


def _resident_bytes(pid: int) -> int:
    lines = _lines(Path(f"/proc/{pid}/statm"))
    return int(lines[0].split()[1]) * _PAGE_BYTES if lines else 0


def _proportional_bytes(pid: int) -> int | None:
    for line in _lines(Path(f"/proc/{pid}/smaps_rollup")):
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1_024
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # it ended meanwhile, belongs to somebody else, or this is not Linux
        return []
