"""Answers too large to be handed over in one piece."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import BinaryIO, Final

from fastapi import Response
from starlette.types import Receive, Scope, Send

SLICE_BYTES: Final = 256 * 1024


class SlicedResponse(Response):
    """Pieces, or a file that it closes, sent one after the other as the client takes them."""

    def __init__(
        self,
        source: Sequence[bytes] | BinaryIO,
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._source = source
        if isinstance(source, Sequence):
            size = sum(map(len, source))
        else:
            size = os.fstat(source.fileno()).st_size
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
