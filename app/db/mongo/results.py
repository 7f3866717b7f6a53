"""Results in MongoDB: as they were stored, or parts that are cut out of them.

The server cannot look into a text, so parts are cut here, aside from the event loop.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final, TypeVar

from app.db.mongo.calls import job_key, key_of
from app.db.mongo.holding import MongoHolding
from app.db.mongo.texts import text_of, unpacked
from app.domain.jobs import JobStatus
from app.domain.results import RESULT_PIECE_BYTES, PartPage, ResultState, ThemeQuotes

_Part = TypeVar("_Part")

_SCHEMA: Final = "themes/1"
_TOLD: Final = (
    "question",
    "labelling",
    "input",
    "themes",
    "other",
    "failed",
    "non_answers",
    "insights",
    "metrics",
    "warnings",
)


class MongoResults(MongoHolding):
    """The part of `DBInterface` about results."""

    async def get_result(self, job_id: str) -> bytes | None:
        """See DBInterface."""
        result = await self._result(job_id)
        if result is None:
            await self.get_result_state(job_id)  # tells whether there is such a job
        return result

    async def list_result_pieces(self, job_id: str) -> list[bytes]:
        """See DBInterface."""
        result = await self._result(job_id) or b""
        starts = range(0, len(result), RESULT_PIECE_BYTES)
        return [result[start : start + RESULT_PIECE_BYTES] for start in starts]

    async def get_result_state(self, job_id: str) -> ResultState:
        """See DBInterface."""
        key = job_key(job_id)
        async with self._at_one_instant() as session:
            job = await self._collection("jobs").find_one(
                {"_id": key}, {"status": 1}, session=session
            )
            piece = await self._collection("job_results").find_one(
                {"job_id": key, "n": 0}, {"claim_no": 1}, session=session
            )
        if job is None:
            raise await self._missing(job_id)
        status = JobStatus(job["status"])
        has_result = piece is not None and status is JobStatus.COMPLETED
        return ResultState(status, piece["claim_no"] if piece and has_result else None)

    async def get_result_themes(self, job_id: str) -> str | None:
        """See DBInterface."""
        return await self._cut(job_id, _themes)

    async def get_theme_quotes(
        self, job_id: str, theme_id: str, limit: int, *, after: int = 0
    ) -> ThemeQuotes | None:
        """See DBInterface."""
        return await self._cut(job_id, lambda result: _quotes(result, theme_id, limit, after))

    async def list_assignments(self, job_id: str, limit: int, *, after: int = 0) -> PartPage | None:
        """See DBInterface."""
        return await self._cut(
            job_id, lambda result: _page(result.get("assignments") or [], limit, after)
        )

    async def _result(self, job_id: str) -> bytes | None:
        key = key_of(job_id)
        async with self._at_one_instant() as session:
            job = await self._collection("jobs").find_one(
                {"_id": key, "status": JobStatus.COMPLETED.value}, {"_id": 1}, session=session
            )
            pieces = [] if job is None else await self._pieces(session, "job_results", key)
        return await unpacked(pieces) if pieces else None

    async def _cut(
        self, job_id: str, cut: Callable[[dict[str, Any]], _Part | None]
    ) -> _Part | None:
        text = await self._result(job_id)

        def parse_and_cut() -> _Part | None:
            result = json.loads(text or b"null")
            is_analysis = isinstance(result, dict) and result.get("schema") == _SCHEMA
            return cut(result) if is_analysis else None

        return None if text is None else await asyncio.to_thread(parse_and_cut)


def _themes(result: dict[str, Any]) -> str:
    told = {name: result.get(name) for name in _TOLD}
    for name, left_out in (("other", ("sample", "suggested")), ("non_answers", ("texts",))):
        part = told[name]
        if isinstance(part, dict):
            told[name] = {key: value for key, value in part.items() if key not in left_out}
    return text_of(told)


def _quotes(result: dict[str, Any], theme_id: str, limit: int, after: int) -> ThemeQuotes | None:
    for theme in result.get("themes") or []:
        if isinstance(theme, dict) and theme.get("id") == theme_id:
            rest = {key: value for key, value in theme.items() if key != "quotes"}
            return ThemeQuotes(text_of(rest), _page(theme.get("quotes") or [], limit, after))
    return None


def _page(every: list[Any], limit: int, after: int) -> PartPage:
    some = every[after : after + limit]
    return PartPage(text_of(some), len(some), len(every) > after + limit)
