"""Instants in documents: whole microseconds since 1970, by the server's clock.

BSON's own dates have milliseconds only, and a start that somebody chose to the microsecond has to
come back as it was. Durations in expressions are microseconds as well.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = 1_000_000

# The server's clock in an expression: no client's clock decides anything.
NOW: Final[dict[str, Any]] = {"$multiply": [{"$toLong": "$$NOW"}, 1_000]}


def micros(instant: datetime) -> int:
    """An instant as documents keep it."""
    return (instant - _EPOCH) // _MICROSECOND


def instant(value: int) -> datetime:
    """An instant of a document, in UTC."""
    return _EPOCH + timedelta(microseconds=value)


def instant_or_none(value: int | None) -> datetime | None:
    """As `instant`, None for None."""
    return None if value is None else instant(value)


def span(seconds: float) -> int:
    """A duration as documents keep it."""
    return round(seconds * _SECOND)


def seconds(value: int) -> float:
    """A duration of a document."""
    return value / _SECOND


def now_plus(duration_seconds: float) -> dict[str, Any]:
    """An expression: the server's clock and so much more."""
    return {"$add": [NOW, span(duration_seconds)]}
