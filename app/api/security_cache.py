"""Answers of the database that are good for some seconds, each asked for once at a time.

What the key of a request allows and what its holder has waiting is needed for every request; asked
every time it would double the queries of a submission.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from app.domain.errors import DatabaseUnavailableError

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class BriefCache(Generic[_Key, _Value]):
    """Values by key, none older than `seconds`; None is a value that is not kept.

    In the second half of its time a value is still given out while it is asked for again, so that
    who asks often never waits. For the event loop's thread.

    Args:
        load: asks for a value.
        max_entries: of values kept, and of values being asked for.
    """

    def __init__(
        self,
        load: Callable[[_Key], Awaitable[_Value | None]],
        *,
        seconds: float,
        max_entries: int,
    ) -> None:
        self._load = load
        self._seconds = seconds
        self._max_entries = max_entries
        # By key: when it was asked for, and the answer; the least recently asked for first.
        self._kept: OrderedDict[_Key, tuple[float, _Value]] = OrderedDict()
        self._loading: dict[_Key, asyncio.Task[_Value | None]] = {}

    async def get(self, key: _Key, max_seconds: float | None = None) -> _Value | None:
        """The value, asked for where it is not kept, or is older than `max_seconds`.

        Raises whatever `load` raises, and DatabaseUnavailableError where too much is being asked.
        """
        age, value = self._look(key)
        if value is None or (max_seconds is not None and age > max_seconds):
            # Shielded: a client that hangs up must not take the answer from the others.
            return await asyncio.shield(self._task(key))
        if age > self._seconds / 2 and len(self._loading) < self._max_entries:
            self._task(key)
        return value

    async def close(self) -> None:
        """End what is being asked for."""
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _look(self, key: _Key) -> tuple[float, _Value | None]:
        began, value = self._kept.get(key, (0.0, None))
        age = time.monotonic() - began
        return (age, value) if age < self._seconds else (age, None)

    def _task(self, key: _Key) -> "asyncio.Task[_Value | None]":
        task = self._loading.get(key)
        if task is None:
            if len(self._loading) >= self._max_entries:
                raise DatabaseUnavailableError("too many questions wait for it")
            task = asyncio.create_task(self._ask(key), name="haulage-look-up")
            self._loading[key] = task
            task.add_done_callback(lambda done: self._is_done(key, done))
        return task

    async def _ask(self, key: _Key) -> _Value | None:
        # Counted from the question: the answer may be as old as that.
        began = time.monotonic()
        value = await self._load(key)
        self._kept.pop(key, None)
        if value is not None:
            self._kept[key] = (began, value)
            if len(self._kept) > self._max_entries:
                self._kept.popitem(last=False)
        return value

    def _is_done(self, key: _Key, task: "asyncio.Task[_Value | None]") -> None:
        del self._loading[key]
        if not task.cancelled():
            # Looked at, or asyncio would log it where nobody waited for it.
            task.exception()
