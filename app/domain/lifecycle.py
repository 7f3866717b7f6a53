"""The life of a job: which event leads from which status to which, and what an outcome decides.

    enqueued          claimed            completed
   ---------> pending --------> running -----------> completed
               |  ^  ^            |  |
               |  |  '------------'  |   failed
               |  |  postponed,      '-----------> failed
               |  |  released         cancelled
               |  '---- revived ----'-----------> cancelled
               '------------------------------------^

TRANSITIONS is the only place that says what is legal; what is missing there is illegal.
`decide` turns the outcome of an attempt into one immutable `Verdict`; nothing here does I/O.
"""

import json
import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, assert_never

from app.domain.errors import IllegalTransitionError
from app.domain.jobs import AttemptOutcome, Cause, ErrorInfo, JobStatus


class JobEvent(StrEnum):
    """What can happen to a job that exists."""

    CLAIMED = "claimed"
    COMPLETED = "completed"
    FAILED = "failed"
    POSTPONED = "postponed"
    RELEASED = "released"
    CANCELLED = "cancelled"
    REVIVED = "revived"


TRANSITIONS: Final[dict[tuple[JobStatus, JobEvent], JobStatus]] = {
    (JobStatus.PENDING, JobEvent.CLAIMED): JobStatus.RUNNING,
    (JobStatus.PENDING, JobEvent.CANCELLED): JobStatus.CANCELLED,
    (JobStatus.RUNNING, JobEvent.COMPLETED): JobStatus.COMPLETED,
    (JobStatus.RUNNING, JobEvent.FAILED): JobStatus.FAILED,
    (JobStatus.RUNNING, JobEvent.POSTPONED): JobStatus.PENDING,
    (JobStatus.RUNNING, JobEvent.RELEASED): JobStatus.PENDING,
    (JobStatus.RUNNING, JobEvent.CANCELLED): JobStatus.CANCELLED,
    (JobStatus.COMPLETED, JobEvent.REVIVED): JobStatus.PENDING,
    (JobStatus.FAILED, JobEvent.REVIVED): JobStatus.PENDING,
    (JobStatus.CANCELLED, JobEvent.REVIVED): JobStatus.PENDING,
}

BACKOFF_BASE_SECONDS: Final = 5.0
BACKOFF_CAP_SECONDS: Final = 3_600.0
MAX_NODE_LOSSES: Final = 3
MAX_ASKED_DELAY_SECONDS: Final = 31_536_000.0
ASKED_DELAY_SPREAD: Final = 0.1


def transition(status: JobStatus, event: JobEvent) -> JobStatus:
    """The status after `event`; IllegalTransitionError where the table has no such arrow."""
    try:
        return TRANSITIONS[status, event]
    except KeyError:
        raise IllegalTransitionError(status, event) from None


@dataclass(frozen=True, slots=True)
class Completed:
    """The pipeline returned; `result` is JSON text."""

    result: str


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of the pipeline, of its loading or of its result."""

    error: ErrorInfo
    cause: Cause = Cause.EXCEPTION


@dataclass(frozen=True, slots=True)
class RetryAsked:
    """The pipeline asked for another attempt, `delay_seconds` from now at the earliest."""

    delay_seconds: float
    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The pipeline said that no further attempt can help."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """The pipeline found its work done already, or none to do."""

    reason: str


@dataclass(frozen=True, slots=True)
class Died:
    """The worker process ended without settling its job; the message comes from its wait status.

    Attributes:
        exit_code: None where it is unknown or a signal ended the process.
        signal: number of the signal that ended it.
    """

    cause: Cause
    description: str
    exit_code: int | None = None
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class NotStarted:
    """No worker process came up for the claim: our own infrastructure, counted like a lost node."""

    description: str


@dataclass(frozen=True, slots=True)
class NotConnected:
    """The worker came up but got no connection to the database: the job waits, at no cost."""

    description: str


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The database's answer to the claim got lost, so nothing ran; the attempt is refunded."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Somebody outside asked the worker to end (SIGTERM); counted like a lost node."""

    description: str


