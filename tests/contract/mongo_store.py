"""MongoDB as the contract sees it: adapters to ask, and what happens behind their backs."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from contract.mongo_staging import StagedCall, StagedMongoJobsDB
from contract.stores import COUNTED_WAKE_UPS, PAUSED_QUEUES
from pymongo import MongoClient, ReturnDocument
from pymongo.collection import Collection
from support.waiting import eventually

from app.db.mongo import following, managing, places, searching
from app.db.mongo.calls import held_by
from app.db.mongo.documents import with_event
from app.db.mongo.indexes import BELONGINGS, INDEXES
from app.db.mongo.instants import NOW, span
from app.db.mongo.nodes import ALIVE
from app.domain.following import MILESTONE_KIND
from app.domain.jobs import ClaimedJob

_Answer = TypeVar("_Answer")

AGES = {
    "nodes": ("created_at", "heartbeat_at", "stopped_at"),
    "datasets": ("created_at",),
    "call_cache": ("created_at",),
    "deleted_jobs": ("deleted_at",),
}


class MongoStore:
    """MongoDB with the newest indexes.

    A job is held by a transaction that has changed its document. Of calls that are put in order a
    transaction stops where it is told to (`StagedCall`); a single update waits in the server.
    """

    name = "mongo"
    capabilities = frozenset({PAUSED_QUEUES, COUNTED_WAKE_UPS})
    # Few events lie in the job's own document.
    belongings = frozenset(BELONGINGS) - {"webhook_deliveries", "job_events"}
    bounded = (following, managing, places, searching)

    def __init__(self, url: str) -> None:
        self._url = url
        self._adapters: list[StagedMongoJobsDB] = []
        self._held_up: set[object] = set()
        # A synchronous one: tests with a loop of their own use it as well.
        self._client: MongoClient[dict[str, Any]] = MongoClient(url)

    def connect(self, *, notify: bool = True) -> StagedMongoJobsDB:
        adapter = StagedMongoJobsDB(
            self._url, self._held_up, default_pipeline="by-default", notify=notify
        )
        self._adapters.append(adapter)
        return adapter

    async def close(self) -> None:
        for adapter in self._adapters:
            await adapter.close()
        self._client.close()

    async def end_lease(self, node_id: str) -> None:
        ended = {"$subtract": ["$heartbeat_at", {"$add": ["$lease", span(1.0)]}]}
        self._set("nodes", node_id, heartbeat_at=ended)

    def leave_lease(self, node_id: str, seconds: float) -> None:
        """As if the node had renewed, and so much of its lease were left."""
        left = {"$add": [NOW, {"$subtract": [span(seconds), "$lease"]}]}
        self._set("nodes", node_id, heartbeat_at=left)

    def wait_for_the_end_of_the_lease(self, node_id: str) -> None:
        """Return once the server's clock says that it has ended; nothing else runs meanwhile."""
        while self._all("nodes").find_one({"_id": node_id, **ALIVE}):
            time.sleep(0.005)

    async def ask_to_cancel(self, job_id: str) -> None:
        self._set("jobs", job_id, cancel_requested_at=NOW)

    async def pause(self, queue: str) -> None:
        self._all("queues").insert_one({"_id": queue, "is_paused": True})

    async def let_wait(self, job_id: str, seconds: float) -> None:
        self._set("jobs", job_id, **_earlier(seconds, "run_at"))

    async def age(self, job_id: str, seconds: float) -> None:
        self._set("jobs", job_id, **_earlier(seconds, "created_at", "finished_at"))

    async def age_all(self, seconds: float) -> None:
        for name, fields in AGES.items():
            self._all(name).update_many({}, [{"$set": _earlier(seconds, *fields)}])

    async def name_dataset(self, job_id: str, dataset_id: str) -> None:
        self._set("jobs", job_id, dataset_id=dataset_id)

    async def left_of(self, job_id: str) -> set[str]:
        return {name for name in BELONGINGS if self._all(name).find_one({"job_id": job_id})}

    async def count_datasets(self) -> tuple[int, int]:
        return (
            self._all("datasets").count_documents({}),
            self._all("dataset_rows").count_documents({}),
        )

    async def clear(self) -> None:
        for name in INDEXES.keys() - {"schema"}:
            self._all(name).delete_many({})

    @asynccontextmanager
    async def holding(self, job_id: str) -> AsyncIterator[None]:
        with self._client.start_session() as session, session.start_transaction():
            held = self._all("jobs").update_one(
                {"_id": job_id}, {"$inc": {"writes": 1}}, session=session
            )
            assert held.matched_count == 1
            yield
            # For others it was held and nothing else.
            session.abort_transaction()

    async def until_blocked(self, calls: int) -> None:
        async def are_blocked() -> bool:
            return len(self._held_up) + self._waiting_updates() == calls

        await eventually(are_blocked, f"{calls} calls that wait for a held job")

    async def in_turn(
        self, job_id: str, first: Coroutine[Any, Any, Any], second: Coroutine[Any, Any, Any]
    ) -> tuple[Any, Any]:
        async with StagedCall(first) as one, StagedCall(second) as two:
            async with self.holding(job_id):
                one.may_begin.set()
                await self._until_blocked(one)
                is_single = not one.has_met.is_set()
                if is_single:
                    # Of two that wait in the server nobody knows the order: this is a transaction.
                    two.may_begin.set()
                    await eventually(_is_set(two.has_met), "a transaction that met the held job")
            if not is_single:
                # Now it is the first one that holds the job.
                one.may_repeat.set()
                await eventually(_is_set(one.has_written), "the first call before its commit")
                two.may_begin.set()
                await self._until_blocked(two)
            await one.until_over()
            await two.until_over()
            answers = await asyncio.gather(one.task, two.task, return_exceptions=True)
            return answers[0], answers[1]

    @asynccontextmanager
    async def uncommitted(
        self, call: Coroutine[Any, Any, _Answer]
    ) -> AsyncIterator["asyncio.Task[_Answer]"]:
        """A call whose transaction has done everything, and commits at the block's end."""
        async with StagedCall(call) as staged:
            staged.may_begin.set()
            await eventually(_is_set(staged.has_written), "a call before its commit")
            yield staged.task
            await staged.until_over()

    async def _until_blocked(self, call: StagedCall) -> None:
        """Return once the call waits, in a transaction or as the only single update."""

        async def is_blocked() -> bool:
            return call.has_met.is_set() or self._waiting_updates() == 1

        await eventually(is_blocked, "a call that waits for a held job")

    def _waiting_updates(self) -> int:
        """How many updates outside of transactions the server does again and again by now."""
        jobs = self._all("jobs")
        running = self._client.admin.aggregate(
            [
                {"$currentOp": {}},
                {"$match": {"ns": jobs.full_name, "writeConflicts": {"$gt": 0}}},
                # A transaction's is about to get its error.
                {"$match": {"command.autocommit": {"$exists": False}}},
                {"$match": {"transaction.parameters.autocommit": {"$exists": False}}},
            ]
        )
        return len(list(running))

    @asynccontextmanager
    async def writing_milestone(self, job: ClaimedJob, stage: str) -> AsyncIterator[int]:
        entered = {
            "latest.progress_fraction": 0.4,
            "latest.progress_stage": stage,
            "latest.progress_message": None,
            "latest.progress_at": NOW,
            **with_event(stage, "$attempt", kind=MILESTONE_KIND, fraction=0.4),
        }
        with self._client.start_session() as session, session.start_transaction():
            written = self._all("jobs").find_one_and_update(
                held_by(job.claim),
                [{"$set": entered}],
                return_document=ReturnDocument.AFTER,
                session=session,
            )
            assert written is not None
            yield written["last_event_id"]

    @asynccontextmanager
    async def counting_wake_ups(self) -> AsyncIterator[Callable[[], Awaitable[int]]]:
        async def sent() -> int:
            signal = self._all("signals").find_one({"_id": "jobs"})
            return 0 if signal is None else int(signal["sent"])

        before = await sent()

        async def count() -> int:
            return await sent() - before

        yield count

    def _all(self, name: str) -> Collection[dict[str, Any]]:
        return self._client.get_default_database()[name]

    def _set(self, name: str, key: str, **changes: Any) -> None:
        self._all(name).update_one({"_id": key}, [{"$set": changes}])


def _is_set(event: asyncio.Event) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return event.is_set()

    return look


def _earlier(seconds: float, *fields: str) -> dict[str, Any]:
    return {field: {"$subtract": [f"${field}", span(seconds)]} for field in fields}
