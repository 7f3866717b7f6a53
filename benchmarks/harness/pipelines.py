"""What the benchmarks' jobs do."""

import time
from collections.abc import Mapping
from typing import Any


class Burn:
    """Keeps one CPU busy for `seconds`."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> int:
        """Count as fast as Python can."""
        await context.progress(0.5, "burning")
        end = time.monotonic() + payload["seconds"]
        turns = 0
        while time.monotonic() < end:
            turns += 1
        return turns