@dataclass(frozen=True, slots=True)
class Overran:
    """The manager ended the worker for a limit: run time, start, stall or memory."""

    cause: Cause
    description: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The job was to be cancelled and its processes are gone."""


@dataclass(frozen=True, slots=True)
class Released:
    """The node shuts down and gives the job back; the attempt is refunded."""


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The node that ran the job stopped renewing its lease."""

    node_id: str


# How a run ends by itself, in the pipeline's own words.
RunOutcome = Completed | Raised | RetryAsked | GaveUp | NothingToDo

Outcome = (
    RunOutcome
    | Died
    | NotStarted
    | NotConnected
    | Unanswered
    | Interrupted
    | Overran
    | Cancelled
    | Released
    | NodeLost
)


class AttemptBudget(Protocol):
    """What `decide` needs to know of a claimed job; ClaimedJob and RunningJob have it."""

    @property
    def attempt(self) -> int:
        """Attempts that count, the one that just ended included."""

    @property
    def max_attempts(self) -> int:
        """Attempts that the job may use up."""

    @property
    def node_losses(self) -> int:
        """Earlier claims that ended by the loss of their node."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to write about an attempt that ended: one guarded statement takes all of it.

    Attributes:
        delay_seconds: for a job that becomes pending again, until it is due.
        attempt_change: added to the job's count of attempts (-1 refunds).
        node_loss_change: added to its count of lost nodes.
        result: JSON text, only with COMPLETED.
    """

    event: JobEvent
    status: JobStatus
    outcome: AttemptOutcome
    cause: Cause | None = None
    error: ErrorInfo | None = None
    exit_code: int | None = None
    signal: int | None = None
    delay_seconds: float = 0.0
    attempt_change: int = 0
    node_loss_change: int = 0
    result: str | None = None


def backoff_seconds(attempt: int, jitter: float | None = None) -> float:
    """Delay before attempt `attempt + 1`: exponential from 5 s, at most 1 h, half of it random.

    Args:
        attempt: attempts made so far, 1 or more; any size is safe.
        jitter: 0.0 to 1.0 in place of a random number, for tests.
    """
    doublings = min(max(attempt - 1, 0), 20)
    ceiling = min(BACKOFF_CAP_SECONDS, BACKOFF_BASE_SECONDS * 2.0**doublings)
    share = random.random() if jitter is None else jitter  # noqa: S311  spreads load, no secret
    return ceiling * (0.5 + 0.5 * share)


def free_slots(max_concurrent_jobs: int, running: int) -> int:
    """How many jobs a node may claim now: never negative, also after a lowered limit."""
    return max(0, max_concurrent_jobs - running)


def decide(outcome: Outcome, job: AttemptBudget, jitter: float | None = None) -> Verdict:
    """The verdict on the attempt of a running job that ended with `outcome`."""
    match outcome:
        case Completed() | Raised() | RetryAsked() | GaveUp() | NothingToDo():
            return _decide_run(outcome, job, jitter)
        case Cancelled():
            return _verdict(JobEvent.CANCELLED, AttemptOutcome.CANCELLED, Cause.CANCELLED)
        case Released():
            return _verdict(
                JobEvent.RELEASED, AttemptOutcome.RELEASED, Cause.SHUTDOWN, attempt_change=-1
            )
        case NotStarted(description):
            error = ErrorInfo("WorkerNotStarted", description)
            return _lost_attempt(job, Cause.START_FAILED, error, backoff_seconds(1, jitter))
        case NotConnected(description):
            return _verdict(
                JobEvent.RELEASED,
                AttemptOutcome.RELEASED,
                Cause.START_FAILED,
                error=ErrorInfo("WorkerNotConnected", description),
                delay_seconds=backoff_seconds(1, jitter),
                attempt_change=-1,
            )
        case Unanswered():
            return _verdict(
                JobEvent.RELEASED,
                AttemptOutcome.RELEASED,
                Cause.START_FAILED,
                error=ErrorInfo("ClaimUnanswered", "the answer to this claim got lost"),
                attempt_change=-1,
            )
        case Interrupted(description):
            error = ErrorInfo("WorkerInterrupted", description)
            return _lost_attempt(job, Cause.SIGNAL, error, backoff_seconds(1, jitter))
        case NodeLost(node_id):
            error = ErrorInfo("NodeLost", f"node {node_id} stopped renewing its lease")
            return _lost_attempt(job, Cause.NODE_LOST, error, delay_seconds=0.0)
        case Overran(cause, description):
            return _failed_attempt(job, cause, ErrorInfo("LimitExceeded", description), jitter)
        case Died(cause, description, exit_code, signal):
            return _failed_attempt(
                job, cause, ErrorInfo("WorkerDied", description), jitter, exit_code, signal
            )
        case _:
            assert_never(outcome)


