"""Answers too large to be handed over in one piece."""

import asyncio
import logging
import os
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import BinaryIO, Final

from fastapi import Response
from starlette.types import Receive, Scope, Send

from app.api.room import Room

SLICE_BYTES: Final = 256 * 1024
SEND_SECONDS: Final = 20.0
"""How long a client may take for a slice."""

_logger: Final = logging.getLogger("haulage.api")


class SlicedResponse(Response):
    """Pieces, or a file that it closes, sent one after the other as the client takes them.

    Args:
        room: what the file takes its size of until it is closed; Problem 503 where there is none.
    """

    def __init__(
        self,
        source: Sequence[bytes] | BinaryIO,
        media_type: str,
        headers: Mapping[str, str] | None = None,
        *,
        room: Room | None = None,
    ) -> None:
        self._source = source
        if isinstance(source, Sequence):
            size = sum(map(len, source))
        else:
            size = os.fstat(source.fileno()).st_size
        self._give_back: Callable[[], object] = lambda: None
        if room is not None:
            room.take(size)
            # Also where it is never sent.
            self._give_back = weakref.finalize(self, room.give_back, size)
        super().__init__(
            headers={**(headers or {}), "Content-Length": str(size)}, media_type=media_type
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """See ASGI."""
        try:
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            async for piece in self._pieces():
                async with asyncio.timeout(SEND_SECONDS):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            # The server closes the connection of an answer that was not completed.
            path, seconds = scope["path"], SEND_SECONDS
            _logger.warning("the client took nothing of %s for %g s and is given up", path, seconds)
        finally:
            self._give_back()
            if not isinstance(self._source, Sequence):
                self._source.close()

    async def _pieces(self) -> AsyncIterator[bytes]:
        if isinstance(self._source, Sequence):
            for piece in self._source:
                yield piece
            return
        self._source.seek(0)
        while piece := await asyncio.to_thread(self._source.read, SLICE_BYTES):
            yield piece
