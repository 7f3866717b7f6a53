"""The store under the services of a test: what it holds, and what happens behind their backs.

What any store can be asked is asked through `DBInterface`, by an adapter of the test's own. A new
store becomes a class like the one here and a name in STORES; what it cannot do it leaves out of its
capabilities, and tests that need those do not run over it.
"""

import abc
import asyncio
import json
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime
from typing import Any, ClassVar, Final, TypeVar

from support.sql import holding, our_connections, rows, value

from app.db.ids import new_id
from app.db.interface import DBInterface
from app.db.postgres.adapter import PostgresJobsDB
from app.db.postgres.listener import CHANNELS
from app.domain.following import STATUS_KIND, FollowCursor, StoredEvent
from app.domain.jobs import Attempt, Job, JobOptions, JobStatus, LogLine, NodeInfo, WakeUp
from app.domain.managing import JobFilter, NodeState
from app.domain.sharing import CallUsage
from app.domain.submissions import Submission
from app.domain.webhooks import Delivery

STORES: Final = ("postgres", "mongo")

# The test speaks SQL to the store.
SQL: Final = "sql"
# Who waits for a row first gets it first.
ROW_QUEUES: Final = "row_queues"

UNFINISHED: Final = (JobStatus.PENDING, JobStatus.RUNNING)
_ANSWER_SECONDS: Final = 40.0
_BATCH: Final = 500
_PAGE: Final = 200
_MANY: Final = 100_000
# A node that is not heard of again is lost after this; it has to claim before.
_LOST_NODE_SECONDS: Final = 1.0

_Answer = TypeVar("_Answer")


