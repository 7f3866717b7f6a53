"""Pipelines that behave badly on purpose, or wait for a signal of their test.

Registered by name in PIPELINES; they run in worker processes and import nothing from Haulage.
"""

import asyncio
import fcntl
import hashlib
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

PIPELINES: Mapping[str, Any] = {
    **{
        name: f"support.pipelines:{name.title().replace('-', '')}"
        for name in (
            "after-gate",
            "blocked",
            "checkpoint",
            "clinging",
            "closing",
            "flaky",
            "gate",
            "grandchild",
            "large",
            "modules",
            "noise",
            "odd-records",
            "paying",
            "pools",
            "quiet-exit",
            "restless",
            "rubbish",
            "scattering",
            "speak",
            "stray-exit",
            "stubborn",
            "sys-exit",
            "telling",
            "unfit",
        )
    },
    "greeting": {
        "target": "support.pipelines:Greeting",
        "arguments": {"greeting": "Hullo", "marks": 3},
    },
    "import-exits": "support.broken.exits:Never",
    "import-raises": "support.broken.raises:Never",
    "no-such-class": "support.pipelines:Nowhere",
    "no-such-module": "support.nowhere:Never",
}


def start_grandchild() -> int:
    """A process of the job's own, which would outlive it by far; its pid."""
    return subprocess.Popen(["sleep", "600"]).pid


async def gate(path: str) -> None:
    """Return once the test has made this file."""
    # Looked for: the one who makes it is another process.
    while not Path(path).exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.01)


class Gate:
    """Waits for the file `gate` of its payload, then returns the attempt's number."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> dict[str, Any]:
        await context.progress(0.5, "waiting")
        await gate(payload["gate"])
        return {"attempt": context.attempt}


class Grandchild:
    """Starts a process and tells its pid; then dies by SIGKILL, returns, or waits for its gate."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        await context.progress(0.5, "grandchild", str(start_grandchild()))
        if payload.get("then") == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if payload.get("then") != "return":
            await gate(payload["gate"])


def start_daemon(*, does_exec: bool) -> int:
    """A process that left its parent, session and descriptors behind as daemons do; its pid."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writing, str(os.getpid()).encode())
            os.closerange(0, 256)
            if does_exec:
                os.execvp("sleep", ["sleep", "600"])  # noqa: S606  as daemons do
            while True:
                signal.pause()
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    pid = int(os.read(reading, 32))
    os.close(reading)
    return pid


def start_fork() -> int:
    """A copy of this process in a session of its own, deaf to SIGTERM; its pid."""
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()
    return child


def start_stopped() -> int:
    """A process in a session of its own that does not run; its pid."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True).pid
    os.kill(child, signal.SIGSTOP)
    return child


class Scattering:
    """Starts processes that escape its group in every way, and leaves a thread running.

    Their pids go to the file `pids` of the payload's folder and into the progress; then it does
    what the payload says: "return", "die", "exit", or wait for the folder's file `gate`.
    """

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        threading.Thread(target=threading.Event().wait).start()
        pids = [
            start_grandchild(),
            start_stopped(),
            start_daemon(does_exec=True),
            start_daemon(does_exec=False),
            start_fork(),
        ]
        folder = Path(payload["folder"])
        text = " ".join(map(str, [os.getpid(), *pids]))
        (folder / "unfinished").write_text(text)
        (folder / "unfinished").rename(folder / "pids")
        await context.progress(0.5, "scattered", text)
        match payload["then"]:
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(9)
            case "wait":
                await gate(payload["folder"] + "/gate")
            case _:
                pass


class AfterGate:
    """Waits for its gate with a process of its own, then does what the payload says."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        pid = start_grandchild()
        if "folder" in payload:
            Path(payload["folder"], "unfinished").write_text(str(pid))  # noqa: ASYNC240  as `gate`
            Path(payload["folder"], "unfinished").rename(payload["folder"] + "/pids")  # noqa: ASYNC240
        await gate(payload["gate"])
        match payload["then"]:
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(9)
            case _:
                pass


def report_pipe() -> int:
    """The descriptor by which the worker talks to its manager: nobody else has one of this kind."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  only the names
        descriptor = int(name)
        try:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except OSError:  # that of the list itself
            continue
        is_ours = flags & os.O_NONBLOCK and flags & os.O_ACCMODE == os.O_WRONLY
        if descriptor > 2 and is_ours and target.startswith("pipe:"):
            return descriptor
    raise AssertionError("no report pipe")


class Rubbish:
    """Fills the pipe to its manager, first with words that it knows, then with anything."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> str:
        descriptor = report_pipe()
        os.write(descriptor, b"pid 1\nended exit 0 x y\nended\nended signal -3 nan -1\n\n")
        try:
            while True:
                os.write(descriptor, b"\xff\x00\n rubbish without an end " * 100)
        except BlockingIOError:
            await context.progress(0.5, "filled")
        return "done"


class Closing:
    """Closes every descriptor that it finds, and ends its process or returns."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        pid = start_daemon(does_exec=False)
        Path(payload["folder"], "pids").write_text(str(pid))  # noqa: ASYNC240  local, see `gate`
        os.closerange(0, 4_096)


