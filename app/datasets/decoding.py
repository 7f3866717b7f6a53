"""Bytes of a text file as text, and which encoding they turned out to have."""

import codecs
from typing import Final

from app.domain.errors import DatasetError

FALLBACK: Final = "cp1252"
"""Of what is no UTF-8: what Excel writes on Windows, or any other, which cannot be told."""

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def decode(data: bytes, encoding: str | None = None) -> tuple[str, str]:
    """The text of `data` and its encoding: "utf-8", "utf-16-le", "utf-16-be" or "cp1252".

    One that is given is taken as it is, by the name that Python knows it by.

    A byte order mark decides; without one it is UTF-8 if it is valid UTF-8, and else what Excel
    writes on Windows. That order matters: nearly all bytes are valid cp1252. But what is UTF-8 for
    the most part is not taken for that: a single stray byte would garble every text.

    Raises:
        DatasetError: it is no text, or not in the encoding that its mark or its most part promises.
    """
    if encoding is not None:
        name = _known(encoding)
        return _strict(data, name).removeprefix("\ufeff"), name
    for mark, marked in _MARKS:
        if data.startswith(mark):
            return _strict(data[len(mark) :], marked), marked
    if b"\0" in data:
        raise DatasetError(f"line {_line(data, data.index(0))}: a zero byte; this is no text file")
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError as error:
        if _is_mostly_utf8(data):
            raise DatasetError(
                f"line {_line(data, error.start)}: byte {error.start} is not valid utf-8, which "
                "the rest of the file is; mend it, or name the encoding"
            ) from error
        return _strict(data, FALLBACK), FALLBACK


def _is_mostly_utf8(data: bytes) -> bool:
    """Whether at least as many signs beyond ASCII are valid UTF-8 as there are stray bytes.

    Texts of other encodings hardly ever have a valid one.
    """
    valid = data.decode("utf-8", errors="ignore")
    stray = len(data) - len(valid.encode())
    ascii_only = data.translate(None, bytes(range(0x80, 0x100)))
    return len(valid) - len(ascii_only) >= stray


def _known(encoding: str) -> str:
    try:
        "".encode(encoding)
        return codecs.lookup(encoding).name
    except (LookupError, UnicodeError, ValueError) as error:
        raise DatasetError(f"no encoding {encoding!r}; name one such as utf-8 or cp1252") from error


def _strict(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"line {_line(data, error.start)}: byte {error.start} is not valid {encoding}; "
            "save the file as UTF-8"
        ) from error
    except UnicodeError as error:
        raise DatasetError(f"the file is not valid {encoding}; save it as UTF-8") from error


def _line(data: bytes, offset: int) -> int:
    return data.count(b"\n", 0, offset) + 1
