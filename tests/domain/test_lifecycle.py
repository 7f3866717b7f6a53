"""Every arrow that the table has and every one that it has not."""

from dataclasses import FrozenInstanceError

import pytest

from app.domain.errors import IllegalTransitionError
from app.domain.jobs import TERMINAL_STATUSES, AttemptOutcome, JobStatus
from app.domain.lifecycle import TRANSITIONS, JobEvent, Verdict, free_slots, transition

MATRIX = [(status, event) for status in JobStatus for event in JobEvent]
ILLEGAL = [pair for pair in MATRIX if pair not in TRANSITIONS]


@pytest.mark.parametrize(("status", "event"), TRANSITIONS, ids=[f"{s}-{e}" for s, e in TRANSITIONS])
def test_a_job_moves_on_when_the_table_has_the_arrow(status: JobStatus, event: JobEvent) -> None:
    assert transition(status, event) is TRANSITIONS[status, event]


@pytest.mark.parametrize(("status", "event"), ILLEGAL, ids=[f"{s}-{e}" for s, e in ILLEGAL])
def test_an_event_is_refused_when_the_table_has_no_arrow(
    status: JobStatus, event: JobEvent
) -> None:
    with pytest.raises(IllegalTransitionError) as caught:
        transition(status, event)

    assert (caught.value.status, caught.value.event) == (status, event)
    assert str(caught.value) == f"a job that is {status} cannot be {event}"


def test_every_status_is_reached_and_every_event_leads_somewhere() -> None:
    assert {JobStatus.PENDING, *TRANSITIONS.values()} == set(JobStatus)
    assert {event for _, event in TRANSITIONS} == set(JobEvent)


@pytest.mark.parametrize("status", JobStatus)
def test_only_a_revival_leads_out_of_an_end(status: JobStatus) -> None:
    leaving = {event for start, event in TRANSITIONS if start is status}

    assert status.is_terminal is (status in TERMINAL_STATUSES)
    assert (leaving == {JobEvent.REVIVED}) is status.is_terminal


def test_only_a_claim_makes_a_job_run() -> None:
    starting = [pair for pair, status in TRANSITIONS.items() if status is JobStatus.RUNNING]

    assert starting == [(JobStatus.PENDING, JobEvent.CLAIMED)]


def test_a_verdict_cannot_be_changed_afterwards() -> None:
    verdict = Verdict(JobEvent.COMPLETED, JobStatus.COMPLETED, AttemptOutcome.COMPLETED)

    with pytest.raises(FrozenInstanceError):
        verdict.status = JobStatus.FAILED  # type: ignore[misc]


@pytest.mark.parametrize(
    ("limit", "running", "free"),
    [(6, 2, 4), (1, 0, 1), (4, 4, 0), (4, 9, 0), (1_000, 1, 999)],
)
def test_free_slots_are_never_negative(limit: int, running: int, free: int) -> None:
    assert free_slots(limit, running) == free
