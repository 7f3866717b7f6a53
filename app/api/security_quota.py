"""Caps on what one key may have: pending jobs, the bytes of their payloads, and stored datasets.

The count is the database's, at most a second old, plus what this process has let in since. A cap
may therefore be exceeded by what arrives during a count, and by what other processes let in within
a second; it holds against a client that goes on submitting, which is what it is for.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from fastapi import Request

from app.api.problems import QUOTA_RETRY_SECONDS, Problem
from app.api.security import Access
from app.api.security_cache import BriefCache
from app.db.contracts.keys import KeyStore
from app.domain.keys import ApiKey, PendingCaps, Scope

COUNT_SECONDS: Final = 1.0
# Before anybody is turned away the count is made anew, if it is older than this.
FRESH_SECONDS: Final = 0.1
MAX_COUNTED_KEYS: Final = 1_000


@dataclass(slots=True)
class _Waiting:
    """What a key has waiting as far as is known; grows with what is let in."""

    jobs: int
    size_bytes: int


class Quota:
    """The caps of all keys; requests without a key have none."""

    def __init__(self, db: KeyStore, access: Access) -> None:
        self._db = db
        self._access = access
        self._waiting: BriefCache[str, _Waiting] = BriefCache(
            self._count, seconds=COUNT_SECONDS, max_entries=MAX_COUNTED_KEYS
        )

    async def admit(
        self, http: Request, jobs: int, size_bytes: int, keys: Collection[str | None] = ()
    ) -> dict[str, str]:
        """Count these jobs in; call it right before they are stored.

        Returns headers that tell how much room is left, none where there is no cap.

        Args:
            keys: idempotency keys of all these jobs. Where each has made its job before, this is a
                repetition that stores nothing, and it is not refused.

        Raises:
            Problem: 429, none of them is to be stored.
        """
        key: ApiKey | None = getattr(http.state, "api_key", None)
        if key is None:
            return {}
        caps = self._caps_of(key)
        wanted = {"pending-jobs": jobs, "pending-bytes": size_bytes}
        waiting = await self._known(key.id)
        if _exceeded(caps, waiting, wanted):
            waiting = await self._known(key.id, FRESH_SECONDS)
        exceeded = _exceeded(caps, waiting, wanted)
        if exceeded and await self._are_known(http, keys):
            return _headers(caps, waiting)
        if exceeded:
            raise _refusal(exceeded, _headers(caps, waiting))
        waiting.jobs += jobs
        waiting.size_bytes += size_bytes
        return _headers(caps, waiting)

    async def refusal(self, http: Request, exceeded: Sequence[str]) -> Problem:
        """What tells that there is no room for a job of the request's key to begin again."""
        key: ApiKey | None = getattr(http.state, "api_key", None)
        if key is None or key.allows(Scope.ADMIN):
            return _refusal(exceeded, {})  # the job may be of another key, whose room is not told
        waiting = await self._known(key.id, FRESH_SECONDS)
        return _refusal(exceeded, _headers(self._caps_of(key), waiting))

    @property
    def caps(self) -> PendingCaps:
        """Of keys that have none of their own."""
        return PendingCaps(self._access.max_pending_jobs, self._access.max_pending_bytes)

    async def admit_datasets(self, http: Request, under_way: int) -> None:
        """Refuse a dataset of a key that has as many as it may; Problem 429.

        Args:
            under_way: of this key, this one among them.
        """
        key: ApiKey | None = getattr(http.state, "api_key", None)
        cap = self._access.max_datasets
        if key is not None and await self._db.count_datasets(key.id) + under_way > cap:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                "quota-exceeded",
                f"this key has stored {cap} datasets already; delete what is not needed",
                headers={"Retry-After": str(QUOTA_RETRY_SECONDS), "Connection": "close"},
                violated_policies=["datasets"],
            )

    def _caps_of(self, key: ApiKey) -> dict[str, int]:
        return {
            "pending-jobs": _either(key.max_pending_jobs, self._access.max_pending_jobs),
            "pending-bytes": _either(key.max_pending_bytes, self._access.max_pending_bytes),
        }

    async def close(self) -> None:
        """End what goes on beside the requests."""
        await self._waiting.close()

    async def _are_known(self, http: Request, keys: Collection[str | None]) -> bool:
        named = [key for key in keys if key is not None]
        if not named or len(named) < len(keys):
            return False
        return await self._db.count_keys_used(http.state.submitter, named) == len(set(named))

    async def _known(self, key_id: str, max_seconds: float | None = None) -> _Waiting:
        waiting = await self._waiting.get(key_id, max_seconds)
        assert waiting is not None  # noqa: S101  a count is a number, if 0
        return waiting

    async def _count(self, key_id: str) -> _Waiting:
        pending = await self._db.count_pending(key_id)
        return _Waiting(pending.jobs, pending.size_bytes)


def _refusal(exceeded: Sequence[str], room: dict[str, str]) -> Problem:
    return Problem(
        HTTPStatus.TOO_MANY_REQUESTS,
        "quota-exceeded",
        f"too much of this key is waiting already: {', '.join(exceeded)}",
        headers={"Retry-After": str(QUOTA_RETRY_SECONDS), **room},
        violated_policies=exceeded,
    )


def _either(own: int | None, general: int) -> int:
    return general if own is None else own


def _by_name(waiting: _Waiting) -> dict[str, int]:
    return {"pending-jobs": waiting.jobs, "pending-bytes": waiting.size_bytes}


def _exceeded(caps: dict[str, int], waiting: _Waiting, wanted: dict[str, int]) -> list[str]:
    known = _by_name(waiting)
    return [name for name, cap in caps.items() if known[name] + wanted[name] > cap]


def _headers(caps: dict[str, int], waiting: _Waiting) -> dict[str, str]:
    """Structured fields after draft-ietf-httpapi-ratelimit-headers."""
    known = _by_name(waiting)
    units = {"pending-jobs": "concurrent-requests", "pending-bytes": "content-bytes"}
    policies = [f'"{name}";q={cap};qu="{units[name]}"' for name, cap in caps.items()]
    left = [f'"{name}";r={max(0, cap - known[name])}' for name, cap in caps.items()]
    return {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(left)}
