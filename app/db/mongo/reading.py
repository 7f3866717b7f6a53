"""Reads of one job from MongoDB."""

from typing import Final

from app.db.mongo.calls import MongoCalls, job_key, key_of
from app.db.mongo.connections import Document
from app.db.mongo.documents import attempt_of, job_of
from app.db.mongo.instants import instant
from app.domain.following import MILESTONE_KIND
from app.domain.jobs import Attempt, Job, LogLine, Milestone

# Of a job's document what one look at it needs; its events may be many times as large.
WITHOUT_EVENTS: Final[Document] = {"events": 0}


class MongoReading(MongoCalls):
    """The part of `DBInterface` about single jobs."""

    async def get_job(self, job_id: str) -> Job:
        """See DBInterface."""
        async with self._bounded():
            found = await self._collection("jobs").find_one(
                {"_id": job_key(job_id)}, WITHOUT_EVENTS
            )
        if found is None:
            raise await self._missing(job_id)
        return job_of(found)

    async def list_milestones(self, job_id: str) -> list[Milestone]:
        """See DBInterface."""
        async with self._bounded():
            # The document first: what is moved beside it meanwhile is found twice, never missed.
            job = await self._collection("jobs").find_one({"_id": key_of(job_id)}, {"events": 1})
            moved = self._collection("job_events").find({"job_id": key_of(job_id)})
            parts = [part["events"] async for part in moved]
        if job is None:
            return []
        parts.append(job["events"])
        events = {event["id"]: event for part in parts for event in part}
        return [
            Milestone(
                id=event["id"],
                attempt=event["attempt"],
                stage=event["stage"],
                fraction=event["fraction"],
                message=event["message"],
                created_at=instant(event["at"]),
            )
            for _, event in sorted(events.items())
            if event["kind"] == MILESTONE_KIND
        ]

    async def list_attempts(self, job_id: str) -> list[Attempt]:
        """See DBInterface."""
        return await self._attempts_after(job_id, 0)

    async def list_logs(self, job_id: str, limit: int = 1_000) -> list[LogLine]:
        """See DBInterface."""
        if limit < 1:
            return []  # to the server none means all
        async with self._bounded():
            found = self._collection("job_logs").find({"job_id": key_of(job_id)})
            lines = [line async for line in found.sort([("id", -1)]).limit(limit)]
            if not await self._is_there(job_id):
                return []
        return [
            LogLine(
                line["line_no"], line["level"], line["source"], line["line"], instant(line["at"])
            )
            for line in reversed(lines)
        ]

    async def _attempts_after(
        self, job_id: str, claim_no: int, limit: int | None = None
    ) -> list[Attempt]:
        """The claims of a job after this one: those that ended, and the one that runs."""
        key = key_of(job_id)
        async with self._bounded():
            # In this order: an attempt that ends meanwhile is found twice, never missed.
            job = await self._collection("jobs").find_one({"_id": key}, {"latest": 1})
            found = self._collection("job_attempts").find(
                {"job_id": key, "claim_no": {"$gt": claim_no}}
            )
            ended = [a async for a in found.sort([("claim_no", 1)]).limit(limit or 0)]
        if job is None:
            return []
        attempts = {attempt["claim_no"]: attempt for attempt in ended}
        latest = job["latest"]
        if latest and latest["claim_no"] > claim_no:
            attempts.setdefault(latest["claim_no"], latest)
        return [attempt_of(attempts[number]) for number in sorted(attempts)[:limit]]
