"""The values that travel between the parts: jobs, attempts, claims, progress, outcomes.

All are frozen and slotted: whoever holds one may pass it on without fear of a later change.
Instants are timezone-aware UTC from the database's clock; ids are UUIDs as text.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from datetime import datetime
from enum import Flag, StrEnum, auto
from typing import Any, Final

DEFAULT_QUEUE: Final = "default"

# Payloads up to this size cross to the worker with the claim; larger ones the worker reads itself.
INLINE_PAYLOAD_BYTES: Final = 256 * 1024
MAX_PAYLOAD_BYTES: Final = 10 * 1024 * 1024
MAX_RESULT_BYTES: Final = 64 * 1024 * 1024
MAX_CHECKPOINT_BYTES: Final = 64 * 1024 * 1024
# Metadata lies in the narrow row that every claim reads.
MAX_METADATA_BYTES: Final = 64 * 1024
# What a job, its pipeline or the settings may say; less memory than an interpreter with its
# libraries needs is a mistake in the unit.
MAX_ATTEMPTS: Final = 100
MAX_TIMEOUT_SECONDS: Final = 31_536_000.0
MAX_START_TIMEOUT_SECONDS: Final = 86_400.0
LEAST_STALL_SECONDS: Final = 1.0
LEAST_MEMORY_LIMIT_BYTES: Final = 64 * 1024 * 1024
MAX_MEMORY_LIMIT_BYTES: Final = 2**60
MAX_JSON_DEPTH: Final = 100
MAX_TEXT_CHARACTERS: Final = 4_000
MAX_TRACEBACK_CHARACTERS: Final = 32_000


class JobStatus(StrEnum):
    """Where a job is in its life; transitions are in `app.domain.lifecycle`."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """True where only an explicit retry starts the job again."""
        return self in TERMINAL_STATUSES


TERMINAL_STATUSES: Final = frozenset(
    {JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED},
)


class AttemptOutcome(StrEnum):
    """How one attempt ended, as kept in its row; an attempt under way has none yet."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RELEASED = "released"
    LOST = "lost"


class Cause(StrEnum):
    """Why an attempt ended as it did; an ordinary completion has none."""

    EXCEPTION = "exception"
    RETRY_LATER = "retry_later"
    GAVE_UP = "gave_up"
    NOTHING_TO_DO = "nothing_to_do"
    LOAD_FAILED = "load_failed"
    START_FAILED = "start_failed"
    START_TIMED_OUT = "start_timed_out"
    WORKER_BROKEN = "worker_broken"
    RESULT_REFUSED = "result_refused"
    EXIT_CODE = "exit_code"
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out_of_memory"
    TIMED_OUT = "timed_out"
    STALLED = "stalled"
    CANCELLED = "cancelled"
    SHUTDOWN = "shutdown"
    NODE_LOST = "node_lost"
    WORKER_LOST = "worker_lost"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a running job is.

    Attributes:
        fraction: 0.0 to 1.0 of the whole job.
        stage: short name of the stage under way; a change of it is a milestone.
        message: one line for people.
    """

    fraction: float
    stage: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """What went wrong, as plain text: nothing of the user's exception object travels on."""

    error_class: str
    message: str
    traceback: str | None = None


