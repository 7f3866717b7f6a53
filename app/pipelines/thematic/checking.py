"""Checks of single payload values: each gives the value, or says which key is wrong and why."""

import re
from collections.abc import Mapping
from typing import Any, Final

from app.domain.errors import GiveUpError


class ParameterError(GiveUpError):
    """A value in the payload is unknown, missing or out of bounds.

    The message is kept with the job and shown to whoever may see it. So it never holds what may be
    a secret: texts under names like "api_key", addresses, words to mask, and the inside of objects
    and lists.

    Attributes:
        name: the key, with its place ("redact.emails", "answers[3]").
        value: what was found there, as far as it may be shown.
        remedy: what would be accepted.
    """

    def __init__(self, name: str, value: object, remedy: str) -> None:
        value = _presentable(name, value)
        super().__init__(f"{_cut(name)}={_cut(repr(value))}: {remedy}")
        self.name = name
        self.value = value
        self.remedy = remedy


NOT_SHOWN: Final = "(not shown)"
_SHOWN: Final = 80
_MAY_BE_SECRET: Final = re.compile(
    r"key|secret|token|passw|credential|auth|url|redact\.custom", re.IGNORECASE
)
_SIGNS_OF_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def kind(value: object) -> object:
    """What a value is, for errors about one that should have been an object or a list."""
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return "(a text)"
        case Mapping():
            return "(an object)"
        case list() | tuple():
            return "(a list)"
        case _:
            return f"({type(value).__name__})"


def _presentable(name: str, value: object) -> object:
    if not isinstance(value, str):
        return kind(value)
    return NOT_SHOWN if _MAY_BE_SECRET.search(name) else value


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def refuse_unknown(given: Mapping[str, Any], known: tuple[str, ...], prefix: str = "") -> None:
    """Refuse the first key that is not in `known`."""
    for key in given:
        if key not in known:
            remedy = f"unknown key; known: {', '.join(known)}"
            raise ParameterError(f"{prefix}{key}", NOT_SHOWN, remedy)


def mapping(payload: Mapping[str, Any], name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    """An object with no other keys than `known`; empty where it is absent."""
    value = payload.get(name, {})
    if not isinstance(value, Mapping):
        raise ParameterError(name, kind(value), f"give an object with the keys {', '.join(known)}")
    refuse_unknown(value, known, f"{name}.")
    return value


def integer(
    payload: Mapping[str, Any], name: str, default: int, low: int, high: int, prefix: str = ""
) -> int:
    """A whole number within its bounds."""
    value = payload.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ParameterError(f"{prefix}{name}", value, f"give a whole number from {low} to {high}")
    return value


def number(
    payload: Mapping[str, Any], name: str, default: float, low: float, high: float, prefix: str = ""
) -> float:
    """A number within its bounds."""
    value = payload.get(name, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise ParameterError(f"{prefix}{name}", value, f"give a number from {low:g} to {high:g}")
    return float(value)


def choice(
    payload: Mapping[str, Any], name: str, default: str, allowed: tuple[str, ...], prefix: str = ""
) -> str:
    """One of `allowed`."""
    value = payload.get(name, default)
    if not isinstance(value, str) or value not in allowed:
        raise ParameterError(f"{prefix}{name}", value, f"give one of {', '.join(allowed)}")
    return value


def flag(payload: Mapping[str, Any], name: str, prefix: str = "", *, default: bool = True) -> bool:
    """True or false, and nothing that merely looks like it."""
    value = payload.get(name, default)
    if not isinstance(value, bool):
        raise ParameterError(f"{prefix}{name}", value, "give true or false")
    return value


def text(
    payload: Mapping[str, Any], name: str, prefix: str = "", *, longest: int | None = None
) -> str | None:
    """A text that is not blank, None where it is absent."""
    value = payload.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        remedy = "give a text that is not blank, or leave the key out"
        raise ParameterError(f"{prefix}{name}", value, remedy)
    if longest is not None and len(value) > longest:
        raise ParameterError(f"{prefix}{name}", value, f"give at most {longest} characters")
    return value


def line(payload: Mapping[str, Any], name: str, prefix: str = "", *, longest: int) -> str | None:
    """A text of one line without control characters, None where it is absent."""
    value = text(payload, name, prefix, longest=longest)
    if value is not None and _SIGNS_OF_CONTROL.search(value):
        raise ParameterError(f"{prefix}{name}", value, "give one line without control characters")
    return value


def columns(payload: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A list of column names, each once."""
    value = payload.get(name, [])
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ParameterError(name, kind(value), "give a list of column names")
    if len(value) > MAX_COLUMNS or any(len(column) > MAX_COLUMN for column in value):
        remedy = f"give at most {MAX_COLUMNS} columns of at most {MAX_COLUMN:,} characters"
        raise ParameterError(name, value, remedy)
    if len(set(value)) != len(value):
        raise ParameterError(name, value, "name each column once")
    return tuple(value)


MAX_COLUMN: Final = 1_000
"""Of a column's name: in exports of surveys it is the whole question."""

MAX_COLUMNS: Final = 50
