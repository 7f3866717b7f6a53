"""The judgement on a soak, from the database, the witness files and the log of faults alone.

    lost      what was promised and is not there: a job, its end, its result, its checkpoint
    doubled   what happened twice: ends, accepted writes of two claims, runs at the same time, a
              re-run without a reason, a process that goes on after its attempt

Each rule is a generator of sentences about one job.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

from soak.explaining import Explanations, is_deliberate
from soak.fault_log import FaultKind
from soak.history import TERMINAL, Attempt, History, JobHistory
from soak.pace import Pace

# How exactly the clocks of database and witnesses can be compared.
CLOCK_SECONDS: Final = 0.05
# What is left of a job's processes has to be gone so soon after its attempt's end.
AFTERLIFE_SECONDS: Final = 3.0
MAX_NODE_LOSSES: Final = 3
# Ends after which a retry waits on purpose: their recovery is the verdict, not the next claim.
DELAYED_CAUSES: Final = frozenset({"signal", "worker_lost", "start_failed", "exception"})


class Wrong(StrEnum):
    """The two things that must not happen."""

    LOST = "lost"
    DOUBLED = "doubled"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with one job."""

    wrong: Wrong
    job_id: str
    what: str


@dataclass(frozen=True, slots=True)
class Recovery:
    """From a fault to what became of the attempt that it ended."""

    kind: FaultKind
    job_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """All that was found, and how long recoveries took."""

    findings: list[Finding]
    recoveries: list[Recovery]

    def count(self, wrong: Wrong) -> int:
        """How many jobs have such a finding."""
        return len({finding.job_id for finding in self.findings if finding.wrong is wrong})


def judge(history: History, pace: Pace) -> Judgement:
    """Apply every rule to every job."""
    faults = Explanations(history.faults, pace)
    findings = [
        Finding(Wrong.LOST, job_id, "its submission was answered, but there is no such job")
        for job_id in history.promises
        if job_id not in history.jobs
    ]
    numbers = Counter(job.number for job in history.jobs.values())
    recoveries: list[Recovery] = []
    for job in history.jobs.values():
        if numbers[job.number] > 1:
            what = f"submission {job.number} was stored as {numbers[job.number]} jobs"
            findings.append(Finding(Wrong.DOUBLED, job.id, what))
        findings += [Finding(Wrong.LOST, job.id, what) for what in _losses(job, faults)]
        findings += [Finding(Wrong.DOUBLED, job.id, what) for what in _doublings(job, faults)]
        recoveries += _recoveries(job, faults)
    return Judgement(findings, recoveries)


# -- lost -----------------------------------------------------------------------------------------


def _losses(job: JobHistory, faults: Explanations) -> Iterator[str]:
    if not job.is_terminal:
        yield f"still {job.status} at the end"
    for attempt in job.attempts:
        if attempt.outcome is None:
            yield f"claim {attempt.claim_no} was never ended"
    if job.status == "completed":
        yield from _lost_results(job)
    if job.status == "failed":
        yield from _undeserved_failures(job, faults)
    if job.status == "cancelled":
        yield "cancelled, which nobody had asked for"
    yield from _lost_checkpoints(job)


def _lost_results(job: JobHistory) -> Iterator[str]:
    if job.fails:
        yield "completed, though it fails on purpose"
    if "completed" not in [attempt.outcome for attempt in job.attempts]:
        yield "completed without a completed attempt"
    if job.result is None:
        yield "completed without a result"
        return
    run = next((run for run in job.runs if run.id == job.result.run), None)
    if run is None or run.ended is None:
        yield f"its result is that of {job.result.run}, which no witness saw at its end"
    if job.result.step != job.steps:
        yield f"its result counts {job.result.step} steps of {job.steps}"


def _undeserved_failures(job: JobHistory, faults: Explanations) -> Iterator[str]:
    if not job.attempts:
        yield "failed without ever being claimed"
        return
    last = job.attempts[-1]
    losses = sum(attempt.outcome == "lost" for attempt in job.attempts)
    if last.outcome == "lost":
        if losses < MAX_NODE_LOSSES:
            yield f"failed after {losses} losses of its node"
    elif last.attempt < job.max_attempts:
        yield f"failed in attempt {last.attempt} of {job.max_attempts}"
    if not _is_explained(job, last, faults):
        yield f"failed by {_words(last)}, which no fault explains"


