"""Reading multipart/form-data (RFC 7578) as it arrives: one file to disk, small fields beside it.

Nothing is kept in memory but what a delimiter may hide in, and every part of a form has its bound.
The framework's own reader counts the parts, not the bytes of a file, and needs one more package.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from enum import Enum, auto
from http import HTTPStatus
from typing import BinaryIO, Final

from app.api.problems import Problem

MAX_HEADER_BYTES: Final = 8 * 1024
MAX_FIELD_BYTES: Final = 4 * 1024
MAX_BOUNDARY_BYTES: Final = 70
"""As RFC 2046 says."""

_WRITE_BYTES: Final = 1024 * 1024
_LINE_END: Final = b"\r\n"


class FormError(ValueError):
    """A body that is no multipart/form-data."""


@dataclass(frozen=True, slots=True)
class Part:
    """The beginning of a part."""

    name: str
    file_name: str | None


@dataclass(frozen=True, slots=True)
class Form:
    """A form that was read to its end.

    Attributes:
        fields: name -> text.
        file_name: as the client says, None where it says none.
    """

    fields: Mapping[str, str]
    file_name: str | None


async def read_form(
    chunks: AsyncIterator[bytes],
    content_type: str,
    file: BinaryIO,
    *,
    file_field: str,
    text_fields: Collection[str],
    max_file_bytes: int,
) -> Form:
    """Read a form with one file, whose content goes to `file`, and at most one of each text field.

    Raises:
        Problem: 400 for a broken form, 413 for a large file, 422 for other fields than these, 415
            for another content type.
    """
    parser = MultipartParser(boundary_of(content_type))
    taken = _Taken(file_field, text_fields, max_file_bytes)
    try:
        async for chunk in chunks:
            for found in parser.feed(chunk):
                taken.add(found)
            if len(taken.unwritten) >= _WRITE_BYTES:
                # A disk may make its writer wait.
                await asyncio.to_thread(file.write, taken.unwritten)
                taken.unwritten = bytearray()
        parser.close()
    except FormError as error:
        raise Problem(HTTPStatus.BAD_REQUEST, "bad-form", f"the form is broken: {error}") from None
    form = taken.form()
    await asyncio.to_thread(_finish, file, taken.unwritten)
    return form


def _finish(file: BinaryIO, rest: bytearray) -> None:
    file.write(rest)
    file.flush()
    file.seek(0)


class _Taken:
    """What of a form has come so far, held to its bounds."""

    def __init__(self, file_field: str, text_fields: Collection[str], max_file_bytes: int) -> None:
        self.unwritten = bytearray()
        """Of the file."""

        self._file_field = file_field
        self._text_fields = text_fields
        self._max_file_bytes = max_file_bytes
        self._texts: dict[str, bytearray] = {}
        self._file: Part | None = None
        self._file_bytes = 0
        self._current = ""

    def add(self, found: Part | bytes) -> None:
        """The beginning of a part, or a piece of the one that began last."""
        if isinstance(found, Part):
            self._begin(found)
        elif self._current == self._file_field:
            self._file_bytes += len(found)
            if self._file_bytes > self._max_file_bytes:
                raise too_large(self._max_file_bytes)
            self.unwritten += found
        else:
            text = self._texts[self._current]
            text += found
            if len(text) > MAX_FIELD_BYTES:
                raise invalid_field(self._current, f"more than {MAX_FIELD_BYTES} bytes")

    def form(self) -> Form:
        """All of it, now that it has ended."""
        if self._file is None:
            raise invalid_field(self._file_field, "the file is missing")
        texts = {name: _decoded(name, text) for name, text in self._texts.items()}
        return Form(texts, self._file.file_name)

    def _begin(self, part: Part) -> None:
        if part.name != self._file_field and part.name not in self._text_fields:
            known = ", ".join((self._file_field, *self._text_fields))
            raise invalid_field(part.name, f"no such field; known: {known}")
        if part.name in self._texts or (part.name == self._file_field and self._file is not None):
            raise invalid_field(part.name, "given twice")
        if part.name == self._file_field:
            self._file = part
        else:
            self._texts[part.name] = bytearray()
        self._current = part.name


def _decoded(name: str, text: bytearray) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise invalid_field(name, "is no UTF-8") from None


def too_large(max_bytes: int) -> Problem:
    """The answer to more than is taken."""
    return Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "too-large",
        f"the file exceeds {max_bytes} bytes; split it",
        headers={"Connection": "close"},
    )


def boundary_of(content_type: str) -> bytes:
    """The delimiter that a header `Content-Type` states; 415 or 400 where it states none."""
    header = Message()
    header["content-type"] = content_type
    if header.get_content_type() != "multipart/form-data":
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "no-form",
            "send a form with the header content-type: multipart/form-data",
        )
    boundary = str(header.get_param("boundary", "")).encode("utf-8", "replace")
    if not 0 < len(boundary) <= MAX_BOUNDARY_BYTES:
        raise Problem(
            HTTPStatus.BAD_REQUEST, "bad-form", "the header content-type states no usable boundary"
        )
    return boundary


def invalid_field(name: str, reason: str) -> Problem:
    """The answer to a field that cannot be."""
    shown = name.encode("utf-8", "replace").decode()[:100]
    place = "/" + shown.replace("~", "~0").replace("/", "~1")
    return Problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "invalid-input",
        f"{place}: {reason}",
        errors=[(place, reason)],
    )


class _State(Enum):
    PREAMBLE = auto()
    DELIMITER = auto()
    HEADERS = auto()
    CONTENT = auto()
    EPILOGUE = auto()


class MultipartParser:
    """Takes a body apart as it comes: the beginning of each part, then pieces of its content."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = _LINE_END + b"--" + boundary
        self._state = _State.PREAMBLE
        # The first delimiter need not have a line before it.
        self._buffer = bytearray(_LINE_END)

    def feed(self, chunk: bytes) -> Iterator[Part | bytes]:
        """What is known with this chunk; FormError."""
        self._buffer += chunk
        while (found := self._step()) is not None:
            if found:
                yield found

    def close(self) -> None:
        """FormError where the body ended before the form did."""
        if self._state is not _State.EPILOGUE:
            raise FormError("it ends before its last delimiter")

    def _step(self) -> Part | bytes | None:
        """One thing that was found, b"" to go on, None until there is more to read."""
        match self._state:
            case _State.PREAMBLE | _State.CONTENT:
                return self._up_to_delimiter()
            case _State.DELIMITER:
                return self._behind_delimiter()
            case _State.HEADERS:
                return self._headers()
            case _State.EPILOGUE:
                self._buffer.clear()
                return None

    def _up_to_delimiter(self) -> bytes | None:
        is_content = self._state is _State.CONTENT
        at = self._buffer.find(self._delimiter)
        if at >= 0:
            content = self._cut(at)
            self._cut(len(self._delimiter))
            self._state = _State.DELIMITER
            return content if is_content else b""
        # The end may be the beginning of a delimiter.
        sure = len(self._buffer) - len(self._delimiter) + 1
        if sure <= 0:
            return None
        content = self._cut(sure)
        return content if is_content and content else None

    def _behind_delimiter(self) -> bytes | None:
        if len(self._buffer) < len(_LINE_END):
            return None
        if self._buffer.startswith(b"--"):
            self._state = _State.EPILOGUE
            return b""
        end = self._buffer.find(_LINE_END)
        if end < 0 and len(self._buffer) <= MAX_BOUNDARY_BYTES:
            return None
        if end < 0 or self._buffer[:end].strip(b" \t"):
            raise FormError("a delimiter has something behind it")
        # The line's end stays: without headers, it is the first half of the empty line.
        self._cut(end)
        self._state = _State.HEADERS
        return b""

    def _headers(self) -> Part | None:
        end = self._buffer.find(_LINE_END * 2)
        if end > MAX_HEADER_BYTES or (end < 0 and len(self._buffer) > MAX_HEADER_BYTES):
            raise FormError(f"a part has more than {MAX_HEADER_BYTES} bytes of headers")
        if end < 0:
            return None
        lines = self._cut(end)
        self._cut(2 * len(_LINE_END))
        self._state = _State.CONTENT
        return _part(lines)

    def _cut(self, size: int) -> bytes:
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        return piece


def _part(lines: bytes) -> Part:
    headers = Message()
    for line in lines.decode("utf-8", "replace").split("\r\n"):
        name, colon, value = line.partition(":")
        if line and not colon:
            raise FormError("a part has a line that is no header")
        if line:
            headers[name.strip()] = value.strip()
    if headers.get_content_disposition() != "form-data":
        raise FormError("a part does not say that it is form-data")
    if headers.get("content-transfer-encoding", "binary").lower() not in _PLAIN:
        raise FormError("a part is encoded; send it as it is")
    part_name = headers.get_param("name", header="content-disposition")
    if not isinstance(part_name, str):
        raise FormError("a part has no name")
    return Part(part_name, headers.get_filename())


_PLAIN: Final = frozenset({"binary", "8bit", "7bit"})
