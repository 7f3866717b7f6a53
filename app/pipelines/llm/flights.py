"""Calls under way: equal ones are made once, and whoever is the last to leave ends the call."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from app.pipelines.llm.interface import Completion

SAVING_SECONDS: Final = 5.0


class Flights:
    """The calls of one job that are under way, by their keys."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight] = {}

    async def join(
        self, key: str, begin: Callable[[], Coroutine[Any, Any, Completion]]
    ) -> Completion:
        """What the call under `key` gives, begun now where it is not under way."""
        flight = self._flights.get(key)
        if flight is None or flight.task.cancelling():
            flight = _Flight(asyncio.create_task(begin()))
            self._flights[key] = flight
            flight.task.add_done_callback(lambda task: self._forget(key, task))
        return await flight.landed()

    async def close(self) -> None:
        """End them all and see them ended."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, key: str, task: asyncio.Task[Completion]) -> None:
        if key in self._flights and self._flights[key].task is task:
            del self._flights[key]


@dataclass(slots=True)
class _Flight:
    """A call under way and how many wait for it."""

    task: asyncio.Task[Completion]
    passengers: int = 0

    async def landed(self) -> Completion:
        """Its completion; cancelled, the last one to leave ends the call and sees it ended."""
        self.passengers += 1
        try:
            return await asyncio.shield(self.task)
        finally:
            self.passengers -= 1
            if not self.passengers and not self.task.done():
                self.task.cancel()
                await asyncio.wait([self.task])


async def in_any_case(saving: Coroutine[Any, Any, None]) -> None:
    """See `saving` through, also when cancelled: what it keeps is paid for."""
    task = asyncio.create_task(saving)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=SAVING_SECONDS)
        task.cancel()
        raise
