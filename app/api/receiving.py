"""Bodies on their way in, each in time.

A client may send slowly, but not at any price for the others: a body that stops, or comes more
slowly than anything that is still called a network, is refused with 408.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from http import HTTPStatus
from typing import Final

from app.api.problems import Problem

STALL_SECONDS: Final = 30.0
"""How long a client may send nothing, and what it may take at first."""

LEAST_BYTES_PER_SECOND: Final = 64 * 1024
"""After that, on the average."""

MAX_HELD_BYTES: Final = 256 * 1024**2
"""In memory, by all bodies of one process."""


async def in_time(stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The chunks of a body as they come; Problem 408 where they come too slowly."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    size = 0
    async with aclosing(stream):
        while True:
            by_rate = began + STALL_SECONDS + size / LEAST_BYTES_PER_SECOND
            try:
                async with asyncio.timeout_at(min(loop.time() + STALL_SECONDS, by_rate)):
                    chunk = await anext(stream)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise Problem(
                    HTTPStatus.REQUEST_TIMEOUT,
                    "stalled",
                    f"the body did not come: nothing for {STALL_SECONDS:.0f} s, or less than "
                    f"{LEAST_BYTES_PER_SECOND} bytes a second",
                    headers={"Connection": "close"},
                ) from None
            size += len(chunk)
            yield chunk
