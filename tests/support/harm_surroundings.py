"""Harms to what a worker stands on: loop, descriptors, limits, modules; see `support.hostile`."""

import asyncio
import contextlib
import logging
import logging.config
import os
import resource
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

KEPT: list[Any] = []


async def move_out_of_its_group(payload: Mapping[str, Any], context: Any) -> list[str]:
    refused = []
    for call, arguments in (
        (os.setsid, ()),
        (os.setpgid, (0, os.getppid())),
        (os.setpgid, (0, 0)),
    ):
        try:
            call(*arguments)
        except PermissionError as error:
            refused.append(type(error).__name__)
    return refused


async def change_its_manners(payload: Mapping[str, Any], context: Any) -> str:
    gone = Path(tempfile.mkdtemp())
    os.chdir(gone)
    gone.rmdir()  # noqa: ASYNC240  local and at once
    os.environ.clear()
    os.umask(0o777)
    os.nice(14)
    return "done"


async def lower_limits(payload: Mapping[str, Any], context: Any) -> str:
    """Lower the soft limit that the payload names, as the last thing before the end."""
    which = getattr(resource, payload["limit"])
    _, hard = resource.getrlimit(which)
    resource.setrlimit(which, (payload["value"], hard))
    return "done"


def _limit_memory(spare_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + spare_bytes, hard))


async def want_too_much_memory(payload: Mapping[str, Any], context: Any) -> int:
    _limit_memory(32 * 1024 * 1024)
    return len(bytearray(1024 * 1024 * 1024))


async def use_up_memory(payload: Mapping[str, Any], context: Any) -> None:
    _limit_memory(32 * 1024 * 1024)
    kept: list[bytes] = []
    for size_bytes in (1_000_000, 10_000, 100):
        try:
            while True:
                kept.append(b"x" * size_bytes + b"y")
        except MemoryError:
            continue
    while True:
        kept.append(os.urandom(100))


async def replace_streams(payload: Mapping[str, Any], context: Any) -> str:
    class Stubborn:
        def flush(self) -> NoReturn:
            raise SystemExit(0)

    sys.stdout = Stubborn()
    sys.stderr = None
    return "done"


async def close_streams(payload: Mapping[str, Any], context: Any) -> str:
    sys.stdout.close()
    sys.stderr.close()
    for descriptor in range(3):
        os.close(descriptor)
    return "done"


async def close_descriptors(payload: Mapping[str, Any], context: Any) -> str:
    os.closerange(0, 1_024)
    if payload.get("waits"):
        await asyncio.sleep(0.1)
    return "done"


async def close_connections(payload: Mapping[str, Any], context: Any) -> str:
    for descriptor in range(1_024):
        with contextlib.suppress(OSError):  # none has this number
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.close(descriptor)
    return "done"


async def fill_executor(payload: Mapping[str, Any], context: Any) -> str:
    KEPT.extend(asyncio.create_task(asyncio.to_thread(_wait_for_ever)) for _ in range(50))
    await asyncio.sleep(0.05)
    await context.save_checkpoint("meanwhile", [1])
    return "done" if await context.load_checkpoint("meanwhile") == [1] else "lost"


def _wait_for_ever() -> None:
    threading.Event().wait()


async def shut_executor_down(payload: Mapping[str, Any], context: Any) -> str:
    await asyncio.get_running_loop().shutdown_default_executor()
    return "done"


async def run_another_loop(payload: Mapping[str, Any], context: Any) -> str:
    async def other() -> str:
        await asyncio.sleep(0.01)
        return "done"

    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(other())))
    thread.start()
    while thread.is_alive():  # noqa: ASYNC110  a thread has no event to wait for
        await asyncio.sleep(0.01)
    asyncio.set_event_loop(None)
    return found[0]


async def close_loop(payload: Mapping[str, Any], context: Any) -> None:
    asyncio.get_running_loop().close()


async def stop_loop(payload: Mapping[str, Any], context: Any) -> str:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.05)
    return "done"


async def patch_sleep(payload: Mapping[str, Any], context: Any) -> str:
    async def restless(*_: Any) -> NoReturn:
        raise RuntimeError("no rest")

    asyncio.sleep = restless  # type: ignore[assignment]
    return "done"


async def patch_clock(payload: Mapping[str, Any], context: Any) -> str:
    """Stop the clock, as libraries that freeze time do, or take it away."""
    await context.progress(0.5, "before")
    time.monotonic = None if payload["to"] is None else lambda: payload["to"]  # type: ignore[assignment]
    await asyncio.sleep(0)
    await context.progress(0.6, "after")
    return "done"


async def shut_logging_down(payload: Mapping[str, Any], context: Any) -> str:
    logging.shutdown()
    context.logger.warning("after all")
    return "done"


async def configure_logging(payload: Mapping[str, Any], context: Any) -> str:
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": True})
    logging.disable()
    context.logger.warning("not heard")
    return "done"


async def lower_recursion_limit(payload: Mapping[str, Any], context: Any) -> str:
    sys.setrecursionlimit(45)
    return "done"


async def forget_modules(payload: Mapping[str, Any], context: Any) -> str:
    KEPT.append(dict(sys.modules))
    sys.modules.clear()
    return "done"