class Store(abc.ABC):
    """One database with everything that a test looks at in it or does to it."""

    name: ClassVar[str]
    capabilities: ClassVar[frozenset[str]]

    def __init__(self, url: str, connect: Callable[..., DBInterface]) -> None:
        self.url = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        options = {"application_name": "test", "default_pipeline": "demo-echo"}
        self._quiet = connect(url, notify=False, **options)
        self._waking = connect(url, notify=True, **options)

    def close(self) -> None:
        """Give everything back."""
        try:
            self._ask(self._quiet.close())
            self._ask(self._waking.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _ask(self, asking: Coroutine[Any, Any, _Answer]) -> _Answer:
        return asyncio.run_coroutine_threadsafe(asking, self._loop).result(_ANSWER_SECONDS)

    # -- what it holds ----------------------------------------------------------------------------

    def job(self, job_id: str) -> Job:
        """The job with the state of its latest attempt."""
        return self._ask(self._quiet.get_job(job_id))

    def attempts(self, job_id: str) -> list[Attempt]:
        """Every claim of the job, oldest first."""
        return self._ask(self._quiet.list_attempts(job_id))

    def ends(self, job_id: str) -> list[tuple[str | None, str | None]]:
        """Outcome and cause of every claim of the job, oldest first."""
        return [(attempt.outcome, attempt.cause) for attempt in self.attempts(job_id)]

    def milestones(self, job_id: str) -> dict[str, str | None]:
        """Message by stage, in the order in which the job entered them."""
        found = self._ask(self._quiet.list_milestones(job_id))
        return {milestone.stage: milestone.message for milestone in found}

    def events(self, job_id: str) -> list[StoredEvent]:
        """All events of the job, oldest first."""
        [news] = self._ask(self._quiet.list_news([FollowCursor(job_id, after=0)], _MANY))
        return list(news.events)

    def statuses(self, job_id: str) -> list[str]:
        """What the job has been, one after the other."""
        return [event.stage for event in self.events(job_id) if event.kind == STATUS_KIND]

    def payloads(self, job_ids: Iterable[str]) -> list[str]:
        """The JSON texts that were submitted with these jobs."""
        return [self._ask(self._quiet.get_payload(job_id)) for job_id in job_ids]

    def log(self, job_id: str) -> list[LogLine]:
        """All lines of the job."""
        return self._ask(self._quiet.list_logs(job_id, _MANY))

    def usage(self, job_id: str) -> list[CallUsage]:
        """What its calls cost, by stage and model."""
        return self._ask(self._quiet.list_usage(job_id))

    def call(self, key: str) -> str | None:
        """The answer of a paid call that is kept under this key."""
        return self._ask(self._quiet.load_call(key))

    def count_jobs(self, *statuses: JobStatus) -> int:
        """How many jobs there are, or are in one of these statuses."""
        counted = self._ask(self._quiet.count_jobs(JobFilter(statuses=statuses)))
        assert counted.is_exact
        return counted.count

    def job_ids(self) -> list[str]:
        """All jobs."""
        found: list[str] = []
        before: str | None = None
        while True:
            listing = self._quiet.list_jobs(JobFilter(), limit=_PAGE, before=before)
            page = self._ask(listing)
            found += [job.id for job in page.jobs]
            before = page.before
            if before is None:
                return found

    def all_attempts(self) -> list[tuple[str, Attempt]]:
        """Every claim of every job."""
        return [(job_id, one) for job_id in self.job_ids() for one in self.attempts(job_id)]

    def nodes(self) -> list[NodeState]:
        """Every boot of a scheduler, those that live first."""
        return self._ask(self._quiet.list_nodes(_PAGE))

    def node_pid(self, job_id: str) -> int:
        """The process that claimed the job last."""
        holder = self.attempts(job_id)[-1].node_id
        [pid] = [node.pid for node in self.nodes() if node.id == holder]
        return pid

    def deliveries(self) -> list[Delivery]:
        """Deliveries to every webhook."""
        return [
            delivery
            for webhook in self._ask(self._quiet.list_webhooks())
            for delivery in self._ask(self._quiet.list_deliveries(webhook.id, _PAGE))
        ]

    def heartbeats_of(self, pid: int) -> Callable[[], int]:
        """Counts the renewals of a process's node that its calls have seen."""
        seen: set[datetime] = set()

        def count() -> int:
            seen.add(self.heartbeat_at(pid))
            return len(seen) - 1

        return count

    # -- what happens behind the services' backs --------------------------------------------------

    def insert_jobs(
        self,
        pipeline: str,
        payload: dict[str, Any] | None = None,
        count: int = 1,
        *,
        notify: bool = True,
        **options: Any,
    ) -> list[str]:
        """Store pending jobs without any service, and wake whoever listens; their ids."""
        db = self._waking if notify else self._quiet
        chosen = JobOptions(pipeline=pipeline, **options)
        if count == 1:
            return [self._ask(db.insert_pending_job(payload or {}, chosen))]
        submission = Submission(json.dumps(payload or {}), chosen)
        ids: list[str] = []
        for first in range(0, count, _BATCH):
            batch = [submission] * min(_BATCH, count - first)
            ids += self._ask(db.insert_pending_jobs(batch)).job_ids
        return ids

    def insert_lost_jobs(self, pipeline: str, count: int = 1) -> list[str]:
        """Running jobs whose node was not heard of again, the one that was lost first first."""
        node = NodeInfo(new_id(), "lost", os.getpid(), count, _LOST_NODE_SECONDS, "0")
        # Before whatever else waits.
        ids = self.insert_jobs(pipeline, count=count, notify=False, priority=1)
        self._ask(self._quiet.register_node(node))
        claimed = [self._ask(self._quiet.claim_next_pending_job(node.id)) for _ in ids]
        found = [job.id for job in claimed if job is not None]
        assert sorted(found) == sorted(ids)
        return found

    @abc.abstractmethod
    def wake(self) -> None:
        """Wake the schedulers."""

    @abc.abstractmethod
    def now(self) -> datetime:
        """The store's clock."""

    @abc.abstractmethod
    def heartbeat_at(self, pid: int) -> datetime:
        """When the newest node of this process was renewed last."""

    @abc.abstractmethod
    def make_due(self, job_id: str) -> None:
        """Spare a job the rest of its backoff and wake the schedulers."""

    @abc.abstractmethod
    def put_off(self, job_id: str) -> None:
        """Have a pending job wait for `make_due`, for years if need be."""

    @abc.abstractmethod
    def end_all(self, status: JobStatus, days_ago: float) -> None:
        """As if every pending job had ended so many days ago."""

    @abc.abstractmethod
    def age_nodes(self, days: float) -> None:
        """As if nodes had been heard of so many days earlier."""

    @abc.abstractmethod
    def make_deliveries_due(self) -> None:
        """Spare deliveries that are under way or wait the rest of their time."""

    @abc.abstractmethod
    def forget_calls(self) -> None:
        """As if no paid call had ever been."""

    @abc.abstractmethod
    def count_all(self, kind: str) -> int:
        """How many there are of one kind: "job_payloads", "job_results", ..."""

    @abc.abstractmethod
    def result_claim_no(self, job_id: str) -> int:
        """Which claim has left the job's result."""

    @abc.abstractmethod
    def left_sessions(self) -> list[str]:
        """What the server still does, or keeps open, for services in this database."""

    @abc.abstractmethod
    def holding_job(self, job_id: str) -> AbstractContextManager[None]:
        """Somebody else's transaction has changed the job: its writers wait."""

    @abc.abstractmethod
    def holding_nodes(self) -> AbstractContextManager[None]:
        """No node can renew."""

    @abc.abstractmethod
    def holding_jobs(self) -> AbstractContextManager[None]:
        """Nobody can write about any job there is, or even read it where the store can do that."""

    @contextmanager
    def holding_all(self) -> Iterator[None]:
        """Both at once."""
        with ExitStack() as held:
            held.enter_context(self.holding_jobs())
            held.enter_context(self.holding_nodes())
            yield

    @abc.abstractmethod
    def holding_claims(self, job_id: str) -> AbstractContextManager[Callable[[], bool]]:
        """Whoever claims this job waits; gives what tells whether somebody does."""


class PostgresStore(Store):
    """PostgreSQL with the newest schema."""

    name = "postgres"
    capabilities = frozenset({SQL, ROW_QUEUES})

    def __init__(self, url: str) -> None:
        super().__init__(url, PostgresJobsDB)

    def now(self) -> datetime:
        found: datetime = value(self.url, "select clock_timestamp()")
        return found

    def heartbeat_at(self, pid: int) -> datetime:
        query = "select max(heartbeat_at) from haulage.nodes where pid = $1"
        found: datetime = value(self.url, query, pid)
        return found

    def wake(self) -> None:
        rows(self.url, f"notify {CHANNELS[WakeUp.JOBS]}")

    def make_due(self, job_id: str) -> None:
        rows(self.url, "update haulage.jobs set run_at = now() where id::text = $1", job_id)
        self.wake()

    def put_off(self, job_id: str) -> None:
        rows(self.url, "update haulage.jobs set run_at = 'infinity' where id::text = $1", job_id)

    def end_all(self, status: JobStatus, days_ago: float) -> None:
        rows(
            self.url,
            "update haulage.jobs set status = $1,"
            " finished_at = now() - make_interval(secs => 86400 * $2) where status = 'pending'",
            status,
            days_ago,
        )

    def age_nodes(self, days: float) -> None:
        rows(
            self.url,
            "update haulage.nodes set"
            " heartbeat_at = heartbeat_at - make_interval(secs => 86400 * $1)",
            days,
        )

    def make_deliveries_due(self) -> None:
        rows(self.url, "update haulage.webhook_deliveries set next_at = now()")

    def forget_calls(self) -> None:
        rows(self.url, "delete from haulage.call_cache")

    def count_all(self, kind: str) -> int:
        return int(value(self.url, f"select count(*) from haulage.{kind}"))  # noqa: S608  our name

    def result_claim_no(self, job_id: str) -> int:
        query = "select claim_no from haulage.job_results where job_id::text = $1"
        return int(value(self.url, query, job_id))

    def left_sessions(self) -> list[str]:
        return our_connections(self.url)

    def holding_job(self, job_id: str) -> AbstractContextManager[None]:
        lock = f"select 1 from haulage.jobs where id = '{job_id}' for update"  # noqa: S608  our id
        return holding(self.url, lock)

    def holding_nodes(self) -> AbstractContextManager[None]:
        return holding(self.url, "lock table haulage.nodes in access exclusive mode")

    def holding_jobs(self) -> AbstractContextManager[None]:
        return holding(self.url, "lock table haulage.jobs in access exclusive mode")

    @contextmanager
    def holding_claims(self, job_id: str) -> Iterator[Callable[[], bool]]:
        # Claims alone look there; the job's row itself they would pass over.
        waiting = "select count(*) from pg_locks where not granted and mode = 'AccessShareLock'"
        with holding(self.url, "lock table haulage.queues in access exclusive mode"):
            yield lambda: value(self.url, waiting) > 0
