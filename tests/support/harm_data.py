"""Harms by what a job says: results, output, logs, progress, checkpoints; see `support.hostile`."""

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

MIB = 1024 * 1024


class OddMapping(dict[str, Any]):
    """Does not give its items."""

    def items(self) -> NoReturn:
        raise SystemExit(0)


async def give_back(payload: Mapping[str, Any], context: Any) -> Any:
    return payload["value"]


async def echo(payload: Mapping[str, Any], context: Any) -> Any:
    return dict(payload)


async def result(payload: Mapping[str, Any], context: Any) -> Any:
    """A result that is no JSON, by its name."""
    circle: list[Any] = []
    circle.append(circle)
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    return {
        "bytes": b"raw",
        "circle": circle,
        "coroutine": echo(payload, context),
        "deep": deep,
        "infinite": float("1e400"),
        "keys": {1: "one"},
        "nan": {"mean": float("nan")},
        "nul": {"text": "a\x00b"},
        "odd": OddMapping(a=1),
        "set": {"of": {1, 2}},
        "surrogate": "\ud800",
    }[payload["kind"]]


async def large_result(payload: Mapping[str, Any], context: Any) -> list[str]:
    """A result of exactly so many bytes of JSON."""
    strings, size_bytes = [], payload["bytes"]
    # A string of n characters takes n + 2 bytes, and one more for its comma or bracket.
    size_bytes -= 1
    while size_bytes:
        characters = min(size_bytes, 16 * MIB) - 3
        strings.append("x" * characters)
        size_bytes -= characters + 3
    return strings


async def checkpoint(payload: Mapping[str, Any], context: Any) -> int:
    """A checkpoint of exactly so many bytes of JSON; how many came back."""
    await context.save_checkpoint("large", "x" * (payload["bytes"] - 2))
    return len(await context.load_checkpoint("large")) + 2


async def checkpoint_under(payload: Mapping[str, Any], context: Any) -> Any:
    """A checkpoint under a name that the payload gives, as text or as so many characters."""
    name = payload["stage"]
    stage = os.urandom(name).hex()[:name] if isinstance(name, int) else name.replace("NUL", "\x00")
    if payload.get("only loads"):
        return await context.load_checkpoint(stage)
    await context.save_checkpoint(stage, [1])
    return await context.load_checkpoint(stage)


async def print_much(payload: Mapping[str, Any], context: Any) -> str:
    line = b"\xff\xfe noise " + b"x" * 88 + b"\n"
    for _ in range(500):
        os.write(1, line * 100)
        os.write(2, line * 100)
    os.write(1, b"\xc3\xa4" * (5 * MIB // 2))
    sys.stderr.write("one line " * 600_000)
    return "done"


async def log_much(payload: Mapping[str, Any], context: Any) -> str:
    for number in range(10_000):
        context.logger.info("line %d", number)
    context.logger.info("x" * 5 * MIB)
    context.logger.info("\n" * 100_000)
    return "done"


class _Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


async def log_the_unprintable(payload: Mapping[str, Any], context: Any) -> str:
    context.logger.info("%s", _Unprintable())
    context.logger.info(_Unprintable())
    logging.getLogger().info("%d", "x")
    context.logger.info("and goes on")
    return "done"


async def report_much(payload: Mapping[str, Any], context: Any) -> str:
    """A storm of progress: each stage a new one, or none."""
    calls, stages = payload["calls"], payload["stages"]
    for number in range(calls):
        stage = f"stage {number * stages // calls}" if stages else None
        await context.progress(number / calls, stage, "busy")
    return "done"


async def report_at_once(payload: Mapping[str, Any], context: Any) -> str:
    async with asyncio.TaskGroup() as tasks:
        for number in range(2_000):
            tasks.create_task(context.progress(number / 2_000, "all at once", "busy"))
    return "done"


async def report_oddly(payload: Mapping[str, Any], context: Any) -> str:
    for fraction in (float("nan"), float("-inf"), 1e400, True):
        await context.progress(fraction, "NUL \x00 and \ud800 " + "x" * 10_000, "\x00" * 10_000)
    return "done"