def _lost_checkpoints(job: JobHistory) -> Iterator[str]:
    acknowledged = [saved for run in job.runs for saved in run.saved]
    for run in job.runs:
        if run.loaded is None:
            continue
        asked, found = run.loaded
        known = max((step for instant, step in acknowledged if instant < run.started), default=0)
        if found < known:
            yield f"run {run.id} found step {found} where {known} had been kept ({asked:.3f})"
    if job.checkpoint is not None and job.status == "completed":
        kept = max((step for _, step in acknowledged), default=0)
        if job.checkpoint.step < kept:
            yield f"its checkpoint is step {job.checkpoint.step}, after {kept} had been kept"


# -- doubled --------------------------------------------------------------------------------------


def _doublings(job: JobHistory, faults: Explanations) -> Iterator[str]:
    yield from _doubled_ends(job)
    yield from _disorder(job)
    yield from _foreign_writes(job)
    yield from _late_writes(job)
    yield from _doubled_rows(job)
    yield from _doubled_runs(job, faults)
    yield from _unexplained_ends(job, faults)
    yield from _survivors(job, faults)


def _doubled_ends(job: JobHistory) -> Iterator[str]:
    completed = [a.claim_no for a in job.attempts if a.outcome == "completed"]
    if len(completed) > 1:
        yield f"claims {completed} all completed"
    ends = [e for e in job.events if e.kind == "status" and e.stage in TERMINAL]
    if len(ends) > 1:
        yield f"ended {len(ends)} times: {[f'{e.stage} by claim {e.claim_no}' for e in ends]}"
    if job.result is not None and job.result.claim_no not in completed:
        yield f"its result is stored by claim {job.result.claim_no}, completed are {completed}"


def _disorder(job: JobHistory) -> Iterator[str]:
    """Events in the order of their ids: the holder alone writes, one after the other holds."""
    holder: int | None = None
    latest = 0
    for event in job.events:
        if event.kind == "status" and event.stage == "running":
            if holder is not None or event.claim_no <= latest:
                yield f"claim {event.claim_no} began while {holder or latest} held the job"
            holder = latest = event.claim_no
        elif event.claim_no == 0:
            continue  # the submission
        elif event.claim_no != holder:
            yield (
                f"{event.kind} {event.stage!r} of claim {event.claim_no} was accepted "
                f"while {f'claim {holder}' if holder else 'nobody'} held the job"
            )
        elif event.kind == "status":
            holder = None


def _foreign_writes(job: JobHistory) -> Iterator[str]:
    """Everything stored names the run that wrote it: it has to be one of that claim's process."""
    written = [
        (f"milestone {e.stage!r}", e.claim_no, e.message or "?")
        for e in job.events
        if e.kind == "milestone"
    ]
    written += [("log line", line.claim_no, line.line.removeprefix("run ")) for line in job.logs]
    if job.checkpoint is not None:
        written.append(("checkpoint", job.checkpoint.claim_no, job.checkpoint.run))
    if job.result is not None:
        written.append(("result", job.result.claim_no, job.result.run))
    attempts = {attempt.claim_no: attempt for attempt in job.attempts}
    for what, claim_no, run_id in written:
        run = next((run for run in job.runs if run.id == run_id), None)
        if run is None or claim_no not in attempts:
            yield f"{what} of claim {claim_no} names run {run_id}, which nobody saw"
        elif job.attempt_of(run) is not attempts[claim_no]:
            yield f"{what} of claim {claim_no} was written by run {run_id} of another claim"


def _late_writes(job: JobHistory) -> Iterator[str]:
    for attempt, following in pairwise(job.attempts):
        end = following.started_at + CLOCK_SECONDS
        for event in job.events:
            if event.claim_no == attempt.claim_no and event.created_at > end:
                yield f"{event.stage!r} of claim {attempt.claim_no} accepted after the next claim"
        for line in job.logs:
            if line.claim_no == attempt.claim_no and line.at > end:
                yield f"a log line of claim {attempt.claim_no} accepted after the next claim"
        kept = job.checkpoint
        if kept is not None and kept.claim_no == attempt.claim_no and kept.at > end:
            yield f"a checkpoint of claim {attempt.claim_no} accepted after the next claim"
    lines = [line.claim_no for line in job.logs]
    if lines != sorted(lines):
        yield "log lines of an earlier claim were accepted after those of a later one"


