"""What each outcome decides, for first and last attempts, refunds and lost nodes."""

import json
from dataclasses import dataclass
from typing import get_args

import pytest

from app.domain.errors import IllegalTransitionError
from app.domain.jobs import AttemptOutcome, Cause, ErrorInfo, JobStatus
from app.domain.lifecycle import (
    BACKOFF_BASE_SECONDS,
    BACKOFF_CAP_SECONDS,
    MAX_ASKED_DELAY_SECONDS,
    MAX_NODE_LOSSES,
    TRANSITIONS,
    Cancelled,
    Completed,
    Died,
    GaveUp,
    Interrupted,
    JobEvent,
    NodeLost,
    NotConnected,
    NothingToDo,
    NotStarted,
    Outcome,
    Overran,
    Raised,
    Released,
    RetryAsked,
    Unanswered,
    Verdict,
    backoff_seconds,
    decide,
)

ERROR = ErrorInfo("ValueError", "no such thing", "Traceback ...")
FAILURES: list[Outcome] = [
    Raised(ERROR),
    Raised(ERROR, Cause.LOAD_FAILED),
    Raised(ERROR, Cause.RESULT_REFUSED),
    Died(Cause.SIGNAL, "worker was ended by SIGKILL", signal=9),
    Died(Cause.EXIT_CODE, "worker ended with exit code 3", exit_code=3),
    Died(Cause.OUT_OF_MEMORY, "out of memory", signal=9),
    Died(Cause.WORKER_LOST, "worker is gone"),
    Overran(Cause.TIMED_OUT, "ran for 9 s, the limit is 8 s"),
    Overran(Cause.STALLED, "no progress for 60 s"),
    RetryAsked(1.0, ERROR),
]
LOSSES: list[Outcome] = [
    NotStarted("no process came up"),
    NodeLost("node-7"),
    Interrupted("ended by SIGTERM from outside"),
]
ENDINGS: list[Outcome] = [
    Completed('{"a":1}'),
    Cancelled(),
    Released(),
    NotConnected("no connection"),
    Unanswered(),
    GaveUp(ERROR),
    NothingToDo("all done yesterday"),
]
EVERY_OUTCOME = [*FAILURES, *LOSSES, *ENDINGS]


@dataclass(frozen=True)
class Budget:
    attempt: int = 1
    max_attempts: int = 1
    node_losses: int = 0


BUDGETS = [
    Budget(attempt, maximum, losses)
    for attempt, maximum in [(1, 1), (1, 3), (2, 3), (3, 3), (5, 3), (10**9, 10**9)]
    for losses in range(MAX_NODE_LOSSES + 2)
]


def test_the_table_of_outcomes_here_is_complete() -> None:
    assert {type(outcome) for outcome in EVERY_OUTCOME} == set(get_args(Outcome))


@pytest.mark.parametrize("outcome", EVERY_OUTCOME, ids=repr)
@pytest.mark.parametrize("budget", BUDGETS, ids=repr)
def test_every_verdict_keeps_the_rules_of_the_table(outcome: Outcome, budget: Budget) -> None:
    verdict = decide(outcome, budget)

    assert verdict.status is TRANSITIONS[JobStatus.RUNNING, verdict.event]
    assert (verdict.result is not None) is (verdict.status is JobStatus.COMPLETED)
    assert (verdict.outcome is AttemptOutcome.COMPLETED) is (
        verdict.cause in {None, Cause.NOTHING_TO_DO}
    )
    assert 0.0 <= verdict.delay_seconds <= BACKOFF_CAP_SECONDS
    if verdict.status is not JobStatus.PENDING:
        assert verdict.delay_seconds == 0.0
        assert verdict.attempt_change == 0
    assert verdict.attempt_change in {0, -1}
    assert verdict.node_loss_change == (1 if outcome in LOSSES else 0)


def test_a_result_is_kept_when_the_pipeline_completes() -> None:
    assert decide(Completed('{"a":1}'), Budget()) == Verdict(
        JobEvent.COMPLETED, JobStatus.COMPLETED, AttemptOutcome.COMPLETED, result='{"a":1}'
    )


def test_a_job_is_done_when_there_is_nothing_to_do() -> None:
    verdict = decide(NothingToDo('no "new" rows'), Budget(1, 3))

    assert (verdict.status, verdict.cause) == (JobStatus.COMPLETED, Cause.NOTHING_TO_DO)
    assert json.loads(verdict.result or "") == {"nothing_to_do": 'no "new" rows'}


