"""MongoDB under the services of a test: what it holds, and what happens behind their backs."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any

from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.errors import OperationFailure
from support.service import wait_until
from system.stores import Store

from app.db.mongo.adapter import MongoJobsDB
from app.db.mongo.instants import NOW, instant, micros, now_plus, span
from app.db.mongo.signals import SIGNAL_IDS, SIGNALS
from app.domain.jobs import JobStatus, WakeUp

_DAY_SECONDS = 86_400.0
_WRITE_CONFLICT = 112


class MongoStore(Store):
    """MongoDB with the newest indexes.

    Rows are held by a transaction that has changed them and is rolled back in the end: single
    updates wait for that, and other transactions are done again and again. Everybody may read.
    """

    name = "mongo"
    capabilities = frozenset()

    def __init__(self, url: str, client: MongoClient[dict[str, Any]]) -> None:
        super().__init__(url, MongoJobsDB)
        self._client = client
        self._database = client.get_default_database()

    def _all(self, name: str) -> Collection[dict[str, Any]]:
        return self._database[name]

    def now(self) -> datetime:
        # To the millisecond, as all instants of the server are.
        found: datetime = self._client.admin.command("hello")["localTime"]
        return found.replace(tzinfo=UTC)

    def heartbeat_at(self, pid: int) -> datetime:
        newest = self._all("nodes").find({"pid": pid}).sort("heartbeat_at", -1).limit(1)
        return instant(newest[0]["heartbeat_at"])

    def wake(self) -> None:
        signal = {"_id": SIGNAL_IDS[WakeUp.JOBS]}
        self._all(SIGNALS).update_one(signal, {"$inc": {"sent": 1}}, upsert=True)

    def make_due(self, job_id: str) -> None:
        self._all("jobs").update_one({"_id": job_id}, [{"$set": {"run_at": NOW}}])
        self.wake()

    def put_off(self, job_id: str) -> None:
        self._all("jobs").update_one(
            {"_id": job_id}, {"$set": {"run_at": micros(datetime.max.replace(tzinfo=UTC))}}
        )

    def end_all(self, status: JobStatus, days_ago: float) -> None:
        finished_at = now_plus(-days_ago * _DAY_SECONDS)
        self._all("jobs").update_many(
            {"status": "pending"}, [{"$set": {"status": status, "finished_at": finished_at}}]
        )

    def age_nodes(self, days: float) -> None:
        earlier = {"$subtract": ["$heartbeat_at", span(days * _DAY_SECONDS)]}
        self._all("nodes").update_many({}, [{"$set": {"heartbeat_at": earlier}}])

    def make_deliveries_due(self) -> None:
        self._all("webhook_deliveries").update_many({}, [{"$set": {"next_at": NOW}}])

    def forget_calls(self) -> None:
        self._all("call_cache").delete_many({})

    def count_all(self, kind: str) -> int:
        return self._all(kind).count_documents({})

    def result_claim_no(self, job_id: str) -> int:
        [claim_no] = self._all("job_results").distinct("claim_no", {"job_id": job_id})
        return int(claim_no)

    def left_sessions(self) -> list[str]:
        return [str(operation.get("appName")) for operation in self._operations()]

    def holding_job(self, job_id: str) -> AbstractContextManager[None]:
        return self._holding("jobs", {"_id": job_id})

    def holding_nodes(self) -> AbstractContextManager[None]:
        return self._holding("nodes", {})

    def holding_jobs(self) -> AbstractContextManager[None]:
        return self._holding("jobs", {})

    @contextmanager
    def holding_claims(self, job_id: str) -> Iterator[Callable[[], bool]]:
        with self.holding_job(job_id):
            yield lambda: any(one.get("writeConflicts") for one in self._operations())

    def _operations(self) -> list[dict[str, Any]]:
        """What services do in this database at the moment."""
        ours = {"ns": {"$regex": f"^{self._database.name}\\."}, "appName": {"$regex": "^haulage"}}
        return list(self._client.admin.aggregate([{"$currentOp": {}}, {"$match": ours}]))

    @contextmanager
    def _holding(self, name: str, which: dict[str, Any]) -> Iterator[None]:
        with self._client.start_session() as session:

            def is_held() -> bool:
                session.start_transaction()
                try:
                    changed = self._all(name).update_many(
                        which, {"$set": {"held": True}}, session=session
                    )
                except OperationFailure as error:
                    session.abort_transaction()
                    if error.code != _WRITE_CONFLICT:
                        raise
                    return False
                assert changed.matched_count
                return True

            wait_until(is_held, f"{name} that nobody else changes")
            try:
                yield
            finally:
                session.abort_transaction()
