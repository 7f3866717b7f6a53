"""Small pipelines for the first steps and for tests: sleep, echo, fail, crash.

They import nothing from Haulage, as a user's own pipeline need not.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any


class Sleep:
    """Sleeps `seconds` in `steps` steps and reports each as progress.

    Payload: {"seconds": 3.0, "steps": 10}.
    """

    async def run(self, payload: Mapping[str, Any], context: Any) -> dict[str, Any]:
        """Sleep, step by step."""
        seconds = float(payload.get("seconds", 3.0))
        steps = max(1, int(payload.get("steps", 10)))
        for step in range(steps):
            await context.progress(step / steps, "sleeping", f"step {step + 1} of {steps}")
            await asyncio.sleep(seconds / steps)
        return {"slept_seconds": seconds}


class Echo:
    """Returns its payload, with the number of the attempt that did so."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> dict[str, Any]:
        """Return at once."""
        return {"echo": dict(payload), "attempt": context.attempt}


class Fail:
    """Raises.

    Payload: {"message": "..."}.
    """

    async def run(self, payload: Mapping[str, Any], context: Any) -> dict[str, Any]:
        """Raise RuntimeError with the payload's message."""
        await context.progress(0.1, "failing")
        raise RuntimeError(str(payload.get("message", "failed on request")))


class Crash:
    """Ends its own process without a word.

    Payload: {"how": "kill" | "exit" | "abort", "exit_code": 3}.
    """

    async def run(self, payload: Mapping[str, Any], context: Any) -> dict[str, Any]:
        """Die by SIGKILL, os._exit or abort."""
        await context.progress(0.1, "crashing")
        sys.stdout.flush()
        match payload.get("how", "kill"):
            case "exit":
                os._exit(int(payload.get("exit_code", 3)))
            case "abort":
                os.abort()
            case _:
                os.kill(os.getpid(), signal.SIGKILL)
        return {}