class Pools:
    """Uses both kinds of process pools, and leaves one open."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> list[int]:
        with multiprocessing.Pool(2) as pool:
            squares = await asyncio.to_thread(pool.map, abs, range(-5, 0))
        with ProcessPoolExecutor(2) as executor:
            squares += await asyncio.to_thread(lambda: [*executor.map(abs, range(-3, 0))])
        left_open = ProcessPoolExecutor(1)
        squares.append(await asyncio.wrap_future(left_open.submit(abs, -7)))
        return squares


class Stubborn:
    """Ignores SIGTERM inside one C call that holds the GIL for ever, with a grandchild."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        await context.progress(0.5, "grandchild", str(start_grandchild()))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        re.match(r"(a+)+$", "a" * 64 + "b")


class Clinging:
    """Swallows every exception, its own cancellation included."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        await context.progress(0.5, "clinging")
        while True:
            try:
                await asyncio.sleep(600)
            except BaseException as error:  # noqa: BLE001  that is what it is for
                logging.getLogger().info("swallowed %r", error)


class Blocked:
    """Blocks its own event loop for `seconds`."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        await context.progress(0.5, "blocked")
        time.sleep(payload["seconds"])  # noqa: ASYNC251  that is what it is for


class Restless:
    """Reports progress and log lines without a pause until its gate opens."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> int:
        count = 0
        while not Path(payload["gate"]).exists():  # noqa: ASYNC240  local, see `gate`
            count += 1
            await context.progress(0.5, f"stage {count}", payload.get("message"))
            context.logger.info("at %d", count)
            await asyncio.sleep(0.01)
        return count


class QuietExit:
    """Ends its process with exit code 0 and without a result."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        os._exit(0)


class SysExit:
    """Calls sys.exit, as a script would."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        sys.exit("enough")


class OddRecords:
    """Logs what no table takes as it is."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> str:
        context.logger.log(40_000, "above every level")
        context.logger.log(-5, "below every level")
        logging.getLogger("a\x00b").warning("under an odd name \x00 \ud800")
        logging.getLogger().warning("%d of %d", 1)  # noqa: PLE1206  on purpose
        context.logger.info("and goes on")
        return "done"


class StrayExit:
    """A task of its own calls sys.exit while a thread goes on for ever."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        threading.Thread(target=threading.Event().wait).start()
        await asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        sys.exit("enough")


class Flaky:
    """Each attempt fails in another way; the third one returns."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> str:
        match context.attempt:
            case 1:
                raise ValueError("the first reason")
            case 2:
                os._exit(7)
            case _:
                return "third time lucky"


class _UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unfit:
    """Results and errors that no database stores as they are, by the payload's `what`."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> Any:
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        match payload["what"]:
            case "object":
                return object()
            case "NUL":
                return {"text": ["fine", "a\x00b"]}
            case "NaN":
                return float("nan")
            case "depth":
                return deep
            case "message":
                raise ValueError("NUL \x00, surrogate \ud800, length " + "x" * 20_000)
            case _:
                raise _UnspeakableError


class Checkpoint:
    """The first attempt saves a checkpoint and dies; the second returns what it finds."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> dict[str, Any]:
        found = await context.load_checkpoint("half-way")
        if found is None:
            await context.save_checkpoint("half-way", {"attempt": context.attempt, "rows": [1, 2]})
            os.kill(os.getpid(), signal.SIGKILL)
        return {"found": found, "attempt": context.attempt}


class Paying:
    """Makes the payload's calls, saves what is not kept yet, and returns how many it paid for.

    The first attempt dies before the call `dies_before`, counted from 0.
    """

    async def run(self, payload: Mapping[str, Any], context: Any) -> int:
        paid = 0
        for number, text in enumerate(payload["calls"]):
            if context.attempt == 1 and number == payload.get("dies_before"):
                os.kill(os.getpid(), signal.SIGKILL)
            key = hashlib.sha256(text.encode()).hexdigest()
            if await context.load_call(key) is None:
                paid += 1
                await context.save_call(key, text.upper(), stage="name", model="m", prompt_tokens=5)
            else:
                await context.count_cached_calls("name", "m", 1)
        return paid


class Speak:
    """Says something in every way there is."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        context.logger.warning("from the %s", "logger")
        logging.getLogger("some.library").error("from a library")
        print("from print")  # noqa: T201  so do pipelines
        print("from stderr", file=sys.stderr)  # noqa: T201
        os.write(1, b"invalid \xff\xfe bytes\n")
        await asyncio.to_thread(subprocess.run, ["sh", "-c", "echo from a child"], check=True)
        os.write(1, b"without an end")


class Telling:
    """Reports each of its steps as a milestone and as a line."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        for step in range(1, payload["steps"] + 1):
            await asyncio.sleep(payload["seconds"] / payload["steps"])
            print(f"step {step}")  # noqa: T201  as jobs do
            await context.progress(step / payload["steps"], f"step {step}")


class Noise:
    """Prints `megabytes` with bytes that are not UTF-8, to both streams, and returns as much."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        line = b"\xff\xfe noise " + b"x" * 88 + b"\n"
        for _ in range(payload["megabytes"] * 10_000):
            os.write(1, line)
        os.write(2, b"the end\n")


class Large:
    """Returns `characters` characters."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> dict[str, Any]:
        return {"text": "ä" * payload["characters"]}


class Greeting:
    """Has constructor arguments."""

    def __init__(self, greeting: str, marks: int = 1) -> None:
        self._text = greeting + "!" * marks

    async def run(self, payload: Mapping[str, Any], context: Any) -> str:
        return self._text


class Modules:
    """Returns what is imported in its process, and the process's own facts."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> dict[str, Any]:
        return {
            "modules": sorted(sys.modules),
            "is_group_leader": os.getpgrp() == os.getpid(),
            "niceness": os.nice(0),
            "is_daemonic": __import__("multiprocessing").current_process().daemon,
        }
