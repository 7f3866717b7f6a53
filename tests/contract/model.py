"""What DBInterface promises, said a second time in plain Python; test_stateful.py compares the two.

It never looks at a store and asks the domain for verdicts only: what becomes of a job by a verdict
is stated here once more. It has no clock: a job is due or not, and the instants by which due jobs
are ordered come from the store, which test_stateful.py holds to the delays that it was told.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from hypothesis.vendor.pretty import RepresentationPrinter

from app.db.ids import new_id
from app.domain.errors import IllegalTransitionError, LeaseLostError
from app.domain.jobs import AttemptOutcome, Claim, JobOptions, JobStatus, LogLine, Progress, Usage
from app.domain.lifecycle import JobEvent, Verdict
from app.domain.sharing import FailedCalls, PaidCall


class _Named:
    """Goes by its short name in a failing sequence, where Hypothesis would print all fields."""

    __slots__ = ()

    def _repr_pretty_(
        self,
        printer: RepresentationPrinter,
        cycle: bool,  # noqa: FBT001  Hypothesis passes it so
    ) -> None:
        printer.text(repr(self))


@dataclass(slots=True, eq=False)
class ModelNode(_Named):
    """One boot of a scheduler."""

    name: str
    id: str
    is_registered: bool = True
    is_draining: bool = False
    is_stopped: bool = False
    has_lease: bool = True

    def __repr__(self) -> str:
        return self.name

    @property
    def is_alive(self) -> bool:
        return self.is_registered and self.has_lease and not self.is_stopped

    @property
    def may_claim(self) -> bool:
        return self.is_alive and not self.is_draining


@dataclass(slots=True, eq=False)
class ModelRun(_Named):
    """One claim of a job, with what its worker said; also what `decide` has to know.

    Attributes:
        paid: calls by key.
        found: stage -> calls whose answers were kept already.
        failed: stage -> requests without an answer.
    """

    job: "ModelJob"
    claim_no: int
    attempt: int
    node_losses: int
    node: ModelNode
    pid: int | None = None
    progress: Progress | None = None
    last_line_no: int = 0
    paid: dict[str, PaidCall] = field(default_factory=dict)
    found: dict[str, int] = field(default_factory=dict)
    failed: dict[str, FailedCalls] = field(default_factory=dict)
    verdict: Verdict | None = None
    usage: Usage | None = None

    def __repr__(self) -> str:
        return f"{self.job!r}/claim{self.claim_no}"

    @property
    def max_attempts(self) -> int:
        return self.job.max_attempts

    @property
    def claim(self) -> Claim:
        return Claim(self.job.id, self.claim_no)

    @property
    def stage(self) -> str | None:
        return None if self.progress is None else self.progress.stage


@dataclass(slots=True, eq=False)
class ModelJob(_Named):
    """One job.

    Attributes:
        runs: every claim, oldest first.
        milestones: attempt, stage, fraction and message of each.
    """

    name: str
    id: str
    options: JobOptions
    pipeline: str
    max_attempts: int
    is_due: bool
    run_at: datetime
    status: JobStatus = JobStatus.PENDING
    attempt: int = 0
    node_losses: int = 0
    is_to_cancel: bool = False
    runs: list[ModelRun] = field(default_factory=list)
    milestones: list[tuple[int, str | None, float, str | None]] = field(default_factory=list)
    checkpoints: dict[str, str] = field(default_factory=dict)
    logs: list[LogLine] = field(default_factory=list)

    def __repr__(self) -> str:
        return self.name

    @property
    def claim_no(self) -> int:
        return len(self.runs)

    @property
    def latest(self) -> ModelRun | None:
        return self.runs[-1] if self.runs else None

    @property
    def owner(self) -> ModelNode | None:
        return self.runs[-1].node if self.status is JobStatus.RUNNING else None

    @property
    def result(self) -> str | None:
        """Of the last claim; what an earlier life left does not count."""
        if self.status is not JobStatus.COMPLETED or self.runs[-1].verdict is None:
            return None
        return self.runs[-1].verdict.result


class Model:
    """All jobs and nodes of a store; methods are named after those of DBInterface."""

    def __init__(self) -> None:
        self.jobs: list[ModelJob] = []
        self.nodes: list[ModelNode] = []
        self.paused: set[str] = set()
        self.answers: dict[str, str] = {}
        self.stranger = ModelNode("stranger", new_id(), is_registered=False)

    @property
    def scheduled(self) -> list[ModelJob]:
        """Pending jobs that are not due yet."""
        return [job for job in self.jobs if job.status is JobStatus.PENDING and not job.is_due]

    @property
    def due(self) -> list[ModelJob]:
        return [job for job in self.jobs if job.status is JobStatus.PENDING and job.is_due]

    @property
    def runs(self) -> list[ModelRun]:
        """Every claim that was ever handed out."""
        return [run for job in self.jobs for run in job.runs]

    @property
    def holders(self) -> list[ModelRun]:
        return [run for run in self.runs if self.holds(run)]

    @property
    def expired(self) -> list[ModelNode]:
        """Nodes that did not renew in time and were not ended otherwise."""
        return [node for node in self.nodes if not node.has_lease and not node.is_stopped]

    def holds(self, run: ModelRun) -> bool:
        """Whether this is the claim by which its job runs now."""
        return run.job.status is JobStatus.RUNNING and run.claim_no == run.job.claim_no

    def held(self, run: ModelRun) -> ModelRun:
        if not self.holds(run):
            raise LeaseLostError(run.job.id, run.claim_no)
        return run

    # -- from outside -------------------------------------------------------------------------

    def cancel(self, job: ModelJob) -> JobStatus:
        match job.status:
            case JobStatus.PENDING:
                job.status = JobStatus.CANCELLED
                job.is_to_cancel = True
            case JobStatus.RUNNING:
                job.is_to_cancel = True
            case JobStatus.COMPLETED | JobStatus.FAILED:
                raise IllegalTransitionError(job.status, JobEvent.CANCELLED)
            case JobStatus.CANCELLED:
                pass
        return job.status

    def retry(self, job: ModelJob) -> None:
        if job.status in {JobStatus.PENDING, JobStatus.RUNNING}:
            raise IllegalTransitionError(job.status, JobEvent.REVIVED)
        if job.status is JobStatus.COMPLETED:
            job.checkpoints.clear()
        job.status = JobStatus.PENDING
        job.is_due = True
        job.is_to_cancel = False
        job.attempt = 0
        job.node_losses = 0

    # -- claiming -----------------------------------------------------------------------------

    def claim(self, node: ModelNode, limit: int, pipelines: Sequence[str] | None) -> list[ModelRun]:
        if not node.may_claim:
            return []
        waiting = [
            job
            for job in self.due
            if job.options.queue not in self.paused
            and (pipelines is None or job.pipeline in pipelines)
        ]
        waiting.sort(key=lambda job: (-job.options.priority, job.run_at, job.id))
        return [self._claim(job, node) for job in waiting[:limit]]

    def _claim(self, job: ModelJob, node: ModelNode) -> ModelRun:
        job.status = JobStatus.RUNNING
        job.attempt += 1
        job.runs.append(ModelRun(job, job.claim_no + 1, job.attempt, job.node_losses, node))
        return job.runs[-1]

    def lost(self) -> list[ModelRun]:
        return [
            job.runs[-1] for job in self.jobs if job.owner is not None and not job.owner.is_alive
        ]

    # -- the holder's writes ------------------------------------------------------------------

    def report_started(self, run: ModelRun, pid: int) -> None:
        self.held(run).pid = pid

    def report_progress(self, run: ModelRun, progress: Progress, *, is_milestone: bool) -> None:
        if is_milestone and self.held(run).stage != progress.stage:
            told = (run.attempt, progress.stage, progress.fraction, progress.message)
            run.job.milestones.append(told)
        self.held(run).progress = progress

    def append_logs(self, run: ModelRun, lines: Sequence[LogLine]) -> None:
        fresh = [line for line in lines if line.number > self.held(run).last_line_no]
        run.job.logs += fresh
        run.last_line_no = max([run.last_line_no, *(line.number for line in fresh)])

    def save_checkpoint(self, run: ModelRun, stage: str, data: str) -> None:
        self.held(run).job.checkpoints[stage] = data

    def save_call(self, run: ModelRun, call: PaidCall) -> None:
        self.answers.setdefault(call.key, call.answer)  # whoever holds the job
        self.held(run).paid.setdefault(call.key, call)

    def count_cached_calls(self, run: ModelRun, stage: str, total: int) -> None:
        self.held(run).found[stage] = max(total, run.found.get(stage, 0))

    def count_failed_calls(self, run: ModelRun, stage: str, total: FailedCalls) -> None:
        before = self.held(run).failed.get(stage, FailedCalls())
        run.failed[stage] = FailedCalls(
            max(total.calls, before.calls), max(total.prompt_tokens, before.prompt_tokens)
        )

    def finish(self, run: ModelRun, verdict: Verdict, usage: Usage | None) -> bool:
        if not self.holds(run):
            return False
        assert run.verdict is None, "a claim ends once"
        run.verdict = verdict
        run.usage = usage
        if verdict.outcome is AttemptOutcome.COMPLETED:
            run.progress = replace(run.progress or Progress(1.0), fraction=1.0)
        job = run.job
        job.attempt += verdict.attempt_change
        job.node_losses += verdict.node_loss_change
        if verdict.status is not JobStatus.PENDING:
            job.status = verdict.status
        elif job.is_to_cancel:
            job.status = JobStatus.CANCELLED
        else:
            job.status = JobStatus.PENDING
            job.is_due = verdict.delay_seconds == 0.0
        return True

    def rescue(self, run: ModelRun, verdict: Verdict) -> bool:
        return not run.node.is_alive and self.finish(run, verdict, None)

    # -- nodes and time -----------------------------------------------------------------------

    def renew(self, node: ModelNode) -> bool:
        return node.is_alive

    def drain(self, node: ModelNode) -> None:
        node.is_draining = True

    def deregister(self, node: ModelNode) -> None:
        node.is_stopped = True

    def let_wait(self, job: ModelJob, time: timedelta) -> None:
        job.run_at -= time
        job.is_due = True
