"""Pipelines that end in every way in which a run can end, and targets that are none."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from app.domain.errors import NothingToDoError


class Echo:
    def __init__(self, greeting: str = "", marks: int = 0) -> None:
        self.greeting = greeting + "!" * marks

    async def run(self, payload: Mapping[str, Any], context: Any) -> dict[str, Any]:
        await context.progress(0.5, "echoing")
        print("printed by the pipeline")  # noqa: T201  it has to reach the job's log
        context.logger.warning("logged by the pipeline")
        return {"echo": dict(payload), "attempt": context.attempt, "greeting": self.greeting}

    class Inner:
        async def run(self, payload: Mapping[str, Any], context: Any) -> str:
            return "inner"


class Raises:
    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        raise LookupError("not found\x00")


class Leaks:
    """Tells the payload's secret in every way there is."""

    def __init__(self, **_arguments: Any) -> None:
        pass

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        secret = payload["secret"]
        print("key", secret)  # noqa: T201  so do pipelines
        context.logger.error("asked with %s", secret)
        await context.progress(0.5, "asking", f"with {secret}")
        try:
            raise ValueError(secret)  # noqa: TRY301  a chain, of which the traceback tells
        except ValueError as error:
            raise RuntimeError(f"no answer for {secret}") from error


class FindsNothing:
    """Says with the payload's secret that there is nothing to do."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        raise NothingToDoError(f"nothing for {payload['secret']}")


class Exits:
    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        sys.exit(3)


class Returns:
    """Returns what JSON does not know."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> Any:
        return {"set": {1, 2}, "nan": float("nan"), "nul": "\x00", "large": "x" * 200}[
            payload["what"]
        ]


class CancelsItself:
    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        raise asyncio.CancelledError


class LeavesATaskThatExits:
    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        await asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        sys.exit("enough")


class CancelsAllTasks:
    """Cancels its worker's tasks too, and goes on or ends with them."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> str:
        spared = {asyncio.current_task()} if payload["goes on"] else set()
        for task in asyncio.all_tasks() - spared:
            task.cancel()
        await asyncio.sleep(0.01)
        await context.progress(0.5, "alone")
        return "done"


class LeavesTasks:
    """Leaves a task behind that would block its worker's loop, and one that cleans up."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        self._left = [asyncio.create_task(self._block()), asyncio.create_task(self._clean_up())]
        await asyncio.sleep(0)

    async def _block(self) -> None:
        await asyncio.sleep(0.001)
        time.sleep(600)  # noqa: ASYNC251  never reached

    async def _clean_up(self) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            print("cleaned up")  # noqa: T201


class UsesUpThreads:
    """Takes the loop's own executor away."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> str:
        await asyncio.get_running_loop().shutdown_default_executor()
        return "done"


class IsTerminated:
    """Gets SIGTERM while it runs, as if its manager had sent it."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()


class Saves:
    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        await context.save_checkpoint("stage", [1])


class RaisesWhenMade:
    def __init__(self) -> None:
        raise OSError("no model file")

    async def run(self, payload: Mapping[str, Any], context: Any) -> None:
        pass


class IsSynchronous:
    def run(self, payload: Mapping[str, Any], context: Any) -> None:
        pass


class HasNoRun:
    pass


an_object = Echo()


def a_function() -> None:
    pass
