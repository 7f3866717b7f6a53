"""What a client says about waiting and about what it has already: `Prefer`, `?wait=`, ETags."""

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

from fastapi import Header, Query, Request

from app.domain.jobs import Job

MAX_WAIT_SECONDS: Final = 30
# Seconds until asking again makes sense, by the age up to which they hold.
_RETRY_AFTER: Final = ((10, 2), (60, 5), (600, 10))
_LATE_RETRY_AFTER: Final = 30

_T = TypeVar("_T")


class Wait:
    """How long a client lets itself be kept waiting; for `Depends()`.

    Attributes:
        seconds: 0 where it wants an answer at once; at most MAX_WAIT_SECONDS.
        applied: what `Preference-Applied` has to say, None where no preference was followed.
    """

    def __init__(
        self,
        http: Request,
        wait: Annotated[
            float | None,
            Query(
                ge=0,
                allow_inf_nan=False,
                description=f"Seconds; at most {MAX_WAIT_SECONDS} are waited.",
            ),
        ] = None,
        prefer: Annotated[
            str | None, Header(description="`wait=N` waits as the query parameter does (RFC 7240).")
        ] = None,
    ) -> None:
        del prefer  # declared for the documentation; there may be several lines of it
        self.applied: str | None = None
        if wait is not None:
            self.seconds = min(wait, float(MAX_WAIT_SECONDS))
            return
        self.seconds = 0.0
        preferred = _preferred_wait(http.headers.getlist("prefer"))
        if preferred is not None:
            self.seconds = float(preferred)
            self.applied = f"wait={preferred}"


def _preferred_wait(lines: list[str]) -> int | None:
    """Seconds of the first `wait`; what cannot be understood is to be ignored (RFC 7240, 2)."""
    for preference in ",".join(lines).split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        if name.strip().lower() != "wait":
            continue
        value = value.strip().strip('"')
        if not value:
            return MAX_WAIT_SECONDS
        if value.isascii() and value.isdecimal():
            # More than nine digits are more than the bound, whatever they say.
            return min(int(value[:9]), MAX_WAIT_SECONDS)
        return None
    return None


def etag_of(job: Job) -> str:
    """Weak: it stands for what is told, not for the bytes."""
    return f'W/"{job.version}"'


def is_known(job: Job, if_none_match: str | None) -> bool:
    """Whether a client has this version of a job already."""
    if if_none_match is None:
        return False
    tags = (tag.strip().removeprefix("W/") for tag in if_none_match.split(","))
    return any(tag in {"*", f'"{job.version}"'} for tag in tags)


def retry_after_seconds(job: Job) -> int:
    """When to ask again for a job that has not ended: the longer it takes, the later."""
    # A job that is due in an hour or was due an hour ago will not end within seconds.
    seconds = abs((datetime.now(UTC) - job.run_at).total_seconds())
    return next((after for age, after in _RETRY_AFTER if seconds < age), _LATE_RETRY_AFTER)


async def unless_gone(http: Request, work: Coroutine[Any, Any, _T]) -> _T | None:
    """What `work` returns; None as soon as the client has left, and `work` is cancelled then.

    The server cancels no request by itself, and who left would be waited for to the end.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_until_gone(http))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _until_gone(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