def _doubled_rows(job: JobHistory) -> Iterator[str]:
    stages = Counter((e.claim_no, e.stage) for e in job.events if e.kind == "milestone")
    for (claim_no, stage), count in stages.items():
        if count > 1:
            yield f"milestone {stage!r} of claim {claim_no} is stored {count} times"
    lines = Counter((line.claim_no, line.at) for line in job.logs)
    for (claim_no, instant), count in lines.items():
        if count > 1:
            yield f"a log line of claim {claim_no} is stored {count} times ({instant:.3f})"


def _doubled_runs(job: JobHistory, faults: Explanations) -> Iterator[str]:
    for run in job.runs:
        if job.attempt_of(run) is None:
            yield f"run {run.id} belongs to no claim"
    for attempt in job.attempts:
        runs = job.runs_of(attempt)
        if len(runs) > 1:
            yield f"claim {attempt.claim_no} ran {len(runs)} times"
    for attempt, following in pairwise(job.attempts):
        taken = following.started_at
        for run in job.runs_of(attempt):
            is_over = run.last_seen <= taken + CLOCK_SECONDS
            if is_over or faults.excuse(attempt, taken, run.last_seen, faults.pace.lease_seconds):
                continue
            yield (
                f"run {run.id} of claim {attempt.claim_no} was at work "
                f"{run.last_seen - taken:.2f} s after claim {following.claim_no} began"
            )


def _unexplained_ends(job: JobHistory, faults: Explanations) -> Iterator[str]:
    for attempt, following in pairwise(job.attempts):
        if attempt.outcome is not None and not _is_explained(job, attempt, faults):
            yield (
                f"claim {following.claim_no} followed on {_words(attempt)} of claim "
                f"{attempt.claim_no}, which no fault explains"
            )


def _survivors(job: JobHistory, faults: Explanations) -> Iterator[str]:
    for attempt in job.attempts:
        if attempt.ended_at is None:
            continue
        allowed = attempt.ended_at + AFTERLIFE_SECONDS
        for run in job.runs_of(attempt):
            for who, last in (("the job", run.last_seen), ("its grandchild", run.child_last_seen)):
                if last is None or last <= allowed:
                    continue
                awake = (allowed, last, AFTERLIFE_SECONDS)
                if not (faults.excuse(attempt, *awake) or faults.slept(attempt, *awake)):
                    late = last - attempt.ended_at
                    yield f"{who} of run {run.id} lived {late:.1f} s after its attempt's end"


# -- recovery -------------------------------------------------------------------------------------


def _recoveries(job: JobHistory, faults: Explanations) -> Iterator[Recovery]:
    followers: list[Attempt | None] = [*job.attempts[1:], None]
    for attempt, following in zip(job.attempts, followers, strict=False):
        fault = None if attempt.outcome == "completed" else faults.explaining(attempt)
        if fault is None or attempt.ended_at is None:
            continue
        is_decided = following is None or attempt.cause in DELAYED_CAUSES
        until = attempt.ended_at if is_decided or following is None else following.started_at
        # Until it is gone, a node that was told to end looks after its jobs.
        is_late = fault.kind is FaultKind.STOP_NODE and attempt.cause == "node_lost"
        hit_at = fault.ended if is_late else fault.began
        seconds = max(0.0, until - max(hit_at, attempt.started_at))
        yield Recovery(fault.kind, job.id, seconds)


def _is_explained(job: JobHistory, attempt: Attempt, faults: Explanations) -> bool:
    if is_deliberate(attempt):
        return job.fails
    return faults.explaining(attempt) is not None


def _words(attempt: Attempt) -> str:
    error = f", {attempt.error_class}" if attempt.error_class else ""
    return f"{attempt.outcome} ({attempt.cause}{error})"
