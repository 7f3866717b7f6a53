"""Requests that are still without an answer when the process has to end."""

import asyncio
from http import HTTPStatus

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.problems import RETRY_AFTER_SECONDS, Problem, answer


class OpenRequests:
    """The requests of one process that are being answered; for the event loop's thread."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether none is to be waited for any more."""
        return self._is_over

    def enter(self, task: asyncio.Task[object]) -> None:
        """A request begins."""
        self._tasks.add(task)

    def leave(self, task: asyncio.Task[object]) -> None:
        """It is answered, or given up."""
        self._tasks.discard(task)

    def end(self) -> None:
        """Those that wait, and those to come, get 503; what is half sent is broken off."""
        self._is_over = True
        for task in self._tasks:
            task.cancel()


class EndsInTime:
    """ASGI middleware: a request that a shutdown overtakes gets an answer instead of a silence."""

    def __init__(self, app: ASGIApp, requests: OpenRequests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        task = asyncio.current_task()
        if scope["type"] != "http" or task is None:
            await self._app(scope, receive, send)
            return
        if self._requests.is_over:
            await _tell_of_end(scope, receive, send)
            return
        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        self._requests.enter(task)
        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            if not self._requests.is_over or has_begun:
                raise
            task.uncancel()
            await _tell_of_end(scope, receive, send)
        finally:
            self._requests.leave(task)


async def _tell_of_end(scope: Scope, receive: Receive, send: Send) -> None:
    problem = Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "stopping",
        "the process ends; whether it did what was asked is not known",
        headers={"Retry-After": str(RETRY_AFTER_SECONDS), "Connection": "close"},
    )
    await answer(Request(scope), problem)(scope, receive, send)
