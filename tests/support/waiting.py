"""Waiting for the moment when something is so, from a test with an event loop."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

_Found = TypeVar("_Found")


async def eventually(
    look: Callable[[], Awaitable[_Found]], what: str, timeout_seconds: float = 20.0
) -> _Found:
    """What `look` gives once it is true; AssertionError after the time-out."""
    end = time.monotonic() + timeout_seconds
    while True:
        found = await look()
        if found:
            return found
        assert time.monotonic() < end, f"not within {timeout_seconds} s: {what}"
        await asyncio.sleep(0.005)
