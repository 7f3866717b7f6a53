"""What the watchdog concludes from rows and processes."""

import pytest

from app.domain.jobs import Cause, Claim, RunningJob
from app.domain.lifecycle import Overran
from app.orchestrator.recovery import Findings, LiveWorker, Suspects, compare, find_overdue

A, B, C = (Claim(name, 1) for name in "abc")


def row(claim: Claim, *, cancel_requested: bool = False) -> RunningJob:
    return RunningJob(
        id=claim.job_id,
        claim_no=claim.claim_no,
        node_id="here",
        attempt=1,
        max_attempts=1,
        node_losses=0,
        timeout_seconds=None,
        run_seconds=1.0,
        cancel_requested=cancel_requested,
    )


def worker(claim: Claim, run_seconds: float = 1.0, limit: float | None = None) -> LiveWorker:
    return LiveWorker(claim, run_seconds, limit)


def suspects(rows: tuple[Claim, ...] = (), processes: tuple[Claim, ...] = ()) -> Suspects:
    return Suspects(frozenset(rows), frozenset(processes))


@pytest.mark.parametrize(
    ("rows", "workers", "before", "orphaned", "stray", "after"),
    [
        # Nothing to do.
        ((), (), suspects(), [], [], suspects()),
        ((A, B), (A, B), suspects(), [], [], suspects()),
        # A row without a process: suspected once, orphaned when it was so before.
        ((A,), (), suspects(), [], [], suspects(rows=(A,))),
        ((A,), (), suspects(rows=(A,)), [A], [], suspects(rows=(A,))),
        ((A, B), (B,), suspects(rows=(A, B)), [A], [], suspects(rows=(A,))),
        ((A, B), (A,), suspects(rows=(A,)), [], [], suspects(rows=(B,))),
        # A suspicion that did not last is forgotten.
        ((A,), (A,), suspects(rows=(A,)), [], [], suspects()),
        ((), (), suspects(rows=(A,), processes=(B,)), [], [], suspects()),
        # A process without a row: the same.
        ((), (A,), suspects(), [], [], suspects(processes=(A,))),
        ((), (A,), suspects(processes=(A,)), [], [A], suspects(processes=(A,))),
        ((B,), (A, B), suspects(processes=(A, B)), [], [A], suspects(processes=(A,))),
        # Kinds of suspicion do not mix.
        ((A,), (), suspects(processes=(A,)), [], [], suspects(rows=(A,))),
        ((), (A,), suspects(rows=(A,)), [], [], suspects(processes=(A,))),
        # All of it at once.
        ((A, B), (B, C), suspects((A,), (C,)), [A], [C], suspects((A,), (C,))),
    ],
)
def test_only_what_lasts_for_two_passes_is_acted_upon(
    rows: tuple[Claim, ...],
    workers: tuple[Claim, ...],
    before: Suspects,
    orphaned: list[Claim],
    stray: list[Claim],
    after: Suspects,
) -> None:
    found = compare([row(claim) for claim in rows], [worker(claim) for claim in workers], before)

    assert [orphan.claim for orphan in found.orphaned] == orphaned
    assert list(found.stray) == stray
    assert found.suspects == after
    assert (found.cancelled, dict(found.overdue)) == ([], {})


def test_a_newer_claim_of_the_same_job_is_another_one() -> None:
    old, new = Claim("a", 1), Claim("a", 2)

    found = compare([row(new)], [worker(old)], Suspects())
    assert found.suspects == suspects(rows=(new,), processes=(old,))

    found = compare([row(new)], [worker(old)], found.suspects)
    assert [orphan.claim for orphan in found.orphaned] == [new]
    assert list(found.stray) == [old]


def test_a_cancelled_job_is_found_when_its_process_lives() -> None:
    rows = [row(A, cancel_requested=True), row(B), row(C, cancel_requested=True)]

    found = compare(rows, [worker(A), worker(B)], Suspects())

    assert found.cancelled == [A]


@pytest.mark.parametrize(
    ("run_seconds", "limit", "is_overdue"),
    [(8.9, 9.0, False), (9.0, 9.0, False), (9.1, 9.0, True), (1e9, None, False), (0.2, 0.1, True)],
)
def test_a_worker_is_overdue_when_it_ran_longer_than_its_limit(
    run_seconds: float, limit: float | None, *, is_overdue: bool
) -> None:
    overdue = find_overdue([worker(A, run_seconds, limit), worker(B)])

    assert set(overdue) == ({A} if is_overdue else set())
    assert compare([], [worker(A, run_seconds, limit)], Suspects()).overdue == overdue


def test_a_worker_that_only_stores_its_outcome_is_neither_overdue_nor_stray() -> None:
    storing = LiveWorker(A, 75.0, 60.0, is_storing=True)

    found = compare([], [storing], suspects(processes=(A,)))

    assert (dict(found.overdue), list(found.stray)) == ({}, [])
    assert found.suspects == suspects()


def test_an_overdue_worker_is_told_with_its_figures() -> None:
    assert find_overdue([worker(A, 75.4, 60.0)]) == {
        A: Overran(Cause.TIMED_OUT, "ran for 75 s, the limit is 60 s")
    }


def test_strays_come_in_a_stable_order() -> None:
    found = compare([], [worker(C), worker(A), worker(B)], suspects(processes=(A, B, C)))

    assert list(found.stray) == [A, B, C]


def test_nothing_is_found_when_nothing_was_looked_at() -> None:
    assert Findings() == Findings({}, (), (), (), Suspects())
