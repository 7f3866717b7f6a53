"""What the watchdog decides, purely: rows and processes in, findings out; no I/O, no clock.

    running rows of this node   x   processes of this node
        both                 -> overdue? to be cancelled?
        row without process  -> orphaned, when it was so in the pass before too
        process without row  -> stray, when it was so in the pass before too

One pass may see a claim whose process is about to start, or a process whose job was settled a
moment ago; only what lasts from one pass to the next is acted upon.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from app.domain.jobs import Cause, Claim, RunningJob
from app.domain.lifecycle import Overran


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A process as recovery sees it.

    Attributes:
        run_seconds: by the manager's monotonic clock.
        is_storing: its run is over and it tries to store the outcome, which nobody may cut short.
    """

    claim: Claim
    run_seconds: float
    timeout_seconds: float | None
    is_storing: bool = False


@dataclass(frozen=True, slots=True)
class Suspects:
    """What looked wrong in one pass and is acted upon if it still does in the next."""

    rows: frozenset[Claim] = frozenset()
    processes: frozenset[Claim] = frozenset()


@dataclass(frozen=True, slots=True)
class Findings:
    """What one pass of the watchdog has to do.

    Attributes:
        overdue: processes past their run-time limit, with what to write about them.
        cancelled: processes whose job is to be cancelled.
        orphaned: rows that say "running" on this node where no process runs them.
        stray: processes whose claim is not the running one any more.
        suspects: for the next pass.
    """

    overdue: Mapping[Claim, Overran] = field(default_factory=dict)
    cancelled: Sequence[Claim] = ()
    orphaned: Sequence[RunningJob] = ()
    stray: Sequence[Claim] = ()
    suspects: Suspects = Suspects()


def find_overdue(workers: Collection[LiveWorker]) -> dict[Claim, Overran]:
    """Workers past their run-time limit; needs no database, so it works while that is away."""
    return {
        worker.claim: Overran(
            Cause.TIMED_OUT,
            f"ran for {worker.run_seconds:.0f} s, the limit is {worker.timeout_seconds:g} s",
        )
        for worker in workers
        if worker.timeout_seconds is not None
        and worker.run_seconds > worker.timeout_seconds
        and not worker.is_storing
    }


def compare(
    rows: Sequence[RunningJob], workers: Collection[LiveWorker], before: Suspects
) -> Findings:
    """Compare a node's running rows with its processes."""
    live = {worker.claim for worker in workers}
    storing = {worker.claim for worker in workers if worker.is_storing}
    claimed = {row.claim for row in rows}
    missing_process = frozenset(claimed - live)
    missing_row = frozenset(live - claimed - storing)
    return Findings(
        overdue=find_overdue(workers),
        cancelled=[row.claim for row in rows if row.cancel_requested and row.claim in live],
        orphaned=[row for row in rows if row.claim in missing_process & before.rows],
        stray=sorted(missing_row & before.processes, key=lambda claim: claim.job_id),
        suspects=Suspects(missing_process, missing_row),
    )
