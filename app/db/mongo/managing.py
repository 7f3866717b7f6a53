"""Watching and managing jobs in MongoDB: lists, deletion, changes of many; it schedules nothing."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import pymongo
from pymongo import UpdateOne
from pymongo.errors import ExecutionTimeout

from app.db.mongo import searching
from app.db.mongo.calls import Session, job_key, key_of
from app.db.mongo.connections import Document
from app.db.mongo.ending import MongoEnding
from app.db.mongo.indexes import BELONGINGS
from app.db.mongo.instants import NOW, instant, instant_or_none
from app.db.mongo.texts import unpacked
from app.domain.errors import (
    DatabaseUnavailableError,
    IllegalTransitionError,
    QuotaExceededError,
    SearchTooLongError,
)
from app.domain.jobs import TERMINAL_STATUSES, JobStatus, WakeUp
from app.domain.json_values import check_storable
from app.domain.keys import PendingCaps
from app.domain.managing import (
    MAX_BULK,
    MAX_COUNTED,
    MAX_PAGE,
    BulkChange,
    JobCount,
    JobFilter,
    JobPage,
    JobSummary,
)

SEARCH_SECONDS: Final = 2.0
# For the server to say that the time is over.
ANSWER_SECONDS: Final = 1.0
MAX_CLEARED: Final = 500
_TRIES: Final = 3
_SHOWN_CHARACTERS: Final = 500
_MORTAL: Final = (JobStatus.PENDING, JobStatus.RUNNING)
_UNDONE: Final = (JobStatus.FAILED, JobStatus.CANCELLED)


class MongoManaging(MongoEnding):
    """The part of `DBInterface` for those who watch and manage jobs."""

    # -- looking ------------------------------------------------------------------------------

    async def list_jobs(
        self, wanted: JobFilter, *, limit: int, before: str | None = None
    ) -> JobPage:
        """See DBInterface."""
        return await self._find(wanted, limit, before)

    async def count_jobs(self, wanted: JobFilter) -> JobCount:
        """See DBInterface."""
        return await self._count_jobs(wanted)

    async def get_payload(self, job_id: str) -> str:
        """See DBInterface."""
        async with self._at_one_instant() as session:
            pieces = await self._pieces(session, "job_payloads", job_key(job_id))
            is_there = await self._is_there(job_id, session)
        if not pieces or not is_there:
            raise await self._missing(job_id)
        return (await unpacked(pieces)).decode()

    async def list_checkpoint_stages(self, job_id: str) -> list[str]:
        """See DBInterface."""
        async with self._bounded():
            found = self._collection("job_checkpoints").find(
                {"job_id": key_of(job_id), "n": 0}, {"stage": 1}
            )
            stages = [checkpoint["stage"] async for checkpoint in found.sort([("saved_no", 1)])]
            return stages if stages and await self._is_there(job_id) else []

    async def _find(
        self, wanted: JobFilter, limit: int, before: str | None, *, without_wish: bool = False
    ) -> JobPage:
        _check(wanted)
        cursor = None if before is None else key_of(before) or None
        stages = searching.page(wanted, limit, cursor, without_wish=without_wish)
        async with self._searching() as session:
            rows = await self._found(stages, session)
            if len(rows) > limit:
                return JobPage(tuple(map(_summary, rows[:limit])), rows[limit - 1]["_id"])
            edge = await self._found(searching.edge(wanted, cursor), session)
        return JobPage(tuple(map(_summary, rows)), edge[0]["_id"] if edge else None)

    async def _count_jobs(
        self, wanted: JobFilter, before: str | None = None, *, without_wish: bool = False
    ) -> JobCount:
        _check(wanted)
        cursor = None if before is None else key_of(before)
        stages = searching.count(wanted, cursor, without_wish=without_wish)
        async with self._searching() as session:
            counted = await self._found(stages, session)
            edge = await self._found(searching.edge(wanted, cursor), session)
        n = int(counted[0]["n"]) if counted else 0
        return JobCount(min(n, MAX_COUNTED), n <= MAX_COUNTED and not edge)

    @asynccontextmanager
    async def _searching(self) -> AsyncIterator[Session]:
        """A snapshot to search, so that the edge is the page's; the server ends it in time."""
        patience = SEARCH_SECONDS + ANSWER_SECONDS
        async with self._at_one_instant(patience) as session:
            try:
                # Not the driver's own bound: it would be the server's as well, and whether that one
                # has said so before the driver hangs up is a matter of luck.
                with pymongo.timeout(None):
                    async with asyncio.timeout(patience):
                        yield session
            except ExecutionTimeout:
                raise SearchTooLongError(SEARCH_SECONDS) from None

    async def _found(self, stages: list[Document], session: Session) -> list[Document]:
        found = await self._collection("jobs").aggregate(
            stages, session=session, maxTimeMS=max(1, int(SEARCH_SECONDS * 1_000))
        )
        return [row async for row in found]

    # -- acting on jobs -----------------------------------------------------------------------

    async def delete_job(self, job_id: str) -> None:
        """See DBInterface."""
        key = job_key(job_id)
        for _ in range(_TRIES):
            if gone := await self._in_transaction(lambda s: self._delete_jobs([key], s)):
                await self._clear_away(gone)
                return
            status = await self._get_status(job_id)
            if not status.is_terminal:
                raise IllegalTransitionError(status, "deleted")
        raise DatabaseUnavailableError(f"job {job_id} changes too quickly")

    async def cancel_jobs(self, wanted: JobFilter) -> BulkChange:
        """See DBInterface."""
        return await self._change_many(wanted, _MORTAL, without_wish=True)

    async def retry_jobs(self, wanted: JobFilter, caps: PendingCaps | None = None) -> BulkChange:
        """See DBInterface."""
        is_meant = wanted.statuses or wanted.ids is not None
        statuses = tuple(TERMINAL_STATUSES) if is_meant else _UNDONE
        return await self._change_many(wanted, statuses, caps)

    async def _change_many(
        self,
        wanted: JobFilter,
        open_statuses: tuple[JobStatus, ...],
        caps: PendingCaps | None = None,
        *,
        without_wish: bool = False,
    ) -> BulkChange:
        """Page by page, so that no transaction holds many documents for long."""
        statuses = tuple(s for s in wanted.statuses or open_statuses if s in open_statuses)
        if not statuses:
            return BulkChange(0, 0, 0)
        wanted = dataclasses.replace(wanted, statuses=statuses)
        loop = asyncio.get_running_loop()
        # Each page has its own bound; together they leave room for the last one.
        end = loop.time() + self._command_timeout_seconds / 2
        matched = changed = 0
        held: list[str] = []
        before: str | None = None
        while True:
            limit = min(MAX_PAGE, MAX_BULK - changed)
            page = await self._find(wanted, limit, before, without_wish=without_wish)
            if page.jobs:
                # Whoever has another status by now was not asked for.
                keys = [job.id for job in page.jobs]
                done, violated = await self._change(keys, statuses, caps)
                matched += len(keys)
                changed += done
                held += violated
            before = page.before
            # Those without room do not count: behind them may be jobs of others.
            if before is None or changed >= MAX_BULK or loop.time() > end:
                break
        if before is None and held and not changed:
            raise QuotaExceededError(tuple(sorted(set(held))))
        left = 0
        if before is not None:
            rest = await self._count_jobs(wanted, before, without_wish=without_wish)
            left = rest.count if rest.is_exact else max(rest.count, 1)
        return BulkChange(matched + left, changed, len(held) + left)

    async def _change(
        self, keys: list[str], statuses: tuple[JobStatus, ...], caps: PendingCaps | None
    ) -> tuple[int, list[str]]:
        """Cancel or retry those that are still in one of these statuses; as `_retry` returns."""
        if set(statuses) <= set(_MORTAL):
            asked = await self._cancel(keys, statuses)
            if JobStatus.RUNNING in asked.values():
                self._request_wake_up(WakeUp.CONTROL)
            return len(asked), []
        revived, violated = await self._retry(keys, statuses, caps)
        if revived:
            self._request_wake_up(WakeUp.JOBS)
        return revived, violated

    async def _delete_jobs(self, keys: Iterable[str], session: Session) -> list[str]:
        """Remove those that have ended and say which; what belongs to them is to be cleared away.

        Not in the same transaction: the logs alone of one job may have more lines than any server
        keeps in its cache for one. Their tombstones say that something is left.
        """
        jobs = self._collection("jobs")
        ended = {
            "_id": {"$in": list(keys)},
            "status": {"$in": [status.value for status in TERMINAL_STATUSES]},
        }
        gone = [job["_id"] async for job in jobs.find(ended, {"_id": 1}, session=session)]
        if gone:
            await jobs.delete_many({"_id": {"$in": gone}}, session=session)
            tombstone = [{"$set": {"deleted_at": NOW, "is_left": True}}]
            await self._collection("deleted_jobs").bulk_write(
                [UpdateOne({"_id": key}, tombstone, upsert=True) for key in gone], session=session
            )
        return gone

    async def _clear_away(self, gone: Sequence[str] | None = None) -> None:
        """Remove what deleted jobs have left: these, or those of processes that died meanwhile.

        What is removed stays so where the time is over, and the next call goes on from there.
        """
        async with self._bounded():
            tombstones = self._collection("deleted_jobs")
            if gone is None:
                left = tombstones.find({"is_left": True}, {"_id": 1}).limit(MAX_CLEARED)
                gone = [tombstone["_id"] async for tombstone in left]
            if not gone:
                return
            for name in BELONGINGS:
                await self._collection(name).delete_many({"job_id": {"$in": gone}})
            await tombstones.update_many({"_id": {"$in": gone}}, {"$unset": {"is_left": ""}})


