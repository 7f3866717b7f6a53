"""What a soak left behind, as the checker reads it: rows of the database beside witnessed runs.

All instants are seconds of soak.witness.now; those of the database's clock are converted once.
"""

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncpg
from soak.fault_log import Fault, read_faults
from soak.traffic import read_promises
from soak.witness import Run, now, read_runs

TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Attempt:
    """A row of job_attempts with what its node's row adds.

    Attributes:
        heartbeat_at: the last renewal of its node's lease.
    """

    claim_no: int
    attempt: int
    node_pid: int | None
    pid: int | None
    started_at: float
    ended_at: float | None
    outcome: str | None
    cause: str | None
    error_class: str | None
    heartbeat_at: float


@dataclass(frozen=True, slots=True)
class Event:
    """A row of job_events."""

    id: int
    claim_no: int
    kind: str
    stage: str
    message: str | None
    created_at: float


@dataclass(frozen=True, slots=True)
class LogLine:
    """A row of job_logs; `at` is when the job said it."""

    id: int
    claim_no: int
    line: str
    at: float


@dataclass(frozen=True, slots=True)
class Stored:
    """A row of job_checkpoints or job_results, which names the run that wrote it."""

    claim_no: int
    run: str
    step: int
    at: float


@dataclass(frozen=True, slots=True)
class JobHistory:
    """Everything about one job.

    Attributes:
        number: of the submission, from the payload.
    """

    id: str
    kind: str
    number: int
    status: str
    max_attempts: int
    steps: int
    fails: bool
    created_at: float
    attempts: list[Attempt] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    logs: list[LogLine] = field(default_factory=list)
    checkpoint: Stored | None = None
    result: Stored | None = None
    runs: list[Run] = field(default_factory=list)

    @property
    def is_terminal(self) -> bool:
        """Whether it has come to its end."""
        return self.status in TERMINAL

    def runs_of(self, attempt: Attempt) -> list[Run]:
        """The runs that its process began under this claim."""
        return [run for run in self.runs if self.attempt_of(run) is attempt]

    def attempt_of(self, run: Run) -> Attempt | None:
        """The claim under which a run ran: that of its process, the latest where pids recur."""
        found = [a for a in self.attempts if a.pid == run.pid and a.started_at <= run.started]
        return found[-1] if found else None


@dataclass(frozen=True, slots=True)
class History:
    """Everything about one soak.

    Attributes:
        promises: the submission's number of each job whose submission got its answer, by id.
    """

    jobs: Mapping[str, JobHistory]
    promises: Mapping[str, int]
    faults: list[Fault]


JOBS: Final = """
select j.id::text as id, j.pipeline as kind, (p.payload ->> 'number')::int as number, j.status,
    j.max_attempts, (p.payload ->> 'steps')::int as steps, (p.payload ->> 'fails')::bool as fails,
    extract(epoch from j.created_at)::float8 as created_at
from haulage.jobs j join haulage.job_payloads p on p.job_id = j.id
order by j.created_at
"""
ATTEMPTS: Final = """
select a.job_id::text as job_id, a.claim_no, a.attempt, n.pid as node_pid, a.pid,
    extract(epoch from a.started_at)::float8 as started_at,
    extract(epoch from a.ended_at)::float8 as ended_at,
    a.outcome, a.cause, a.error_class,
    extract(epoch from n.heartbeat_at)::float8 as heartbeat_at
from haulage.job_attempts a left join haulage.nodes n on n.id = a.node_id
order by a.job_id, a.claim_no
"""
EVENTS: Final = """
select job_id::text as job_id, id, claim_no, kind, stage, message,
    extract(epoch from created_at)::float8 as created_at
from haulage.job_events order by id
"""
LOGS: Final = """
select job_id::text as job_id, id, claim_no, line, extract(epoch from at)::float8 as at
from haulage.job_logs where line like 'run %' order by id
"""
CHECKPOINTS: Final = """
select job_id::text as job_id, claim_no, data ->> 'run' as run, (data ->> 'step')::int as step,
    extract(epoch from saved_at)::float8 as at
from haulage.job_checkpoints
"""
RESULTS: Final = """
select job_id::text as job_id, claim_no, coalesce(result ->> 'run', '?') as run,
    coalesce((result ->> 'steps')::int, 0) as step,
    extract(epoch from created_at)::float8 as at
from haulage.job_results
"""
_INSTANTS: Final = ("created_at", "started_at", "ended_at", "heartbeat_at", "at")


async def load_history(url: str, witnesses: Path, faults: Path, promises: Path) -> History:
    """Read all there is; nobody may be writing any more."""
    connection = await asyncpg.connect(url)
    try:
        reader = _Reader(connection, time.time() - now())
        attempts = await reader.by_job(ATTEMPTS, Attempt)
        events = await reader.by_job(EVENTS, Event)
        logs = await reader.by_job(LOGS, LogLine)
        checkpoints = await reader.by_job(CHECKPOINTS, Stored)
        results = await reader.by_job(RESULTS, Stored)
        jobs = [dict(reader.converted(row)) for row in await connection.fetch(JOBS)]
    finally:
        await connection.close()
    runs = read_runs(witnesses)
    histories = {
        job["id"]: JobHistory(
            **job,
            attempts=attempts[job["id"]],
            events=events[job["id"]],
            logs=logs[job["id"]],
            checkpoint=next(iter(checkpoints[job["id"]]), None),
            result=next(iter(results[job["id"]]), None),
            runs=runs.get(job["id"], []),
        )
        for job in jobs
    }
    return History(histories, read_promises(promises), read_faults(faults))


class _Reader:
    """Rows as dataclasses, their instants converted.

    Args:
        offset_seconds: by which the database's clock is ahead of ours; both run evenly.
    """

    def __init__(
        self, connection: "asyncpg.Connection[asyncpg.Record]", offset_seconds: float
    ) -> None:
        self._connection = connection
        self._offset_seconds = offset_seconds

    async def by_job(self, statement: str, row_class: type[Any]) -> dict[str, list[Any]]:
        found = defaultdict(list)
        for row in await self._connection.fetch(statement):
            fields = self.converted(row)
            found[fields.pop("job_id")].append(row_class(**fields))
        return found

    def converted(self, row: asyncpg.Record) -> dict[str, Any]:
        return {
            name: value - self._offset_seconds if name in _INSTANTS and value else value
            for name, value in row.items()
        }
