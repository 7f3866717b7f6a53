"""The jobs of a soak: they work in steps, keep checkpoints, and witness all of it in a file.

They run in worker processes and import nothing from Haulage. Whatever they store names their run,
so that a write under somebody else's claim is seen afterwards.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from soak.witness import TICK_SECONDS, What, Witness

GRANDCHILD = Path(__file__).with_name("grandchild.py")
CHECKPOINT = "steps"


class DeliberateError(Exception):
    """A job that fails on purpose."""


class Steps:
    """Works for `seconds` in `steps`, from where an earlier run of the job got to.

    Args:
        folder: of the witness files.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    async def run(self, payload: Mapping[str, Any], context: Any) -> dict[str, Any]:
        witness = Witness(self._folder, context.job_id)
        witness.note(What.STARTED, int(witness.run.partition("-")[0]))
        ticking = asyncio.create_task(self._tick(witness))
        if payload["has_grandchild"]:
            _start_grandchild(witness)
        found = await context.load_checkpoint(CHECKPOINT) or {"step": 0}
        witness.note(What.LOADED, found["step"])
        for step in range(found["step"] + 1, payload["steps"] + 1):
            await asyncio.sleep(payload["seconds"] / payload["steps"])
            await context.progress(step / payload["steps"], f"step {step}", witness.run)
            context.logger.info("run %s", witness.run)
            await context.save_checkpoint(CHECKPOINT, {"step": step, "run": witness.run})
            witness.note(What.SAVED, step)
        if payload["fails"]:
            raise DeliberateError
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking
        witness.note(What.ENDED)
        return {"run": witness.run, "steps": payload["steps"], "went_on_after": found["step"]}

    async def _tick(self, witness: Witness) -> None:
        while True:
            witness.note(What.TICK)
            await asyncio.sleep(TICK_SECONDS)


def _start_grandchild(witness: Witness) -> None:
    # Left alone on purpose: whoever ends the job has to end this too.
    subprocess.Popen(
        [sys.executable, "-I", "-S", str(GRANDCHILD), str(witness.path), witness.run],
        stdin=subprocess.DEVNULL,
    )
