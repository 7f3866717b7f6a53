"""Checks of single payload values: each gives the value, or says which key is wrong and why."""

import re
from collections.abc import Mapping
from typing import Any, Final

from app.domain.errors import GiveUpError


class ParameterError(GiveUpError):
    """A value in the payload is unknown, missing or out of bounds.

    Attributes:
        name: the key, with its place ("redact.emails", "answers[3]").
        value: what was found there.
        remedy: what would be accepted.
    """

    def __init__(self, name: str, value: object, remedy: str) -> None:
        shown = repr(value)
        super().__init__(
            f"{name}={shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '…'}: {remedy}"
        )
        self.name = name
        self.value = value
        self.remedy = remedy


_SHOWN: Final = 80
_SIGNS_OF_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def refuse_unknown(given: Mapping[str, Any], known: tuple[str, ...], prefix: str = "") -> None:
    """Refuse the first key that is not in `known`."""
    for key in given:
        if key not in known:
            raise ParameterError(
                f"{prefix}{key}", given[key], f"unknown key; known: {', '.join(known)}"
            )


def mapping(payload: Mapping[str, Any], name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    """An object with no other keys than `known`; empty where it is absent."""
    value = payload.get(name, {})
    if not isinstance(value, Mapping):
        raise ParameterError(name, value, f"give an object with the keys {', '.join(known)}")
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
        raise ParameterError(name, value, "give a list of column names")
    if len(set(value)) != len(value):
        raise ParameterError(name, value, "name each column once")
    return tuple(value)
