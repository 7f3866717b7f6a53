"""Following jobs in MongoDB, and pages of what attempts left behind. It only reads."""

from collections.abc import Sequence
from typing import Final

from app.db.mongo.calls import key_of
from app.db.mongo.connections import Document
from app.db.mongo.documents import events_of, progress_of, version_of
from app.db.mongo.instants import instant
from app.db.mongo.reading import MongoReading
from app.domain.following import (
    LOG_LINES_LOOKED_AT,
    Checkpoint,
    FollowCursor,
    FoundLines,
    JobNews,
    LogCursor,
    StoredEvent,
    StoredLine,
)
from app.domain.jobs import Attempt, JobStatus
from app.domain.json_values import storable_text

# It comes again in a moment: better than to hang on a connection that went silent.
NEWS_TIMEOUT_SECONDS: Final = 5.0


class MongoFollowing(MongoReading):
    """The part of `DBInterface` about following."""

    async def list_news(self, cursors: Sequence[FollowCursor], limit: int) -> list[JobNews]:
        """See DBInterface."""
        keys = sorted({key_of(cursor.job_id) for cursor in cursors})
        async with self._bounded(NEWS_TIMEOUT_SECONDS):
            found = self._collection("jobs").find({"_id": {"$in": keys}})
            jobs = {job["_id"]: job async for job in found}
            news = []
            for place, cursor in enumerate(cursors):
                job = jobs.get(key_of(cursor.job_id))
                version = version_of(job)
                if version == cursor.version:
                    continue
                news.append(
                    JobNews(
                        cursor=place,
                        status=None if job is None else JobStatus(job["status"]),
                        version=version,
                        progress=None if job is None else progress_of(job["latest"] or {}),
                        events=tuple(await self._events_after(job, cursor.after, limit)),
                    )
                )
        return news

    async def _events_after(
        self, job: Document | None, after: int | None, limit: int
    ) -> list[StoredEvent]:
        """The job's events after this one, as of its document: later ones wait for a later look."""
        if job is None or after is None:
            return []
        held = job["events"]
        first_held = held[0]["id"] if held else job["last_event_id"] + 1
        moved: list[Document] = []
        if after < first_held - 1:
            parts = self._collection("job_events").find(
                {"job_id": job["_id"], "last_id": {"$gt": after}}
            )
            async for part in parts.sort([("last_id", 1)]):
                moved += [event for event in part["events"] if event["id"] < first_held]
                if len(moved) > limit + len(part["events"]):
                    break
        return events_of([event for event in moved + held if event["id"] > after][:limit])

    async def list_lines(self, cursors: Sequence[LogCursor], limit: int) -> list[FoundLines]:
        """See DBInterface."""
        if limit < 1:
            return [FoundLines((), cursor.after, is_whole=True) for cursor in cursors]
        async with self._bounded(NEWS_TIMEOUT_SECONDS):
            return [await self._lines_after(cursor, limit) for cursor in cursors]

    async def _lines_after(self, cursor: LogCursor, limit: int) -> FoundLines:
        logs, job_id = self._collection("job_logs"), key_of(cursor.job_id)
        last = await logs.find_one({"job_id": job_id}, {"id": 1}, sort=[("id", -1)])
        if last is None or last["id"] <= cursor.after or not await self._is_there(job_id):
            return FoundLines((), cursor.after, is_whole=True)
        # A job's lines are numbered without a gap, so a look has its end before it begins.
        looked_at = LOG_LINES_LOOKED_AT if cursor.least_level > 0 else limit
        end = min(last["id"], cursor.after + looked_at)
        found = logs.find(
            {
                "job_id": job_id,
                "id": {"$gt": cursor.after, "$lte": end},
                "level": {"$gte": cursor.least_level},
            }
        )
        lines = tuple([_line(line) async for line in found.sort([("id", 1)]).limit(limit)])
        if len(lines) == limit:
            return FoundLines(lines, lines[-1].id, is_whole=False)
        return FoundLines(lines, end, is_whole=end - cursor.after < looked_at)

    async def find_log_tail(self, job_id: str, lines: int, least_level: int = 0) -> int:
        """See DBInterface."""
        async with self._bounded():
            found = self._collection("job_logs").find(
                {"job_id": key_of(job_id), "level": {"$gte": least_level}}, {"id": 1}
            )
            tail = [line async for line in found.sort([("id", -1)]).skip(lines).limit(1)]
            return int(tail[0]["id"]) if tail and await self._is_there(job_id) else 0

    async def list_attempts_after(self, job_id: str, claim_no: int, limit: int) -> list[Attempt]:
        """See DBInterface."""
        return [] if limit < 1 else await self._attempts_after(job_id, claim_no, limit)

    async def list_checkpoints(self, job_id: str, after: str, limit: int) -> list[Checkpoint]:
        """See DBInterface."""
        if limit < 1:
            return []  # to the server none means all
        async with self._bounded():
            found = self._collection("job_checkpoints").find(
                {"job_id": key_of(job_id), "n": 0, "stage": {"$gt": storable_text(after)}},
                {"stage": 1, "claim_no": 1, "stored_bytes": 1, "saved_at": 1},
            )
            checkpoints = [
                Checkpoint(
                    checkpoint["stage"],
                    checkpoint["claim_no"],
                    checkpoint["stored_bytes"],
                    instant(checkpoint["saved_at"]),
                )
                async for checkpoint in found.sort([("stage", 1)]).limit(limit)
            ]
            return checkpoints if checkpoints and await self._is_there(job_id) else []


def _line(found: Document) -> StoredLine:
    return StoredLine(
        id=found["id"],
        attempt=found["attempt"],
        number=found["line_no"],
        level=found["level"],
        source=found["source"],
        text=found["line"],
        at=instant(found["at"]),
    )