def _decide_run(outcome: RunOutcome, job: AttemptBudget, jitter: float | None) -> Verdict:
    match outcome:
        case Completed(result):
            return _verdict(JobEvent.COMPLETED, AttemptOutcome.COMPLETED, result=result)
        case NothingToDo(reason):
            return _verdict(
                JobEvent.COMPLETED,
                AttemptOutcome.COMPLETED,
                Cause.NOTHING_TO_DO,
                result=json.dumps({"nothing_to_do": reason}),
            )
        case GaveUp(error):
            return _verdict(JobEvent.FAILED, AttemptOutcome.FAILED, Cause.GAVE_UP, error=error)
        case RetryAsked(delay_seconds, error):
            return _failed_attempt(
                job, Cause.RETRY_LATER, error, jitter, asked_delay_seconds=delay_seconds
            )
        case Raised(error, cause):
            return _failed_attempt(job, cause, error, jitter)
        case _:
            assert_never(outcome)


def _failed_attempt(
    job: AttemptBudget,
    cause: Cause,
    error: ErrorInfo,
    jitter: float | None,
    exit_code: int | None = None,
    signal: int | None = None,
    asked_delay_seconds: float = 0.0,
) -> Verdict:
    is_last = job.attempt >= job.max_attempts
    return _verdict(
        JobEvent.FAILED if is_last else JobEvent.POSTPONED,
        AttemptOutcome.FAILED,
        cause,
        error=error,
        exit_code=exit_code,
        signal=signal,
        delay_seconds=0.0 if is_last else _retry_delay(job.attempt, asked_delay_seconds, jitter),
    )


def _retry_delay(attempt: int, asked_seconds: float, jitter: float | None) -> float:
    # Never earlier than asked, and not at one instant with all others that were told the same.
    share = random.random() if jitter is None else jitter  # noqa: S311  spreads load, no secret
    asked = min(asked_seconds, MAX_ASKED_DELAY_SECONDS) * (1.0 + ASKED_DELAY_SPREAD * share)
    return max(asked, backoff_seconds(attempt, jitter))


def _lost_attempt(
    job: AttemptBudget, cause: Cause, error: ErrorInfo, delay_seconds: float
) -> Verdict:
    # Counted apart from the attempts: deploys must not use up a healthy job, and a job that
    # kills its nodes must still end.
    is_last = job.node_losses + 1 >= MAX_NODE_LOSSES
    return _verdict(
        JobEvent.FAILED if is_last else JobEvent.RELEASED,
        AttemptOutcome.LOST,
        cause,
        error=error,
        delay_seconds=0.0 if is_last else delay_seconds,
        attempt_change=0 if is_last else -1,
        node_loss_change=1,
    )


def _verdict(
    event: JobEvent,
    outcome: AttemptOutcome,
    cause: Cause | None = None,
    *,
    error: ErrorInfo | None = None,
    exit_code: int | None = None,
    signal: int | None = None,
    delay_seconds: float = 0.0,
    attempt_change: int = 0,
    node_loss_change: int = 0,
    result: str | None = None,
) -> Verdict:
    return Verdict(
        event=event,
        status=transition(JobStatus.RUNNING, event),
        outcome=outcome,
        cause=cause,
        error=error,
        exit_code=exit_code,
        signal=signal,
        delay_seconds=delay_seconds,
        attempt_change=attempt_change,
        node_loss_change=node_loss_change,
        result=result,
    )
