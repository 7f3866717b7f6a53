"""What people look for and act on: filters over jobs, and the state of queues and nodes."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.domain.jobs import JobStatus

DEFAULT_PAGE: Final = 50
MAX_PAGE: Final = 200
# Rows that one search looks at; what lies behind is left to the next page.
MAX_LOOKED_AT: Final = 50_000
MAX_COUNTED: Final = 10_000
MAX_BULK: Final = 1_000
MAX_ERROR_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs are meant; what is empty or None says nothing.

    Attributes:
        statuses: any of these.
        tags: all of these.
        node: id of the node of the latest claim.
        created_after: included; `created_before` is not.
        error: part of class or message of the latest attempt's error, in any case.
        ids: any of these, and none where the tuple is empty.
    """

    statuses: tuple[JobStatus, ...] = ()
    pipeline: str | None = None
    queue: str | None = None
    tags: tuple[str, ...] = ()
    node: str | None = None
    batch: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    error: str | None = None
    submitted_by: str | None = None
    ids: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A job as lists tell it, columns in the statement's order.

    Attributes:
        progress_fraction: of the latest attempt, None before it reported any; the next likewise.
        error_message: of the latest attempt, its beginning.
    """

    id: str
    status: JobStatus
    pipeline: str
    queue: str
    priority: int
    attempt: int
    max_attempts: int
    node_id: str | None
    batch_id: str | None
    submitted_by: str
    tags: tuple[str, ...]
    created_at: datetime
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    progress_fraction: float | None
    progress_stage: str | None
    cause: str | None
    error_class: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs, the newest first.

    Attributes:
        before: look for the next page before this id; None where nothing is left.
    """

    jobs: tuple[JobSummary, ...]
    before: str | None


@dataclass(frozen=True, slots=True)
class JobCount:
    """How many jobs there are; at least so many where it is not exact."""

    count: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class BulkChange:
    """What became of many jobs.

    Attributes:
        matched: that could be changed when they were looked for, `left` included.
        changed: the others ended, began or went meanwhile.
        left: not come to yet, or without room under a cap, at least so many: the same call again
            goes on with them.
    """

    matched: int
    changed: int
    left: int


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue, columns in the statement's order.

    Attributes:
        pending: jobs that wait, `scheduled` included.
        scheduled: of these, those that are not due yet.
        oldest_pending_seconds: since the job became due that waits longest; None without any.
        is_exact: whether all that wait were looked at. Otherwise what is told of them is of the
            MAX_COUNTED that come first, so each number is at least so much.
    """

    name: str
    is_paused: bool
    pending: int
    scheduled: int
    running: int
    oldest_pending_seconds: float | None
    is_exact: bool


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node, columns in the statement's order.

    Attributes:
        state: "active", "draining", "stopped", or "lost" where its lease has ended.
        heartbeat_seconds: since its last renewal.
        running: jobs that run there.
    """

    id: str
    name: str
    pid: int
    version: str
    state: str
    capacity: int
    running: int
    lease_seconds: float
    heartbeat_seconds: float
    started_at: datetime
    stopped_at: datetime | None

    @property
    def is_alive(self) -> bool:
        """Whether it holds its lease."""
        return self.state in {"active", "draining"}
