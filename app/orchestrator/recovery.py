"""What the watchdog decides, purely: rows and processes in, findings out; no I/O, no clock.

    running rows of this node   x   processes of this node
        both                 -> to be cancelled?
        row without process  -> orphaned, when it was so in the pass before too
        process without row  -> stray, when it was so in the pass before too

One pass may see a claim whose process is about to start, or a process whose job was settled a
moment ago; only what lasts from one pass to the next is acted upon.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from app.domain.jobs import Cause, Claim, Limits, RunningJob
from app.domain.lifecycle import NotStarted, Overran

# A worker that only stores its outcome says so each time that the database does not answer, which
# takes it half a minute; one that says nothing is held up by what its pipeline has left.
STORING_SILENCE_SECONDS: Final = 120.0
# What a worker may need to get a first connection, the database being away for a while included.
CONNECT_SECONDS: Final = 45.0
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A process as recovery sees it; durations by the manager's monotonic clock.

    Attributes:
        limits: with every default filled in.
        alive_seconds: since its start.
        run_seconds: since its first word to the database, None before.
        is_loaded: whether its pipeline is imported and constructed.
        quiet_seconds: since the last sign of progress.
        memory_bytes: of all its processes at the last look.
        is_storing: its run is over and it tries to store the outcome, which nobody may cut short
            as long as it says that it does.
    """

    claim: Claim
    limits: Limits
    alive_seconds: float
    run_seconds: float | None = None
    is_loaded: bool = False
    quiet_seconds: float = 0.0
    memory_bytes: int | None = None
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
        cancelled: processes whose job is to be cancelled and whose run is not over.
        orphaned: rows that say "running" on this node where no process runs them.
        stray: processes whose claim is not the running one any more.
        suspects: for the next pass.
    """

    cancelled: Sequence[Claim] = ()
    orphaned: Sequence[RunningJob] = ()
    stray: Sequence[Claim] = ()
    suspects: Suspects = Suspects()


def find_overdue(workers: Collection[LiveWorker]) -> dict[Claim, Overran | NotStarted]:
    """Workers past one of their limits; needs no database, so it works while that is away."""
    found = {worker.claim: _overrun(worker) for worker in workers}
    return {claim: outcome for claim, outcome in found.items() if outcome is not None}


def _overrun(worker: LiveWorker) -> Overran | NotStarted | None:
    """The first limit that a worker exceeds."""
    if worker.is_storing:
        if worker.quiet_seconds <= STORING_SILENCE_SECONDS:
            return None
        description = f"its run was over, but nothing was stored for {worker.quiet_seconds:.0f} s"
        return Overran(Cause.STALLED, description)
    limits = worker.limits
    used, allowed = worker.memory_bytes, limits.memory_limit_bytes
    if used is not None and allowed is not None and used > allowed:
        description = f"used {used / _MIB:.0f} MiB, the limit is {allowed / _MIB:.0f} MiB"
        return Overran(Cause.OUT_OF_MEMORY, description)
    if worker.run_seconds is None:
        # Not the pipeline's fault: nothing of it has been touched yet.
        if worker.alive_seconds > CONNECT_SECONDS:
            return NotStarted(f"no word from the worker in {worker.alive_seconds:.0f} s")
        return None
    for limit, seconds, cause, what in (
        (limits.timeout_seconds, worker.run_seconds, Cause.TIMED_OUT, "ran for"),
        (
            limits.start_timeout_seconds,
            0.0 if worker.is_loaded else worker.run_seconds,
            Cause.START_TIMED_OUT,
            "its pipeline was still loading after",
        ),
        (
            limits.stall_seconds,
            worker.quiet_seconds if worker.is_loaded else 0.0,
            Cause.STALLED,
            "made no progress for",
        ),
    ):
        if limit is not None and seconds > limit:
            return Overran(cause, f"{what} {seconds:.0f} s, the limit is {limit:g} s")
    return None


def compare(
    rows: Sequence[RunningJob], workers: Collection[LiveWorker], before: Suspects
) -> Findings:
    """Compare a node's running rows with its processes."""
    live = {worker.claim for worker in workers}
    storing = {worker.claim for worker in workers if worker.is_storing}
    unfinished = live - storing
    claimed = {row.claim for row in rows}
    missing_process = frozenset(claimed - live)
    missing_row = frozenset(live - claimed - storing)
    return Findings(
        cancelled=[row.claim for row in rows if row.cancel_requested and row.claim in unfinished],
        orphaned=[row for row in rows if row.claim in missing_process & before.rows],
        stray=sorted(missing_row & before.processes, key=lambda claim: claim.job_id),
        suspects=Suspects(missing_process, missing_row),
    )