def test_a_job_fails_for_good_when_its_pipeline_gives_up() -> None:
    verdict = decide(GaveUp(ERROR), Budget(1, 5))

    assert (verdict.status, verdict.cause, verdict.error) == (
        JobStatus.FAILED,
        Cause.GAVE_UP,
        ERROR,
    )


@pytest.mark.parametrize(
    ("attempt", "asked", "jitter", "delay"),
    [
        # Never earlier than asked, and spread beyond that.
        (1, 60.0, 0.0, 60.0),
        (1, 60.0, 1.0, 66.0),
        (1, 5 * BACKOFF_CAP_SECONDS, 0.0, 5 * BACKOFF_CAP_SECONDS),
        # Nor earlier than without having asked.
        (1, 0.0, 0.0, BACKOFF_BASE_SECONDS / 2),
        (5_000, 1.0, 1.0, BACKOFF_CAP_SECONDS),
        (1, float("inf"), 0.0, MAX_ASKED_DELAY_SECONDS),
    ],
)
def test_a_retry_that_was_asked_for_waits_as_long_as_asked(
    attempt: int, asked: float, jitter: float, delay: float
) -> None:
    verdict = decide(RetryAsked(asked, ERROR), Budget(attempt, attempt + 1), jitter)

    assert (verdict.status, verdict.cause) == (JobStatus.PENDING, Cause.RETRY_LATER)
    assert verdict.delay_seconds == delay


def test_a_job_ends_when_it_was_cancelled_whatever_attempts_are_left() -> None:
    verdict = decide(Cancelled(), Budget(1, 5))

    assert (verdict.status, verdict.cause) == (JobStatus.CANCELLED, Cause.CANCELLED)
    assert verdict.error is None


@pytest.mark.parametrize("budget", [Budget(1, 1), Budget(3, 3), Budget(3, 3, 2)], ids=repr)
def test_the_attempt_is_refunded_and_due_at_once_when_the_node_shuts_down(budget: Budget) -> None:
    verdict = decide(Released(), budget)

    assert (verdict.event, verdict.status) == (JobEvent.RELEASED, JobStatus.PENDING)
    assert (verdict.outcome, verdict.cause) == (AttemptOutcome.RELEASED, Cause.SHUTDOWN)
    assert (verdict.attempt_change, verdict.node_loss_change) == (-1, 0)
    assert verdict.delay_seconds == 0.0


@pytest.mark.parametrize("budget", [Budget(1, 1), Budget(3, 3, MAX_NODE_LOSSES + 1)], ids=repr)
def test_a_job_waits_at_no_cost_when_its_worker_got_no_connection(budget: Budget) -> None:
    verdict = decide(NotConnected("too many clients"), budget, jitter=0.0)

    assert (verdict.event, verdict.status) == (JobEvent.RELEASED, JobStatus.PENDING)
    assert (verdict.outcome, verdict.cause) == (AttemptOutcome.RELEASED, Cause.START_FAILED)
    assert (verdict.attempt_change, verdict.node_loss_change) == (-1, 0)
    assert verdict.delay_seconds == backoff_seconds(1, jitter=0.0)


@pytest.mark.parametrize("budget", [Budget(1, 1), Budget(3, 3, MAX_NODE_LOSSES + 1)], ids=repr)
def test_a_claim_whose_answer_got_lost_costs_nothing_and_is_due_at_once(budget: Budget) -> None:
    verdict = decide(Unanswered(), budget)

    assert (verdict.event, verdict.status) == (JobEvent.RELEASED, JobStatus.PENDING)
    assert (verdict.outcome, verdict.cause) == (AttemptOutcome.RELEASED, Cause.START_FAILED)
    assert (verdict.attempt_change, verdict.node_loss_change) == (-1, 0)
    assert verdict.delay_seconds == 0.0


@pytest.mark.parametrize("outcome", FAILURES, ids=repr)
def test_a_failure_is_final_when_it_was_the_last_attempt(outcome: Outcome) -> None:
    for budget in (Budget(1, 1), Budget(3, 3), Budget(4, 3), Budget(3, 3, 2)):
        verdict = decide(outcome, budget)

        assert (verdict.event, verdict.status) == (JobEvent.FAILED, JobStatus.FAILED)
        assert verdict.outcome is AttemptOutcome.FAILED
        assert verdict.error is not None


@pytest.mark.parametrize("outcome", FAILURES, ids=repr)
def test_a_failure_is_postponed_and_counted_when_attempts_are_left(outcome: Outcome) -> None:
    verdict = decide(outcome, Budget(2, 3), jitter=0.0)

    assert (verdict.event, verdict.status) == (JobEvent.POSTPONED, JobStatus.PENDING)
    assert verdict.outcome is AttemptOutcome.FAILED
    assert verdict.attempt_change == 0
    assert verdict.delay_seconds == backoff_seconds(2, jitter=0.0)


