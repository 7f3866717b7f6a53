"""Answers too large to be handed over in one piece."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from typing import BinaryIO, Final

from fastapi import Response
from starlette.types import Receive, Scope, Send

SLICE_BYTES: Final = 256 * 1024


class SlicedResponse(Response):
    """Bytes, or a file that it closes, sent in slices as fast as the client takes them."""

    def __init__(
        self, source: bytes | BinaryIO, media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self._source = source
        size = len(source) if isinstance(source, bytes) else os.fstat(source.fileno()).st_size
        super().__init__(
            headers={**(headers or {}), "Content-Length": str(size)}, media_type=media_type
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """See ASGI."""
        try:
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            async for piece in self._pieces():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            if not isinstance(self._source, bytes):
                self._source.close()

    async def _pieces(self) -> AsyncIterator[bytes]:
        if isinstance(self._source, bytes):
            for at in range(0, len(self._source), SLICE_BYTES):
                yield self._source[at : at + SLICE_BYTES]
            return
        self._source.seek(0)
        while piece := await asyncio.to_thread(self._source.read, SLICE_BYTES):
            yield piece
