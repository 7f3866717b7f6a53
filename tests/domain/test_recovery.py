"""What the watchdog concludes from rows and processes."""

from typing import Any

import pytest

from app.domain.jobs import Cause, Claim, Limits, RunningJob
from app.domain.lifecycle import NotStarted, Overran
from app.orchestrator.recovery import (
    CONNECT_SECONDS,
    STORING_SILENCE_SECONDS,
    Findings,
    LiveWorker,
    Suspects,
    compare,
    find_overdue,
)

MIB = 1024 * 1024
UNLIMITED = Limits()
TIMED_OUT = Overran(Cause.TIMED_OUT, "ran for 9 s, the limit is 9 s")
START_TIMED_OUT = Overran(
    Cause.START_TIMED_OUT, "its pipeline was still loading after 9 s, the limit is 9 s"
)
STALLED = Overran(Cause.STALLED, "made no progress for 9 s, the limit is 9 s")
OUT_OF_MEMORY = Overran(Cause.OUT_OF_MEMORY, "used 10 MiB, the limit is 9 MiB")
SILENT = NotStarted("no word from the worker in 46 s")

A, B, C = (Claim(name, 1) for name in "abc")


def row(claim: Claim, *, cancel_requested: bool = False) -> RunningJob:
    return RunningJob(
        id=claim.job_id,
        claim_no=claim.claim_no,
        node_id="here",
        attempt=1,
        max_attempts=1,
        node_losses=0,
        run_seconds=1.0,
        cancel_requested=cancel_requested,
    )


def worker(claim: Claim, limits: Limits = UNLIMITED, **facts: Any) -> LiveWorker:
    """One that runs for a second, unless said otherwise."""
    return LiveWorker(
        claim,
        limits,
        **{"alive_seconds": 1.0, "run_seconds": 1.0, "is_loaded": True, **facts},
    )


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
    assert found.cancelled == []


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
    ("limits", "facts", "overrun"),
    [
        # Run time: from the worker's first word on.
        (Limits(9.0), {"run_seconds": 9.0}, None),
        (Limits(9.0), {"run_seconds": 9.1}, TIMED_OUT),
        (Limits(), {"run_seconds": 1e9}, None),
        (Limits(9.0), {"run_seconds": None, "alive_seconds": 44.0}, None),
        # Loading the pipeline: while it goes on only.
        (Limits(None, 9.0), {"run_seconds": 9.1, "is_loaded": False}, START_TIMED_OUT),
        (Limits(None, 9.0), {"run_seconds": 9.0, "is_loaded": False}, None),
        (Limits(None, 9.0), {"run_seconds": 1e9}, None),
        (Limits(9.0, 9.0), {"run_seconds": 9.1, "is_loaded": False}, TIMED_OUT),
        # Stall: from the end of loading on only.
        (Limits(stall_seconds=9.0), {"quiet_seconds": 9.1}, STALLED),
        (Limits(stall_seconds=9.0), {"quiet_seconds": 9.0}, None),
        (Limits(stall_seconds=9.0), {"quiet_seconds": 9.1, "is_loaded": False}, None),
        (Limits(), {"quiet_seconds": 1e9}, None),
        # Memory: whenever it is seen.
        (Limits(memory_limit_bytes=9 * MIB), {"memory_bytes": 9 * MIB}, None),
        (Limits(memory_limit_bytes=9 * MIB), {"memory_bytes": 10 * MIB}, OUT_OF_MEMORY),
        (Limits(memory_limit_bytes=9 * MIB), {"memory_bytes": None}, None),
        (
            Limits(memory_limit_bytes=9 * MIB),
            {"memory_bytes": 10 * MIB, "run_seconds": None},
            OUT_OF_MEMORY,
        ),
        (Limits(), {"memory_bytes": 10**15}, None),
        # No word at all: nothing of the job was touched, so it is not the job's fault.
        (Limits(), {"run_seconds": None, "alive_seconds": CONNECT_SECONDS + 1.4}, SILENT),
        (Limits(1.0, 1.0, 1.0), {"run_seconds": None, "alive_seconds": CONNECT_SECONDS}, None),
    ],
)
def test_a_worker_is_overdue_when_it_exceeds_a_limit(
    limits: Limits, facts: dict[str, Any], overrun: Overran | NotStarted | None
) -> None:
    overdue = find_overdue([worker(A, limits, **facts), worker(B)])

    assert overdue == ({} if overrun is None else {A: overrun})


def test_a_worker_that_only_stores_its_outcome_is_left_alone() -> None:
    limits = Limits(60.0, 60.0, 60.0, MIB)
    storing = worker(A, limits, run_seconds=75.0, memory_bytes=2 * MIB, is_storing=True)

    found = compare([row(A, cancel_requested=True)], [storing], Suspects())

    assert find_overdue([storing]) == {}
    assert list(found.cancelled) == []
    found = compare([], [storing], suspects(processes=(A,)))
    assert (list(found.stray), found.suspects) == ([], suspects())


@pytest.mark.parametrize(
    ("quiet_seconds", "is_overdue"),
    [(STORING_SILENCE_SECONDS, False), (STORING_SILENCE_SECONDS + 1, True)],
)
def test_a_worker_is_overdue_when_it_stores_its_outcome_without_a_word(
    quiet_seconds: float, *, is_overdue: bool
) -> None:
    silent = worker(A, Limits(), run_seconds=1e4, quiet_seconds=quiet_seconds, is_storing=True)

    found = find_overdue([silent])

    words = "its run was over, but nothing was stored for 121 s"
    assert found == ({A: Overran(Cause.STALLED, words)} if is_overdue else {})


def test_strays_come_in_a_stable_order() -> None:
    found = compare([], [worker(C), worker(A), worker(B)], suspects(processes=(A, B, C)))

    assert list(found.stray) == [A, B, C]


def test_nothing_is_found_when_nothing_was_looked_at() -> None:
    assert Findings() == Findings((), (), (), Suspects())
