"""JSON texts as documents keep them: as text, packed and in pieces where they are long.

As text, because a BSON document is not JSON: integers beyond 64 bits, keys with dots or dollars,
depths and the difference of 1 and 1.0 would not come back. The server never looks inside; what has
to be found by a value within is copied into a field of its own.
"""

import asyncio
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

from app.db.mongo.connections import Document
from app.domain.errors import InvalidJsonError

# A document holds 16 MiB at most; so small a piece also stays far from what one message may have.
PIECE_BYTES: Final = 4 * 1024 * 1024
# Shorter ones are not worth it: as with PostgreSQL's own compression.
PACKED_FROM_BYTES: Final = 2 * 1024
# 60 MB/s by measure and half the size; better levels take several times as long.
PACKING_LEVEL: Final = 1
# What takes longer than a millisecond is not done on the event loop.
ASIDE_FROM_CHARACTERS: Final = 64 * 1024


async def normal_text(text: str) -> str:
    """JSON text in the one spelling that every store gives back: no escapes that need not be."""
    if len(text) < ASIDE_FROM_CHARACTERS:
        return _normal_text(text)
    return await asyncio.to_thread(_normal_text, text)


def _normal_text(text: str) -> str:
    try:
        return text_of(json.loads(text))
    except ValueError as error:
        raise InvalidJsonError("", str(error)) from None


def text_of(value: Any) -> str:
    """JSON text of a value in that spelling."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


async def packed(text: str) -> list[Document]:
    """The pieces of a text in their order, as fields of documents: at least one, each with `n`."""
    if len(text) < ASIDE_FROM_CHARACTERS:
        return list(_packed(text))
    return await asyncio.to_thread(lambda: list(_packed(text)))


def _packed(text: str) -> Iterator[Document]:
    data = text.encode()
    text_bytes = len(data)
    is_packed = text_bytes >= PACKED_FROM_BYTES
    if is_packed:
        data = zlib.compress(data, PACKING_LEVEL)
    sizes = {"is_packed": is_packed, "text_bytes": text_bytes, "stored_bytes": len(data)}
    for n, start in enumerate(range(0, max(len(data), 1), PIECE_BYTES)):
        yield {"n": n, "data": data[start : start + PIECE_BYTES], **sizes}


async def unpacked(pieces: Iterable[Document]) -> bytes:
    """The text of its pieces, which come in their order, as UTF-8."""
    found = list(pieces)
    if sum(len(piece["data"]) for piece in found) < ASIDE_FROM_CHARACTERS // 4:
        return _unpacked(found)
    return await asyncio.to_thread(_unpacked, found)


def _unpacked(pieces: list[Document]) -> bytes:
    data = b"".join(piece["data"] for piece in pieces)
    return zlib.decompress(data) if pieces[0]["is_packed"] else data