def _check(wanted: JobFilter) -> None:
    """InvalidJsonError for texts that no document can hold."""
    check_storable(
        {
            "pipeline": wanted.pipeline,
            "queue": wanted.queue,
            "tag": wanted.tags,
            "error": wanted.error,
            "submitted_by": wanted.submitted_by,
        }
    )


def _summary(found: Document) -> JobSummary:
    latest = found["latest"] or {}
    message = latest.get("error_message")
    return JobSummary(
        id=found["_id"],
        status=JobStatus(found["status"]),
        pipeline=found["pipeline"],
        queue=found["queue"],
        priority=found["priority"],
        attempt=found["attempt"],
        max_attempts=found["max_attempts"],
        node_id=found["node_id"],
        batch_id=found["batch_id"],
        submitted_by=found["submitted_by"],
        tags=tuple(found["tags"]),
        created_at=instant(found["created_at"]),
        run_at=instant(found["run_at"]),
        started_at=instant_or_none(found["started_at"]),
        finished_at=instant_or_none(found["finished_at"]),
        cancel_requested_at=instant_or_none(found["cancel_requested_at"]),
        progress_fraction=latest.get("progress_fraction"),
        progress_stage=latest.get("progress_stage"),
        cause=latest.get("cause"),
        error_class=latest.get("error_class"),
        error_message=message and message[:_SHOWN_CHARACTERS],
    )
