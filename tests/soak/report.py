"""The report of a soak, in Markdown; its last line is the summary."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from soak.checker import Finding, Judgement, Wrong
from soak.fault_log import Fault, FaultKind
from soak.history import History, JobHistory
from soak.pace import KINDS, Pace

SHOWN_FINDINGS: Final = 40
SHOWN_JOBS: Final = 8
AROUND_SECONDS: Final = 20.0

MEASURED: Final = (
    "Recovery is measured for each attempt that a fault ended: from the shot (or from the claim, "
    "where that came later) to the start of the job's next claim; to the verdict on the attempt "
    "where none follows or where the retry waits on purpose (backoff after a crash). Where a node "
    "that was told to end could not give a job back, the clock starts when its manager is gone."
)


@dataclass(frozen=True, slots=True)
class Soak:
    """One soak with its judgement.

    Attributes:
        incidents: what nodes did that nobody had asked for.
        not_done: planned faults that found no target.
        drain_seconds: None where the queue did not drain.
    """

    pace: Pace
    seed: int
    machine: str
    roles: Sequence[str]
    history: History
    judgement: Judgement
    incidents: Sequence[str]
    not_done: Sequence[FaultKind]
    drain_seconds: float | None
    sent: int
    refused: int

    @property
    def has_passed(self) -> bool:
        """Nothing lost, nothing doubled, no incident, and recovered in time."""
        is_in_time = percentile(self.recovery_seconds, 0.99) <= self.pace.recovery_seconds
        return not self.judgement.findings and not self.incidents and is_in_time

    @property
    def recovery_seconds(self) -> list[float]:
        """All recoveries."""
        return [recovery.seconds for recovery in self.judgement.recoveries]

    @property
    def summary(self) -> str:
        """The last line."""
        values = self.recovery_seconds
        return (
            f"{len(self.history.jobs)} jobs, {len(self.history.faults)} faults, "
            f"{self.judgement.count(Wrong.LOST)} lost, "
            f"{self.judgement.count(Wrong.DOUBLED)} doubled, "
            f"recovery p50 {percentile(values, 0.5):.2f} s p99 {percentile(values, 0.99):.2f} s"
        )


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def render(soak: Soak) -> str:
    """The whole report."""
    blocks = [
        _heading(soak),
        _jobs(soak.history),
        _faults(soak),
        MEASURED,
        _incidents(soak),
        _findings(soak),
        soak.summary,
    ]
    return "\n\n".join(block for block in blocks if block)


def _heading(soak: Soak) -> str:
    pace = soak.pace
    drained = "never" if soak.drain_seconds is None else f"in {soak.drain_seconds:.1f} s"
    roles = ", ".join(f"{count} {role}" for role, count in sorted(Counter(soak.roles).items()))
    return (
        f"# Soak of {pace.seconds:.0f} s, seed {soak.seed}\n\n"
        f"{soak.machine}. Nodes: {roles}, each with {pace.jobs_per_node} slots, lease "
        f"{pace.lease_seconds:g} s, heartbeat {pace.heartbeat_seconds:g} s, watch period "
        f"{pace.watch_seconds:g} s; recovery has to come within {pace.recovery_seconds:g} s.\n"
        f"Of {soak.sent} submissions {soak.refused} got no answer. The queue drained {drained}."
    )


def _jobs(history: History) -> str:
    rows = []
    for kind in KINDS:
        jobs = [job for job in history.jobs.values() if job.kind == kind]
        statuses = Counter(job.status for job in jobs)
        claims = sum(len(job.attempts) for job in jobs)
        went_on = sum(
            run.loaded is not None and run.loaded[1] > 0 for job in jobs for run in job.runs
        )
        rows.append((kind, len(jobs), statuses["completed"], statuses["failed"], claims, went_on))
    return _table(
        ("jobs", "number", "completed", "failed", "claims", "went on at a checkpoint"), rows
    )


def _faults(soak: Soak) -> str:
    rows = []
    for kind in FaultKind:
        count = sum(fault.kind is kind for fault in soak.history.faults)
        missed = soak.not_done.count(kind)
        values = [r.seconds for r in soak.judgement.recoveries if r.kind is kind]
        figures = [f"{percentile(values, share):.2f}" if values else "" for share in (0.5, 0.99)]
        worst = f"{max(values):.2f}" if values else ""
        rows.append((kind.value, count, missed or "", len(values), *figures, worst))
    title = ("fault", "number", "no target", "ended attempts", "p50 s", "p99 s", "max s")
    return _table(title, rows)


def _incidents(soak: Soak) -> str:
    if not soak.incidents:
        return ""
    return "Incidents:\n\n" + "\n".join(f"- {incident}" for incident in soak.incidents)


def _findings(soak: Soak) -> str:
    findings = soak.judgement.findings
    if not findings:
        return "Findings: none."
    lines = [f"- {f.wrong}: job {f.job_id}: {f.what}" for f in findings[:SHOWN_FINDINGS]]
    if len(findings) > SHOWN_FINDINGS:
        lines.append(f"- and {len(findings) - SHOWN_FINDINGS} more")
    extracts = [
        extract(soak.history.jobs[job_id], soak.history.faults)
        for job_id in _first_jobs(findings, soak.history)
    ]
    return "\n".join(["Findings:", "", *lines]) + "\n\n" + "\n\n".join(extracts)


def _first_jobs(findings: Iterable[Finding], history: History) -> list[str]:
    ids = dict.fromkeys(f.job_id for f in findings if f.job_id in history.jobs)
    return list(ids)[:SHOWN_JOBS]


def extract(job: JobHistory, faults: Iterable[Fault]) -> str:
    """The story of one job, in seconds since its submission."""
    told = sorted(_story(job))
    end = told[-1][0]
    nodes = {attempt.node_pid for attempt in job.attempts}
    for fault in faults:
        is_near = job.created_at - AROUND_SECONDS <= fault.began <= end
        if is_near and (fault.node_pid is None or fault.node_pid in nodes):
            length = fault.ended - fault.began
            told.append((fault.began, f"FAULT {fault.kind} for {length:.1f} s: {fault.target}"))
    lines = [f"{instant - job.created_at:9.3f}  {what}" for instant, what in sorted(told)]
    title = (
        f"Job {job.id}, {job.kind}, {job.status}, at most {job.max_attempts} attempts, "
        f"{job.steps} steps:"
    )
    return "\n".join([title, "", "```", *lines, "```"])


def _story(job: JobHistory) -> Iterator[tuple[float, str]]:
    yield job.created_at, "submitted"
    for attempt in job.attempts:
        name = f"claim {attempt.claim_no}"
        yield attempt.started_at, f"{name} by node pid {attempt.node_pid}, job pid {attempt.pid}"
        if attempt.ended_at is not None:
            error = f" {attempt.error_class}" if attempt.error_class else ""
            yield attempt.ended_at, f"{name} {attempt.outcome} {attempt.cause or ''}{error}"
    for event in job.events:
        yield event.created_at, f"event {event.id} of claim {event.claim_no}: {event.stage}"
    for run in job.runs:
        yield run.started, f"run {run.id} began"
        if run.loaded is not None:
            yield run.loaded[0], f"run {run.id} went on after step {run.loaded[1]}"
        for instant, step in run.saved:
            yield instant, f"run {run.id} kept step {step}"
        yield run.last_seen, f"run {run.id} last seen"
        if run.child_last_seen is not None:
            yield run.child_last_seen, f"grandchild of run {run.id} last seen"
        if run.ended is not None:
            yield run.ended, f"run {run.id} was through"
    for stored, what in ((job.checkpoint, "checkpoint"), (job.result, "result")):
        if stored is not None:
            yield stored.at, f"{what} stored by claim {stored.claim_no}, run {stored.run}"


def _table(title: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [title, ["---"] * len(title), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
