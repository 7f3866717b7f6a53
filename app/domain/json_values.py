"""Which JSON values can be stored and come back unchanged, and errors as text that can be stored.

PostgreSQL's jsonb refuses NUL characters and lone surrogates and has no NaN or infinities; depth
and size are bounded here so that every store and every Python version behaves alike.
"""

import json
import math
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from app.domain.errors import InvalidJsonError, TooLargeError
from app.domain.jobs import (
    MAX_JSON_DEPTH,
    MAX_TEXT_CHARACTERS,
    MAX_TRACEBACK_CHARACTERS,
    ErrorInfo,
)
from app.domain.masking import mask_secrets

# About 1,000 decimal digits: jsonb's numeric holds more, Python's own parser stops at 4,300.
_MAX_INTEGER_BITS: Final = 3_322

_MAX_INTEGER_DIGITS: Final = 1_000
_LONG_INTEGER: Final = re.compile(rf"[0-9]{{{_MAX_INTEGER_DIGITS + 1}}}")
_CONTAINERS: Final = (dict, list, tuple)
# jsonb knows no exponents: what Python writes as 1e+308 comes back as 309 digits.
_EXPONENT: Final = re.compile(r"[0-9]e[+-]([0-9]{2,3})")

TOO_DEEP: Final = f"nested deeper than {MAX_JSON_DEPTH} levels"
TOO_LONG_INTEGER: Final = "integer of more than 1,000 digits"


def check_storable(value: Any) -> None:
    """Raise InvalidJsonError with the pointer of the first place that cannot be stored unchanged.

    Tuples count as arrays. Works without recursion, so depth cannot exhaust the stack, and keeps
    one place a level, so that ten megabytes of small values take no memory beside them.
    """
    path: list[str] = []
    levels = [iter([("", value)])]
    while levels:
        for name, item in levels[-1]:
            # The outermost value has no name.
            path[len(levels) - 1 :] = [name]
            if isinstance(item, _CONTAINERS):
                if len(levels) > MAX_JSON_DEPTH:
                    raise InvalidJsonError(_pointer(path[1:]), TOO_DEEP)
                levels.append(_children(item, path[1:]))
                break
            if (reason := _unstorable(item)) is not None:
                raise InvalidJsonError(_pointer(path[1:]), reason)
        else:
            levels.pop()


def check_depth(value: Any, field: str) -> None:
    """InvalidJsonError where containers are nested too deeply or have keys other than text."""
    if not _is_well_formed(value):
        with _within(field):
            check_storable(value)


def dump_field(value: Any, field: str, limit_bytes: int) -> str:
    """As `dump_storable`, of a part of a request: pointers begin with its name."""
    with _within(field):
        return dump_storable(value, field, limit_bytes)


@contextmanager
def _within(field: str) -> Iterator[None]:
    try:
        yield
    except InvalidJsonError as error:
        raise InvalidJsonError(f"/{field}{error.pointer}", error.reason) from None


