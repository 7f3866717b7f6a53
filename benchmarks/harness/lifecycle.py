"""Jobs through their whole life in batches, on one session and without any worker.

Each batch is inserted, claimed, started, reported on once and finished by the statements that nodes
and workers run; the node renews its lease beside.
"""

from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import Self
from uuid import UUID

import asyncpg

from app.db.ids import new_id
from app.db.postgres.adapter import PostgresJobsDB
from app.db.postgres.statements import STATEMENTS
from app.domain.jobs import JobOptions, NodeInfo
from app.domain.submissions import Submission

STEPS = ("insert", "claim", "start", "report", "finish")
JOB = Submission('{"n": 1}', JobOptions(pipeline="demo-echo"))
RESULT = '{"n": 1}'
NOTHING = (None,) * 6


@dataclass(slots=True)
class Lifecycle:
    """What each step of each batch took.

    Attributes:
        milliseconds: by step, one value for each batch.
        claimed: how many jobs one batch claims and finishes.
    """

    url: str
    claimed: int = 10
    milliseconds: dict[str, list[float]] = field(
        default_factory=lambda: {step: [] for step in STEPS}
    )
    _db: PostgresJobsDB = field(init=False)
    _session: "asyncpg.Connection[asyncpg.Record]" = field(init=False)
    _node: str = field(init=False)

    async def __aenter__(self) -> Self:
        self._db = PostgresJobsDB(self.url, max_connections=1, notify=False)
        self._session = await asyncpg.connect(self.url, command_timeout=120)
        self._node = new_id()
        await self._db.register_node(NodeInfo(self._node, "bench", 1, 1_000, 3_600.0, "0"))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()
        await self._db.close()

    async def insert(self, count: int) -> None:
        """Store that many jobs in one statement."""
        began = perf_counter()
        await self._db.insert_pending_jobs([JOB] * count)
        self._note("insert", began)

    async def run_batch(self) -> None:
        """Claim jobs and take them to their end."""
        began = perf_counter()
        jobs = await self._db.claim_pending_jobs(self._node, self.claimed)
        self._note("claim", began)
        claims = [(UUID(job.id), job.claim.claim_no) for job in jobs]
        await self._for_all("start", "report_started", [(*claim, 1) for claim in claims])
        report = (0.5, "middle", None, True)
        await self._for_all("report", "report_progress", [(*claim, *report) for claim in claims])
        end = ("completed", 0, 0, 0.0, "completed", *NOTHING, None, None, RESULT)
        await self._for_all("finish", "finish_job", [(*claim, *end) for claim in claims])
        await self._db.renew_node(self._node)

    async def log_position(self) -> float:
        """How many bytes of the write-ahead log the server has made so far."""
        position: float = await self._session.fetchval(
            "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8"
        )
        return position

    async def _for_all(
        self, step: str, statement: str, arguments: list[tuple[object, ...]]
    ) -> None:
        began = perf_counter()
        await self._session.executemany(STATEMENTS[statement].sql, arguments)
        self._note(step, began)

    def _note(self, step: str, began: float) -> None:
        self.milliseconds[step].append((perf_counter() - began) * 1_000)
