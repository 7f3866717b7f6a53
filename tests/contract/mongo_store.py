"""MongoDB as the contract sees it: adapters to ask, and what happens behind their backs."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from contract.stores import COUNTED_WAKE_UPS, PAUSED_QUEUES, ROW_LOCKS
from pymongo import MongoClient
from pymongo.collection import Collection

from app.db.mongo import following, managing, places, searching
from app.db.mongo.adapter import MongoJobsDB
from app.db.mongo.indexes import BELONGINGS, INDEXES
from app.db.mongo.instants import NOW, span
from app.domain.jobs import ClaimedJob

AGES = {
    "nodes": ("created_at", "heartbeat_at", "stopped_at"),
    "datasets": ("created_at",),
    "call_cache": ("created_at",),
    "deleted_jobs": ("deleted_at",),
}


class MongoStore:
    """MongoDB with the newest indexes.

    It holds no rows: who meets a document in another one's transaction tries again, and in which
    order several of them succeed nobody decides.
    """

    name = "mongo"
    capabilities = frozenset({PAUSED_QUEUES, COUNTED_WAKE_UPS})
    # Few events lie in the job's own document.
    belongings = frozenset(BELONGINGS) - {"webhook_deliveries", "job_events"}
    bounded = (following, managing, places, searching)

    def __init__(self, url: str) -> None:
        self._url = url
        self._adapters: list[MongoJobsDB] = []
        # A synchronous one: tests with a loop of their own use it as well.
        self._client: MongoClient[dict[str, Any]] = MongoClient(url)

    def connect(self, *, notify: bool = True) -> MongoJobsDB:
        adapter = MongoJobsDB(self._url, default_pipeline="by-default", notify=notify)
        self._adapters.append(adapter)
        return adapter

    async def close(self) -> None:
        for adapter in self._adapters:
            await adapter.close()
        self._client.close()

    async def end_lease(self, node_id: str) -> None:
        ended = {"$subtract": ["$heartbeat_at", {"$add": ["$lease", span(1.0)]}]}
        self._set("nodes", node_id, heartbeat_at=ended)

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

    # Tests that need what the capabilities leave out are not run, so nobody gets to these three.

    def holding(self, job_id: str) -> AbstractAsyncContextManager[None]:
        raise NotImplementedError(ROW_LOCKS)

    async def until_blocked(self, sessions: int) -> None:
        raise NotImplementedError(ROW_LOCKS)

    def writing_milestone(self, job: ClaimedJob, stage: str) -> AbstractAsyncContextManager[int]:
        raise NotImplementedError(ROW_LOCKS)

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


def _earlier(seconds: float, *fields: str) -> dict[str, Any]:
    return {field: {"$subtract": [f"${field}", span(seconds)]} for field in fields}
