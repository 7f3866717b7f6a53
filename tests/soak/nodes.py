"""Nodes under test: processes of Haulage that are started again when they end, as a service is.

Whoever harms a node borrows it first, so that no node is hit twice at once and most stay healthy.
"""

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from soak.witness import now
from support.processes import children, command_of
from support.service import ROOT, environment

READY_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.05
RESTART_SECONDS: Final = 1.0
# After a fault of its own a node is left alone for so long, to renew its lease.
REST_SECONDS: Final = 3.0
# Faults that take a node away leave so many, to take over its jobs.
LEAST_HEALTHY: Final = 1
# Above the grace a stopping node gets two seconds, and HTTP its three.
STOP_SECONDS: Final = 5.0
MARK: Final = "HAULAGE_SOAK_NODE"
FORKSERVER: Final = "multiprocessing.forkserver"


@dataclass(slots=True)
class Node:
    """One node, over all its boots.

    Attributes:
        pids: of its managers, one per boot.
        url: of its API, None for a role without one or while it is down.
        is_stopping: its end is wished for; any other end is an incident.
    """

    name: str
    role: str
    settings: dict[str, Any]
    database_url: str
    folder: Path
    pids: list[int] = field(default_factory=list)
    process: asyncio.subprocess.Process | None = None
    url: str | None = None
    is_ready: bool = False
    is_stopping: bool = False
    is_borrowed: bool = False
    resting_until: float = 0.0

    @property
    def mark(self) -> str:
        """In the environment of every process of this node."""
        return f"{MARK}={self.folder}/{self.name}"

    @property
    def log(self) -> Path:
        """What all its boots said."""
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """Of the present manager."""
        return self.pids[-1]

    @property
    def is_free(self) -> bool:
        """Whether it may be harmed."""
        rested = time.monotonic() > self.resting_until
        return self.is_ready and not self.is_borrowed and not self.is_stopping and rested

    def forkserver(self) -> int | None:
        """The process that the jobs' processes are forked from."""
        for pid in children(self.pid):
            if FORKSERVER in command_of(pid):
                return pid
        return None

    async def start(self) -> None:
        """Start it and return when it is ready; TimeoutError, or RuntimeError when it ends."""
        said = self.log.stat().st_size if self.log.exists() else 0
        command = [sys.executable, "-m", "app", self.role]
        command += ["--port", "0"] if self.role != "worker" else []
        variables = environment(self.database_url, **self.settings)
        name, _, value = self.mark.partition("=")
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, env=variables | {name: value}, stdout=log, stderr=log
            )
        self.is_stopping = False
        self.pids.append(self.process.pid)
        await self._wait_until_ready(said)

    async def _wait_until_ready(self, said: int) -> None:
        assert self.process is not None
        async with asyncio.timeout(READY_SECONDS):
            while True:
                text = self.log.read_text(errors="replace")[said:]
                ready = re.search(r"ready at (\S+)", text)
                if "manager.started" in text and (ready or self.role == "worker"):
                    break
                if self.process.returncode is not None:
                    raise RuntimeError(f"{self.name} ended while it started, see {self.log}")
                await asyncio.sleep(LOOK_SECONDS)
        self.url = ready[1] if ready else None
        self.is_ready = True

    async def ended(self) -> int:
        """Return its exit code when it has ended."""
        assert self.process is not None
        code = await self.process.wait()
        self.is_ready, self.url = False, None
        return code

    async def stop(self) -> tuple[int, float]:
        """SIGTERM; the exit code and how long it took. TimeoutError where it does not end."""
        assert self.process is not None
        self.is_stopping = True
        began = time.monotonic()
        grace = self.settings["shutdown_grace_seconds"]
        if self.process.returncode is None:
            self.process.terminate()
        async with asyncio.timeout(grace + STOP_SECONDS):
            code = await self.ended()
        return code, time.monotonic() - began


class Nodes:
    """All nodes, kept running.

    Attributes:
        incidents: what a node did that nobody had asked for.
        failed_starts: when a node did not come up, from when to when, and why.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.all = nodes
        self.incidents: list[str] = []
        self.failed_starts: list[tuple[float, float, str]] = []
        self.is_closing = False

    def __iter__(self) -> Iterator[Node]:
        return iter(self.all)

    @property
    def urls(self) -> list[str]:
        """Of the APIs that are up."""
        return [node.url for node in self.all if node.url is not None]

    @property
    def healthy(self) -> list[str]:
        """Of the APIs of nodes that nobody harms at present."""
        return [node.url for node in self.all if node.url is not None and not node.is_borrowed]

    def processes(self) -> dict[int, Node]:
        """Every living process of ours with its node, also what has lost its parent; one look."""
        marks = {node.mark.encode(): node for node in self.all}
        found = {}
        for entry in os.listdir("/proc"):  # noqa: PTH208  only the numbers
            if entry.isdecimal():
                for variable in environment_of(int(entry)):
                    if variable in marks:
                        found[int(entry)] = marks[variable]
        return found

    def free(self) -> list[Node]:
        """Those that may be harmed now."""
        return [node for node in self.all if node.is_free]

    def spare(self) -> list[Node]:
        """Those that may be taken away now; none where too few would be left."""
        healthy = sum(node.is_ready and not node.is_borrowed for node in self.all)
        return self.free() if healthy > LEAST_HEALTHY else []

    @contextmanager
    def borrowed(self, node: Node) -> Iterator[None]:
        """Nobody else harms it meanwhile."""
        node.is_borrowed = True
        try:
            yield
        finally:
            node.is_borrowed = False
            node.resting_until = time.monotonic() + REST_SECONDS

    async def keep_running(self, node: Node) -> None:
        """Start the node again whenever it has ended, until cancelled."""
        while True:
            was_ready = node.is_ready
            code = await node.ended()
            if self.is_closing:
                return
            if was_ready and not node.is_stopping:
                self.incidents.append(f"{node.name} (pid {node.pid}) ended by itself: {code}")
            await asyncio.sleep(RESTART_SECONDS)
            began = now()
            try:
                await node.start()
            except (RuntimeError, TimeoutError) as error:
                # As a service manager would: again, however often.
                self.failed_starts.append((began, now(), repr(error)))

    async def stop(self) -> None:
        """End all of them in order."""
        self.is_closing = True
        answers = await asyncio.gather(*(node.stop() for node in self.all), return_exceptions=True)
        for node, answer in zip(self.all, answers, strict=True):
            if not isinstance(answer, tuple) or answer[0] != 0:
                self.incidents.append(f"{node.name} did not stop in order: {answer!r}")

    def kill(self) -> None:
        """End whatever is left of them."""
        for pid in self.processes():
            signal_process(pid, signal.SIGCONT)
            signal_process(pid, signal.SIGKILL)


def environment_of(pid: int) -> list[bytes]:
    """The variables of a process; [] of one that has ended or is not ours to look at."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def signal_process(pid: int, number: signal.Signals) -> bool:
    """Send a signal; whether there was somebody to get it."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
