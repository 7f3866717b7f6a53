"""What followers of jobs are told: news since they last looked, events, log lines, checkpoints."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.domain.jobs import JobStatus, Progress

# One page of a job's history; what is left comes with the next one.
ATTEMPTS_PAGE: Final = 100
LOG_PAGE_LINES: Final = 1_000
# What one look for lines of a level goes through; what lies behind comes with the next one.
LOG_LINES_LOOKED_AT: Final = 2_000
CHECKPOINTS_PAGE: Final = 200

STATUS_KIND: Final = "status"
MILESTONE_KIND: Final = "milestone"


@dataclass(frozen=True, slots=True)
class FollowCursor:
    """How much of a job somebody knows already.

    Attributes:
        after: id of the last event that they have, 0 for none; None where they want no events.
        version: of the job as they know it; None where they know nothing of it.
    """

    job_id: str
    after: int | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """A change of status or a milestone, kept for good.

    Attributes:
        id: grows within a job in the order in which its events became visible.
        kind: STATUS_KIND or MILESTONE_KIND.
        stage: the new status, or the stage that the job entered.
    """

    id: int
    kind: str
    attempt: int
    stage: str
    fraction: float | None
    message: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class JobNews:
    """A job that differs from what a cursor knows, everything as of one instant.

    Attributes:
        cursor: its place in the question, counted from 0.
        status: None where no job has this id (any more).
        version: of the job now.
        events: those after the cursor, oldest first, as many as were asked for at most.
    """

    cursor: int
    status: JobStatus | None
    version: str
    progress: Progress | None
    events: tuple[StoredEvent, ...]


@dataclass(frozen=True, slots=True)
class LogCursor:
    """How much of a job's log somebody has looked through.

    Attributes:
        after: id of the last line that they have or did not want, 0 for none.
        least_level: logging's number; lines below it are not wanted.
    """

    job_id: str
    after: int = 0
    least_level: int = 0


@dataclass(frozen=True, slots=True)
class StoredLine:
    """One line of a job's log, columns in the statement's order.

    Attributes:
        id: grows within a job in the order in which its lines became visible.
        number: counts the attempt's lines from 1.
        level: logging's number.
    """

    id: int
    attempt: int
    number: int
    level: int
    source: str
    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class FoundLines:
    """What one look into a job's log gave.

    Attributes:
        after: where the next look goes on, behind everything that this one went through.
        is_whole: nothing was left behind that.
    """

    lines: tuple[StoredLine, ...]
    after: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An intermediate result without its data, columns in the statement's order.

    Attributes:
        claim_no: the claim that saved it.
        stored_bytes: what it takes up in the store, compressed.
    """

    stage: str
    claim_no: int
    stored_bytes: int
    saved_at: datetime