def dump_storable(value: Any, what: str, limit_bytes: int) -> str:
    """`value` as compact JSON text that the database takes and gives back unchanged.

    Raises:
        InvalidJsonError: with the pointer of the offending place.
        TooLargeError: above `limit_bytes` of UTF-8; `what` names the value in the message.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        check_storable(value)
        raise InvalidJsonError("", str(error)) from error
    check_size(text, what, limit_bytes)
    # Walking every value takes 4 us each, seconds for a large payload; the text is searched at
    # the speed of C, and only what looks wrong is walked to find the place.
    if _is_suspicious(text) or not _is_well_formed(value):
        check_storable(value)
    has_exponents = "e+" in text or "e-" in text
    if has_exponents and len(text) + sum(map(int, _EXPONENT.findall(text))) > limit_bytes:
        # Text may look like such numbers too, so they are counted now.
        size_bytes = len(text) + _unfolded_digits(value)
        if size_bytes > limit_bytes:
            raise TooLargeError(f"{what} with its numbers written out", size_bytes, limit_bytes)
    return text


def with_storable_texts(value: Any, depth: int = 0) -> Any:
    """A copy of JSON data with NUL and lone surrogates in its texts and keys replaced.

    What lies deeper than MAX_JSON_DEPTH stays as it is, for `dump_storable` to refuse.
    """
    if depth > MAX_JSON_DEPTH:
        return value
    match value:
        case str():
            return storable_text(value, len(value))
        case dict():
            return {
                with_storable_texts(key): with_storable_texts(item, depth + 1)
                for key, item in value.items()
            }
        case list() | tuple():
            return [with_storable_texts(item, depth + 1) for item in value]
        case _:
            return value


def _is_suspicious(text: str) -> bool:
    """Whether JSON text may hold NUL, a lone surrogate or a very long integer.

    One regular expression for all of it took 25 ns a character, with every other thread waiting.
    """
    if "\\u0000" in text:
        return True
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return True
    # So long a run of digits has one at a multiple of this distance.
    step = _MAX_INTEGER_DIGITS
    return any(
        sample.isdigit() and _LONG_INTEGER.search(text, max(0, at - step), at + step + 1)
        for at, sample in zip(range(0, len(text), step), text[::step], strict=True)
    )


def _unfolded_digits(value: Any) -> int:
    """How many digits the exponents of the numbers in `value` stand for."""
    digits = 0
    level = [value]
    while level:
        digits += sum(
            abs(int(math.log10(abs(item))))
            for item in level
            if isinstance(item, float) and item and not 1e-4 <= abs(item) < 1e16  # noqa: PLR2004  as repr
        )
        level = _contents([item for item in level if isinstance(item, _CONTAINERS)])
    return digits


def _contents(containers: list[Any]) -> list[Any]:
    return [
        child
        for container in containers
        for child in (container.values() if isinstance(container, dict) else container)
    ]


def _is_well_formed(value: Any) -> bool:
    """Whether containers are nested within bounds and have only text for keys."""
    level = [value]
    for _ in range(MAX_JSON_DEPTH + 1):
        level = [item for item in level if isinstance(item, _CONTAINERS)]
        if not level:
            return True
        if any(type(key) is not str for item in level if isinstance(item, dict) for key in item):
            return False
        level = _contents(level)
    return False


def check_size(text: str, what: str, limit_bytes: int) -> str:
    """`text` itself; TooLargeError where its UTF-8 form exceeds `limit_bytes`."""
    # Lone surrogates are found later; here they only must not fail.
    size_bytes = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > limit_bytes:
        raise TooLargeError(what, size_bytes, limit_bytes)
    return text


def storable_text(text: str, limit_characters: int = MAX_TEXT_CHARACTERS) -> str:
    """`text` without NUL and lone surrogates, cut to `limit_characters` with a visible mark."""
    clean = text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    clean = clean.encode("utf-8", "replace").decode("utf-8")
    if len(clean) <= limit_characters:
        return clean
    mark = " [cut]"
    return clean[: limit_characters - len(mark)] + mark


def describe_exception(
    error: BaseException, mask: Callable[[str], str] = mask_secrets
) -> ErrorInfo:
    """Class, message and traceback of `error` as storable text, whatever its methods do.

    Args:
        mask: hides secrets; those that are known by their form unless it knows more.
    """
    try:
        lines = traceback.format_exception(error)
    except BaseException:  # noqa: BLE001  user code may raise anything, from a chained exception too
        lines = [*traceback.format_tb(error.__traceback__), _class_name(error)]
    # Masked before it is cut, or half a secret stays; the end tells more than the beginning.
    tail = mask("".join(lines)[-2 * MAX_TRACEBACK_CHARACTERS :])[-MAX_TRACEBACK_CHARACTERS:]
    return ErrorInfo(
        error_class=storable_text(_class_name(error), 200),
        message=message_of(error, mask),
        traceback=storable_text(tail, MAX_TRACEBACK_CHARACTERS),
    )


def message_of(error: BaseException, mask: Callable[[str], str] = mask_secrets) -> str:
    """What `error` says, as storable text without secrets."""
    try:
        # A subclass of str may have methods of its own.
        message = str.__str__(str(error))
    except BaseException as broken:  # noqa: BLE001  user code may raise anything here
        message = f"(its __str__ raised {_class_name(broken)})"
    return storable_text(mask(message[: 2 * MAX_TEXT_CHARACTERS]))


def summary_of(error: BaseException) -> str:
    """Class and message on one line."""
    return f"{_class_name(error)}: {message_of(error)}"


def _class_name(error: BaseException) -> str:
    # Past a metaclass that has its own idea of it.
    name: str = type.__dict__["__qualname__"].__get__(type(error))
    return name


def _children(
    item: dict[Any, Any] | list[Any] | tuple[Any, ...], path: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    if not isinstance(item, dict):
        return ((str(index), child) for index, child in enumerate(item))
    for key in item:
        if not isinstance(key, str):
            reason = f"a key of type {type(key).__name__} is not a string"
            raise InvalidJsonError(_pointer(path), reason)
        if (unfit := _unfit(key)) is not None:
            raise InvalidJsonError(_pointer(path), unfit)
    return iter(item.items())


def _unstorable(item: Any) -> str | None:
    """Why a value that contains no others cannot be stored."""
    match item:
        case None | bool():
            return None
        case str():
            return _unfit(item)
        case int():
            return TOO_LONG_INTEGER if item.bit_length() > _MAX_INTEGER_BITS else None
        case float():
            return None if math.isfinite(item) else "NaN and infinities are not JSON"
        case _:
            return f"a value of type {type(item).__name__} is not JSON"


def _unfit(text: str) -> str | None:
    if "\x00" in text:
        return "NUL characters cannot be stored"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "lone surrogates cannot be stored"
    return None


def _pointer(path: Sequence[str]) -> str:
    return "".join(
        "/" + key.replace("~", "~0").replace("/", "~1").encode("utf-8", "replace").decode("utf-8")
        for key in path
    )
