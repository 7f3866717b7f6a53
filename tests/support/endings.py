"""Pipelines that choose their own ending, or run into a limit; see `support.pipelines`."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from support.pipelines import gate, start_grandchild

ENDINGS: Mapping[str, Any] = {
    name: f"support.endings:{name.title().replace('-', '')}"
    for name in (
        "chooser",
        "cooperative",
        "declared",
        "hungry",
        "hungry-family",
        "leaves-when-told",
        "quiet",
        "saves-when-told",
        "steady",
    )
}


class Chooser:
    """Does what its payload says at each attempt: a list of `[verb, arguments...]`."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> Any:
        verb, *arguments = payload["attempts"][context.attempt - 1]
        match verb:
            case "return":
                return arguments[0]
            case "raise":
                raise ValueError(*arguments)
            case "swallow":
                try:
                    context.give_up("wrapped")
                except Exception as error:
                    raise RuntimeError("from outside") from error
            case _:
                return getattr(context, verb)(*arguments)


class Cooperative:
    """Blocks its loop, but looks at its context; then says what it saw."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> str:
        await context.progress(0.5, "working", str(start_grandchild()))
        while not context.is_cancelled:
            time.sleep(0.01)  # noqa: ASYNC251  that is what it is for
        context.logger.warning("told to end")
        context.check_cancelled()
        return "never"


class LeavesWhenTold:
    """Obeys by sys.exit: on its cancellation, or in a handler of its own while it computes."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        if payload["how"] == "handler":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            await context.progress(0.5, "working")
            while True:
                sum(range(1_000))
        try:
            await context.progress(0.5, "working")
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            sys.exit(1)


class SavesWhenTold:
    """Keeps a checkpoint when it is cancelled; goes on from it afterwards."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> Any:
        if found := await context.load_checkpoint("so far"):
            return found
        try:
            await context.progress(0.5, "working")
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            await context.save_checkpoint("so far", {"rows": 3})
            raise
        return "never"


class Declared:
    """Says what its jobs get; fails at once, or waits."""

    job_defaults = {"max_attempts": 2, "timeout_seconds": 1.5, "stall_seconds": 90}  # noqa: RUF012

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        if payload.get("fail"):
            context.retry_later(0.0, "as the payload says")
        await context.progress(0.5, "waiting")
        await asyncio.sleep(600)


class Quiet:
    """Reports progress for a while, then never again; with a grandchild."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        for number in range(payload["reports"]):
            await context.progress(number / payload["reports"], "busy", str(number))
            await asyncio.sleep(0.1)
        await context.progress(0.9, "quiet", str(start_grandchild()))
        await asyncio.sleep(600)


class Steady:
    """Makes progress in small steps for `seconds`, by checkpoints only."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> str:
        end = time.monotonic() + payload["seconds"]
        while time.monotonic() < end:
            await context.save_checkpoint("step", time.monotonic())
            await asyncio.sleep(0.2)
        return "done"


def eat(megabytes: int) -> bytearray:
    """So much memory, really used."""
    eaten = bytearray()
    for _ in range(megabytes):
        eaten += os.urandom(1024) * 1024
    return eaten


class Hungry:
    """Eats memory and keeps it."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> int:
        await context.progress(0.5, "eating", str(start_grandchild()))
        eaten = eat(payload["megabytes"])
        await gate(payload["gate"])
        return len(eaten)


def start_apart(*command: str) -> int:
    """A process in a session of its own; its pid."""
    return subprocess.Popen(command, start_new_session=True).pid


class HungryFamily:
    """Each of its children eats less than the limit; all together eat more."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        code = "from support.endings import eat; import time; x = eat(60); time.sleep(600)"
        pids = [start_apart(sys.executable, "-c", code) for _ in range(payload["children"])]
        await context.progress(0.5, "eating", " ".join(map(str, pids)))
        await gate(payload["gate"])