class WakeUp(Flag):
    """What a wake-up is about: jobs may have become due, running jobs may be wanted ended."""

    JOBS = auto()
    CONTROL = auto()


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one attempt; what is None is not said here and may be said elsewhere.

    Attributes:
        timeout_seconds: run time, from the worker's first word to its outcome.
        start_timeout_seconds: for importing and constructing the pipeline.
        stall_seconds: longest time without a progress report or a checkpoint.
        memory_limit_bytes: of all processes of the job together.
    """

    timeout_seconds: float | None = None
    start_timeout_seconds: float | None = None
    stall_seconds: float | None = None
    memory_limit_bytes: int | None = None

    def or_else(self, other: "Limits") -> "Limits":
        """These, and those of `other` where these say nothing."""
        return Limits(
            *(
                theirs if ours is None else ours
                for ours, theirs in zip(astuple(self), astuple(other), strict=True)
            )
        )


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What a submitter may choose beside the payload.

    Attributes:
        pipeline: registered name; None takes the default pipeline of the settings.
        priority: higher is claimed first, -32768 to 32767.
        run_at: earliest start; None is now.
        delay_seconds: earliest start counted from the insert, on the database's clock.
        max_attempts: claims that end in failure before the job is failed; None takes 1.
        limits: what is None takes the pipeline's or the node's default when the job starts.
        submitted_by: in whose name; idempotency keys of different submitters are different keys.
        idempotency_key: names this submission: a second one under it finds the first one's job.
        fingerprint: what the key is used for (`app.domain.submissions`); None compares nothing.
        job_id: a new UUIDv7 of a caller who wants to know whether the job is new; else None.
        dataset_id: the dataset that the payload names; it stays as long as the job does.
    """

    pipeline: str | None = None
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    run_at: datetime | None = None
    delay_seconds: float = 0.0
    max_attempts: int | None = None
    limits: Limits = Limits()
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    submitted_by: str | None = None
    idempotency_key: str | None = None
    fingerprint: bytes | None = None
    job_id: str | None = None
    dataset_id: str | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write about one running job; every such write names it.

    Attributes:
        claim_no: grows at every claim of the job and is never reset: the fencing number.
    """

    job_id: str
    claim_no: int


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job as the claim statement hands it to the scheduler, columns in the statement's order.

    Attributes:
        attempt: 1 for the first attempt.
        payload: JSON text, None where it is larger than INLINE_PAYLOAD_BYTES.
    """

    id: str
    claim_no: int
    pipeline: str
    attempt: int
    max_attempts: int
    node_losses: int
    timeout_seconds: float | None
    start_timeout_seconds: float | None
    stall_seconds: float | None
    memory_limit_bytes: int | None
    claimed_at: datetime
    payload: str | None

    @property
    def claim(self) -> Claim:
        """The claim that every write about this run names."""
        return Claim(self.id, self.claim_no)

    @property
    def limits(self) -> Limits:
        """What the job itself says about its bounds."""
        return Limits(
            self.timeout_seconds,
            self.start_timeout_seconds,
            self.stall_seconds,
            self.memory_limit_bytes,
        )

    def within(self, defaults: Limits) -> "ClaimedJob":
        """The job with `defaults` where it says nothing about a limit itself."""
        limits = self.limits.or_else(defaults)
        return replace(
            self,
            timeout_seconds=limits.timeout_seconds,
            start_timeout_seconds=limits.start_timeout_seconds,
            stall_seconds=limits.stall_seconds,
            memory_limit_bytes=limits.memory_limit_bytes,
        )


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running row as the watchdog sees it, columns in the statement's order.

    Attributes:
        run_seconds: since the claim, by the database's clock.
    """

    id: str
    claim_no: int
    node_id: str
    attempt: int
    max_attempts: int
    node_losses: int
    run_seconds: float
    cancel_requested: bool

    @property
    def claim(self) -> Claim:
        """The claim that is running."""
        return Claim(self.id, self.claim_no)


@dataclass(frozen=True, slots=True)
class Job:
    """A job with the state of its latest attempt: what `GET /jobs/{id}` tells.

    Attributes:
        attempt: attempts that count so far; 0 before the first claim.
        run_at: due from here on; later than now for scheduled and waiting-for-retry jobs.
        progress: of the latest attempt, None before it reported any.
        error: of the latest attempt that failed.
        cause: why the latest attempt ended, None where it completed or still runs.
        version: changes with every visible change of the job and its milestones.
        last_event_id: of its events as of this state, 0 where it has none.
        submitted_by: the id of a key, "" for nobody known.
    """

    id: str
    status: JobStatus
    pipeline: str
    queue: str
    priority: int
    attempt: int
    max_attempts: int
    claim_no: int
    node_losses: int
    node_id: str | None
    pid: int | None
    limits: Limits
    tags: tuple[str, ...]
    metadata: Mapping[str, Any]
    created_at: datetime
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    progress: Progress | None
    error: ErrorInfo | None
    cause: Cause | None
    version: str = ""
    last_event_id: int = 0
    batch_id: str | None = None
    submitted_by: str = ""


@dataclass(frozen=True, slots=True)
class Milestone:
    """A stage that a job entered, kept for good, columns in the statement's order."""

    id: int
    attempt: int
    stage: str
    fraction: float
    message: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Attempt:
    """One claim of a job, columns in the statement's order."""

    claim_no: int
    attempt: int
    node_id: str
    pid: int | None
    started_at: datetime
    ended_at: datetime | None
    outcome: AttemptOutcome | None
    cause: Cause | None
    exit_code: int | None
    signal: int | None
    error_class: str | None
    error_message: str | None
    traceback: str | None
    peak_memory_bytes: int | None
    cpu_seconds: float | None


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a job's log.

    Attributes:
        number: counts the attempt's lines from 1.
        level: logging's number; stdout counts as INFO, stderr as WARNING.
        source: logger name, "stdout" or "stderr".
        at: UTC, the worker's clock (order within a job is by row id).
    """

    number: int
    level: int
    source: str
    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One boot of one scheduler process: a new id every time."""

    id: str
    name: str
    pid: int
    capacity: int
    lease_seconds: float
    version: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What a worker process used up, children included.

    Attributes:
        peak_memory_bytes: largest resident set.
        cpu_seconds: user and system time.
    """

    peak_memory_bytes: int | None = None
    cpu_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Registration:
    """A pipeline that jobs may name.

    Attributes:
        target: import path "package.module:Class"; imported in worker processes only.
        arguments: keyword arguments of its constructor.
        max_attempts: for jobs that say nothing about it; None takes 1.
        limits: for jobs that say nothing about them.
        description: one line for people.
        payload_schema: JSON schema of its payloads, None where its class declares none.
    """

    name: str
    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    max_attempts: int | None = None
    limits: Limits = Limits()
    description: str | None = None
    payload_schema: Mapping[str, Any] | None = None

    def complete(self, options: JobOptions) -> JobOptions:
        """A submitter's options with this pipeline's defaults where they say nothing."""
        return replace(
            options,
            max_attempts=options.max_attempts or self.max_attempts,
            limits=options.limits.or_else(self.limits),
        )
