"""Calls made again: where the store could not be reached, and while others hold what they need."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg

from app.domain.errors import DatabaseUnavailableError

_Answer = TypeVar("_Answer")


async def in_turn(places: asyncio.Semaphore, call: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """What `call` returns, made again while others hold a key; until somebody ends it."""
    while True:
        async with places:
            try:
                return await call()
            except DatabaseUnavailableError as error:
                if not is_held(error):
                    raise


def is_held(error: DatabaseUnavailableError) -> bool:
    """Whether somebody else's open transaction was in the way."""
    return isinstance(error.__cause__, asyncpg.LockNotAvailableError)


async def tried(tries: int, seconds: float, call: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """What `call` returns, made again where the store could not be reached, unless that took long.

    Args:
        seconds: after which nothing is begun any more.
    """
    end = time.monotonic() + seconds
    while True:
        tries -= 1
        try:
            return await call()
        except DatabaseUnavailableError:
            if not tries or time.monotonic() >= end:
                raise
