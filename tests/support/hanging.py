"""`python -m support.hanging METHOD COMMAND...`: Haulage with one method of its scheduler stuck.

What a pass waits for for ever may be anything; here it is an event that nobody sets.
"""

import asyncio
import sys
from typing import Any

from app.cli import command_line
from app.orchestrator.manager import QueueManager


async def hang(*_: Any) -> None:
    await asyncio.Event().wait()


if __name__ == "__main__":
    setattr(QueueManager, sys.argv[1], hang)
    command_line(sys.argv[2:])
