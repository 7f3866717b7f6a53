"""A hand-made history without a fault of Haulage, for tests of the checker to spoil.

10.0  claim 1 on node 100: run "11-a" keeps steps 1 and 2, starts a grandchild
12.0  FAULT: the manager of node 100 is killed; its last renewal was at 11.5
27.0  node 200 takes the job over: claim 2, run "22-b" goes on after step 2
29.9  completed
"""

from dataclasses import replace
from typing import Any

from soak.fault_log import Fault, FaultKind
from soak.history import Attempt, Event, History, JobHistory, LogLine, Stored
from soak.pace import Pace
from soak.witness import Run

JOB = "job-1"
PACE = Pace(seconds=600)
FIRST, SECOND = "11-a", "22-b"


def attempt(claim_no: int = 1, **changes: Any) -> Attempt:
    """Claim 1, which lost its node, or claim 2, which completed."""
    if claim_no == 1:
        usual = Attempt(1, 1, 100, 11, 10.0, 27.0, "lost", "node_lost", "NodeLost", 11.5)
    else:
        usual = Attempt(claim_no, 1, 200, 22, 27.1, 29.92, "completed", None, None, 40.0)
    return replace(usual, **changes)


def event(number: int, claim_no: int, stage: str, at: float, run: str | None = None) -> Event:
    """A milestone where it names a run, else a change of status."""
    return Event(number, claim_no, "milestone" if run else "status", stage, run, at)


def first_run(**changes: Any) -> Run:
    """Cut off when its manager was killed."""
    usual = Run(
        FIRST,
        JOB,
        pid=11,
        started=10.1,
        loaded=(10.1, 0),
        saved=[(10.8, 1), (11.6, 2)],
        last_seen=12.02,
        child_last_seen=12.05,
    )
    return replace(usual, **changes)


def second_run(**changes: Any) -> Run:
    """Goes on at the checkpoint and comes to its end."""
    usual = Run(
        SECOND,
        JOB,
        pid=22,
        started=27.2,
        loaded=(27.2, 2),
        saved=[(28.0, 3), (29.0, 4)],
        last_seen=29.9,
        child_last_seen=29.95,
        ended=29.9,
    )
    return replace(usual, **changes)


def fault(kind: FaultKind = FaultKind.KILL_MANAGER, **changes: Any) -> Fault:
    """The one that explains the first attempt's end."""
    return replace(Fault(kind, 12.0, 12.0, "node-1", node_pid=100), **changes)


def job(**changes: Any) -> JobHistory:
    """The whole job."""
    usual = JobHistory(
        id=JOB,
        kind="family",
        number=7,
        status="completed",
        max_attempts=2,
        steps=4,
        fails=False,
        created_at=9.9,
        attempts=[attempt(1), attempt(2)],
        events=[
            event(1, 0, "pending", 9.9),
            event(2, 1, "running", 10.0),
            event(3, 1, "step 1", 10.7, FIRST),
            event(4, 1, "step 2", 11.5, FIRST),
            event(5, 1, "pending", 27.0),
            event(6, 2, "running", 27.1),
            event(7, 2, "step 3", 27.9, SECOND),
            event(8, 2, "step 4", 28.9, SECOND),
            event(9, 2, "completed", 29.92),
        ],
        logs=[
            LogLine(1, 1, f"run {FIRST}", 10.75),
            LogLine(2, 1, f"run {FIRST}", 11.55),
            LogLine(3, 2, f"run {SECOND}", 27.95),
            LogLine(4, 2, f"run {SECOND}", 28.95),
        ],
        checkpoint=Stored(2, SECOND, 4, 28.98),
        result=Stored(2, SECOND, 4, 29.92),
        runs=[first_run(), second_run()],
    )
    return replace(usual, **changes)


def failed_job(last: Attempt, **changes: Any) -> JobHistory:
    """The job as its one attempt left it, failed for good."""
    whole = job()
    usual = replace(
        whole,
        status="failed",
        attempts=[last],
        events=[*whole.events[:4], event(5, 1, "failed", last.ended_at or 0.0)],
        logs=whole.logs[:2],
        checkpoint=Stored(1, FIRST, 2, 11.59),
        result=None,
        runs=[first_run()],
    )
    return replace(usual, **changes)


def history(
    *jobs: JobHistory, faults: list[Fault] | None = None, promises: dict[str, int] | None = None
) -> History:
    """These jobs, and by default the fault that explains them."""
    found = {each.id: each for each in jobs}
    given = [fault()] if faults is None else faults
    return History(found, promises or {JOB: 7}, given)
