"""Trying a call again: when, after how long, and so that people can see why nothing happens."""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

from app.pipelines.llm.concurrency import AdaptiveLimit
from app.pipelines.llm.interface import LLMUnavailableError, OnFailedTry

# A server may ask for hours. A job that waited would hold a worker for so long: after a second call
# the model is lost to this attempt, with the time after which another one may be of use.
MAX_ASKED_SECONDS: Final = 120.0
FIRST_PAUSE_SECONDS: Final = 1.0
# Calls that were told the same wait must not all come back in the same instant.
SPREAD_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 30.0

_TOO_MANY: Final = 429
_WORTH_ANOTHER_TRY: Final = frozenset(
    {408, 409, 425, _TOO_MANY, 500, 502, 503, 504, 520, 522, 524, 529}
)

T = TypeVar("T")


class FailedTryError(LLMUnavailableError):
    """One try of a call failed.

    Attributes:
        wait_seconds: what the server asked for before the next one, None where it did not.
    """

    def __init__(
        self,
        reason: str,
        status: int | None = None,
        *,
        is_final: bool = False,
        is_charged: bool = False,
        wait_seconds: float | None = None,
    ) -> None:
        super().__init__(
            reason, status, is_final=is_final, is_charged=is_charged, later_seconds=wait_seconds
        )
        self.wait_seconds = wait_seconds


class BrokenOffError(FailedTryError):
    """A try that was under way when its task was told to end."""

    def __init__(self) -> None:
        super().__init__("broken off before it was answered", is_final=True, is_charged=True)


class OversizedAnswerError(FailedTryError):
    """The answer was longer than is read; the same question would bring it again."""

    def __init__(self, origin: str, limit_bytes: int) -> None:
        reason = f"{origin} sends more than {limit_bytes} bytes"
        super().__init__(reason, is_final=True, is_charged=True)


def is_worth_another_try(status: int) -> bool:
    """Whether the same request may be answered later."""
    return status in _WORTH_ANOTHER_TRY


def asked_wait_seconds(
    headers: Mapping[str, str], now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> float | None:
    """What Retry-After asks for: milliseconds, seconds or an HTTP date; None without sense.

    A date counts from the server's own Date where that is given, so that clocks need not agree.
    """
    for name, unit_seconds in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit_seconds
        except (KeyError, ValueError):
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    until = _date(headers.get("retry-after"))
    if until is None:
        return None
    since = _date(headers.get("date")) or now()
    return max(0.0, (until - since).total_seconds())


def _date(text: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(text or "")
        return date.astimezone(UTC) if date.tzinfo else date.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        # A year or a zone beyond all bounds.
        return None


class Retrying:
    """Makes a call until it succeeds, fails for good or has been tried often enough.

    A call that waits keeps its place among the calls under way: the others do not go on at the
    speed that was too much.

    Args:
        on_wait: told in one line for people why a call waits.
        chance: for the jitter.
    """

    def __init__(
        self,
        max_retries: int,
        limit: AdaptiveLimit,
        on_wait: Callable[[str], Awaitable[None]] | None = None,
        *,
        chance: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._max_retries = max_retries
        self._limit = limit
        self._on_wait = on_wait
        self._chance = chance or random.Random()  # noqa: S311  spreads load, no secret
        self._sleep = sleep

    async def call(
        self, once: Callable[[], Awaitable[T]], on_failed_try: OnFailedTry | None = None
    ) -> tuple[T, int]:
        """What `once` gives, and how many times it had failed before.

        Raises:
            LLMUnavailableError: the last failure, also where the server asks for a longer wait
                than MAX_ASKED_SECONDS.
        """
        retries = 0
        async with self._limit.slot() as slot:
            while True:
                try:
                    answer = await once()
                except asyncio.CancelledError:
                    if on_failed_try is not None:
                        await on_failed_try(BrokenOffError())
                    raise
                except FailedTryError as error:
                    if error.status == _TOO_MANY:
                        slot.is_limited()
                    if error.is_final or retries >= self._max_retries:
                        raise
                    if (error.wait_seconds or 0.0) > MAX_ASKED_SECONDS:
                        raise FailedTryError(
                            f"{error} (it asks to wait {error.wait_seconds:.0f} s)",
                            error.status,
                            is_charged=error.is_charged,
                            wait_seconds=error.wait_seconds,
                        ) from error
                    if on_failed_try is not None:
                        await on_failed_try(error)
                    await self._pause(error, retries)
                    retries += 1
                else:
                    slot.went_well()
                    return answer, retries

    async def _pause(self, error: FailedTryError, retries: int) -> None:
        """Wait as long as the server asks, and at random below a ceiling that doubles.

        Full jitter: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
        """
        asked = error.wait_seconds or 0.0
        ceiling = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(retries, 16))
        if asked:
            ceiling = min(ceiling, SPREAD_SECONDS)
        seconds = asked + self._chance.uniform(0, ceiling)
        if self._on_wait is not None:
            what = "for the LLM's rate limit" if error.status == _TOO_MANY else "to try again"
            await self._on_wait(f"waiting {what}, {seconds:.0f} s: {error}")
        await self._sleep(seconds)
