"""Work that is given up when the client has gone, who would not learn of it."""

import asyncio
from collections.abc import Awaitable
from http import HTTPStatus
from typing import TypeVar

from fastapi import Request

from app.api.problems import Problem

_T = TypeVar("_T")


async def while_connected(http: Request, work: Awaitable[_T]) -> _T:
    """What `work` gives; Problem 400, which nobody reads, once the client has gone.

    The body has to be read before: what comes of it meanwhile is passed over.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(http))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Problem(HTTPStatus.BAD_REQUEST, "broken-off", "the client has gone")
        return working.result()
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _disconnect(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
