"""How many calls may be under way: halved when the server says 429, grown again slowly.

Additive increase, multiplicative decrease, as in TCP (Chiu and Jain, 1989).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Slot:
    """A call's permission; it reports how the call went."""

    _limit: "AdaptiveLimit"
    _era: int

    def is_limited(self) -> None:
        """The server said that there are too many calls."""
        self._limit.shrink(self._era)

    def went_well(self) -> None:
        """The server answered."""
        self._limit.note_success()


class AdaptiveLimit:
    """At most `now` calls at once, between 1 and `most`."""

    def __init__(self, most: int) -> None:
        self._most = max(1, most)
        self.now = self._most
        self._used = 0
        self._successes = 0
        self._era = 0
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[Slot]:
        """Wait for a free place and hold it."""
        async with self._freed:
            await self._freed.wait_for(lambda: self._used < self.now)
            self._used += 1
        try:
            yield Slot(self, self._era)
        finally:
            self._used -= 1
            async with self._freed:
                self._freed.notify(max(0, self.now - self._used))

    def shrink(self, era: int) -> None:
        """Halve, once for all calls that began under the same limit."""
        if era == self._era:
            self._era += 1
            self._successes = 0
            self.now = max(1, self.now // 2)

    def note_success(self) -> None:
        """Allow one call more after as many successes as calls are allowed."""
        self._successes += 1
        if self._successes >= self.now < self._most:
            self._successes = 0
            self.now += 1
