"""What /proc says about processes: who descends from whom, and how many files they hold."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from support.service import process_exists

FREEZE_SECONDS = 10.0


def parents() -> dict[int, int]:
    """Every living process and its parent."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:  # ended meanwhile
                continue
            found[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    return found


def descendants(pid: int) -> set[int]:
    """Processes that `pid` started, and that those started."""
    tree = parents()
    found: set[int] = set()
    layer = {pid}
    while layer:
        layer = {child for child, parent in tree.items() if parent in layer} - found
        found |= layer
    return found


def children(pid: int) -> set[int]:
    """Processes that `pid` itself started."""
    return {child for child, parent in parents().items() if parent == pid}


def living(pids: set[int]) -> set[int]:
    """Those of the processes that still run."""
    return {pid for pid in pids if process_exists(pid)}


def open_files(pid: int) -> int:
    """How many descriptors the process holds."""
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208  only the number


def held_files(pid: int) -> Counter[str]:
    """How many descriptors of which kind the process holds: "socket", "pipe", paths."""
    found: Counter[str] = Counter()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found[str(entry.readlink()).partition(":[")[0]] += 1
    return found


def command_of(pid: int) -> str:
    """The command line, "" where the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def freeze(pid: int) -> None:
    """Stop the process and return once it really stands: a moment later, thread by thread."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + FREEZE_SECONDS
    while not _stands(pid):
        assert time.monotonic() < end, f"process {pid} does not stop"
        time.sleep(0.001)


def _stands(pid: int) -> bool:
    """Whether every thread of the process has stopped, or the process is gone."""
    try:
        threads = [(thread / "stat").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return not process_exists(pid)
    return all(stat.rpartition(")")[2].split()[0] in "TtZX" for stat in threads)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stop the process as a debugger or a suspended machine does, and let it go on afterwards."""
    freeze(pid)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # killed meanwhile
            os.kill(pid, signal.SIGCONT)


@contextmanager
def frozen_family(pid: int) -> Iterator[None]:
    """Stop the process and all below it, see `frozen`."""
    with ExitStack() as thawing:
        # First, so that no child is added.
        thawing.enter_context(frozen(pid))
        for child in descendants(pid):
            with suppress(ProcessLookupError):  # ended since
                thawing.enter_context(frozen(child))
        yield


def with_mark(mark: str) -> set[int]:
    """Living processes that carry `mark` as one of their environment variables."""
    return {pid for pid in parents() if mark.encode() in _environment(pid).split(b"\0")}


def with_word(word: str) -> set[int]:
    """Living processes whose command line holds `word`."""
    return {pid for pid in parents() if word in command_of(pid)}


def with_name(name: str) -> set[int]:
    """Living processes of this name, which forks inherit and new programs replace."""
    return {pid for pid in living(set(parents())) if _name(pid) == name}


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    except OSError:  # ended meanwhile
        return ""


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # ended meanwhile, or somebody else's
        return b""
