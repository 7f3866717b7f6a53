"""Reading multipart/form-data (RFC 7578) as it arrives: one file to disk, small fields beside it.

    chunk --> Parts --> python-multipart --(callbacks)--> Part | bytes --> _Taken --> file, fields

The library takes the body apart and keeps nothing of it; every part of a form has its bound here.
The framework's own reader of forms stands on the same library, but bounds neither the bytes of a
file nor the time of its sender, and its file has no descriptor that a process could take over.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from typing import BinaryIO, Final

from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError

from app.api.problems import Problem

MAX_HEADERS: Final = 8
MAX_HEADER_BYTES: Final = 8 * 1024
"""Of all headers of a part."""

MAX_DELIMITERS: Final = 64
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
    parts = Parts(boundary_of(content_type))
    taken = _Taken(file_field, text_fields, max_file_bytes)
    try:
        async for chunk in chunks:
            for found in parts.feed(chunk):
                taken.add(found)
            if len(taken.unwritten) >= _WRITE_BYTES:
                # A disk may make its writer wait.
                await asyncio.to_thread(file.write, taken.unwritten)
                taken.unwritten = bytearray()
        parts.close()
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


class Parts:
    """Takes a body apart as it comes: the beginning of each part, then pieces of its content."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = _LINE_END + b"--" + boundary
        # The first delimiter need not have a line before it.
        self._preamble: bytes | None = _LINE_END
        self._name, self._value = bytearray(), bytearray()
        self._headers, self._header_bytes = Message(), 0
        self._found: list[Part | bytes] = []
        self._has_ended = False
        self._delimiters = self._silent_bytes = 0
        self._parser = MultipartParser(
            boundary,
            {
                "on_header_field": self._add_to_name,
                "on_header_value": self._add_to_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._begin_part,
                "on_part_data": self._add_content,
                "on_end": self._end,
            },
            max_header_count=MAX_HEADERS,
            max_header_size=MAX_HEADER_BYTES,
        )

    def feed(self, chunk: bytes) -> list[Part | bytes]:
        """What is known with this chunk; FormError."""
        if self._preamble is not None:
            chunk = self._without_preamble(self._preamble + chunk)
        # The library goes byte by byte through what begins like a delimiter, and through the spaces
        # behind one: 10 ms for 64 KiB.
        self._delimiters += chunk.count(self._delimiter)
        if self._delimiters > MAX_DELIMITERS:
            raise FormError(f"it has more than {MAX_DELIMITERS} delimiters")
        try:
            self._parser.write(chunk)
        except MultipartParseError as error:
            raise FormError(str(error)) from None
        found, self._found = self._found, []
        self._silent_bytes = 0 if found or self._has_ended else self._silent_bytes + len(chunk)
        if self._silent_bytes > 2 * MAX_HEADER_BYTES:
            raise FormError("a delimiter has something behind it")
        return found

    def close(self) -> None:
        """FormError where the body ended before the form did."""
        if not self._has_ended:
            raise FormError("it ends before its last delimiter")

    def _without_preamble(self, begun: bytes) -> bytes:
        """The body from its first delimiter on; the library knows no preamble (RFC 2046, 5.1.1)."""
        at = begun.find(self._delimiter)
        self._preamble = begun[-len(self._delimiter) :] if at < 0 else None
        return b"" if at < 0 else begun[at:]

    # -- what the library calls ---------------------------------------------------------------

    def _add_to_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]
        self._count(end - start)

    def _add_to_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._count(end - start)

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            raise FormError(f"a part has more than {MAX_HEADER_BYTES} bytes of headers")

    def _end_header(self) -> None:
        self._headers[self._name.decode()] = self._value.decode("utf-8", "replace").strip()
        self._name, self._value = bytearray(), bytearray()

    def _begin_part(self) -> None:
        self._found.append(_part(self._headers))
        self._headers, self._header_bytes = Message(), 0

    def _add_content(self, data: bytes, start: int, end: int) -> None:
        self._found.append(data[start:end])

    def _end(self) -> None:
        self._has_ended = True


def _part(headers: Message) -> Part:
    # RFC 7578 knows no `filename*`; the standard library does, and raises whatever comes of it.
    try:
        return _parsed(headers)
    except FormError:
        raise
    except (ValueError, TypeError, LookupError):
        raise FormError("a part's headers cannot be read") from None


def _parsed(headers: Message) -> Part:
    if headers.get_content_disposition() != "form-data":
        raise FormError("a part does not say that it is form-data")
    if headers.get("content-transfer-encoding", "binary").lower() not in _PLAIN:
        raise FormError("a part is encoded; send it as it is")
    name = headers.get_param("name", header="content-disposition")
    if not isinstance(name, str):
        raise FormError("a part has no name")
    return Part(name, headers.get_filename())


_PLAIN: Final = frozenset({"binary", "8bit", "7bit"})