def test_the_attempt_tells_what_happened_when_it_failed() -> None:
    raised = decide(Raised(ERROR, Cause.LOAD_FAILED), Budget())
    assert (raised.error, raised.cause) == (ERROR, Cause.LOAD_FAILED)

    died = decide(Died(Cause.SIGNAL, "ended by SIGKILL", signal=9), Budget())
    assert died.error == ErrorInfo("WorkerDied", "ended by SIGKILL")
    assert (died.cause, died.signal, died.exit_code) == (Cause.SIGNAL, 9, None)

    exited = decide(Died(Cause.EXIT_CODE, "exit code 3", exit_code=3), Budget())
    assert (exited.cause, exited.signal, exited.exit_code) == (Cause.EXIT_CODE, None, 3)

    overran = decide(Overran(Cause.TIMED_OUT, "too long"), Budget())
    assert overran.error == ErrorInfo("LimitExceeded", "too long")


@pytest.mark.parametrize("outcome", LOSSES, ids=repr)
@pytest.mark.parametrize("attempts", [(1, 1), (3, 3), (1, 5)])
def test_the_job_goes_back_unharmed_when_its_node_is_lost(
    outcome: Outcome, attempts: tuple[int, int]
) -> None:
    for losses in range(MAX_NODE_LOSSES - 1):
        verdict = decide(outcome, Budget(*attempts, losses))

        assert (verdict.event, verdict.status) == (JobEvent.RELEASED, JobStatus.PENDING)
        assert verdict.outcome is AttemptOutcome.LOST
        assert (verdict.attempt_change, verdict.node_loss_change) == (-1, 1)


@pytest.mark.parametrize("outcome", LOSSES, ids=repr)
@pytest.mark.parametrize("losses", [MAX_NODE_LOSSES - 1, MAX_NODE_LOSSES, 50])
def test_a_job_that_loses_its_nodes_ends_when_the_cap_is_reached(
    outcome: Outcome, losses: int
) -> None:
    verdict = decide(outcome, Budget(1, 100, losses))

    assert (verdict.event, verdict.status) == (JobEvent.FAILED, JobStatus.FAILED)
    assert (verdict.outcome, verdict.attempt_change) == (AttemptOutcome.LOST, 0)


def test_a_lost_node_is_named_and_its_job_is_due_at_once() -> None:
    verdict = decide(NodeLost("node-7"), Budget())

    assert verdict.error == ErrorInfo("NodeLost", "node node-7 stopped renewing its lease")
    assert (verdict.cause, verdict.delay_seconds) == (Cause.NODE_LOST, 0.0)


def test_a_job_waits_a_little_when_its_process_did_not_come_up() -> None:
    verdict = decide(NotStarted("no memory"), Budget(), jitter=1.0)

    assert verdict.error == ErrorInfo("WorkerNotStarted", "no memory")
    assert (verdict.cause, verdict.delay_seconds) == (Cause.START_FAILED, BACKOFF_BASE_SECONDS)


@pytest.mark.parametrize("attempt", [-(10**6), 0, 1, 2, 5, 10, 11, 20, 21, 5_000, 10**18])
def test_backoff_stays_within_its_bounds_for_any_attempt(attempt: int) -> None:
    least, most = backoff_seconds(attempt, 0.0), backoff_seconds(attempt, 1.0)

    assert BACKOFF_BASE_SECONDS / 2 <= least == most / 2
    assert most <= BACKOFF_CAP_SECONDS
    assert all(least <= backoff_seconds(attempt) <= most for _ in range(100))


def test_backoff_doubles_up_to_its_cap() -> None:
    delays = [backoff_seconds(attempt, 1.0) for attempt in range(1, 13)]

    assert delays == [5, 10, 20, 40, 80, 160, 320, 640, 1_280, 2_560, 3_600, 3_600]


def test_two_hundred_failures_at_once_come_back_spread_out() -> None:
    delays = {decide(Raised(ERROR), Budget(1, 2)).delay_seconds for _ in range(200)}

    assert len(delays) > 190
    assert max(delays) - min(delays) > BACKOFF_BASE_SECONDS / 4


def test_an_illegal_event_says_so_in_its_fields() -> None:
    error = IllegalTransitionError("completed", "claimed")

    assert (error.status, error.event) == ("completed", "claimed")
