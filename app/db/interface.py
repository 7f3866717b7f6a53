"""`DBInterface`: everything that Haulage asks of a database; adapters implement it.

Contract of every method: it is one short piece of work with a bounded wait; it raises
`DatabaseUnavailableError` where the store cannot be reached or does not answer in time, and then
may or may not have happened unless its docstring says more. All instants are the store's own clock.
Every write about a running job takes a `Claim` and changes nothing unless that claim is the
running one; the suite in tests/contract holds every adapter to this page.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol

from app.db.contracts.datasets import DatasetStore
from app.db.contracts.following import FollowingDB
from app.db.contracts.health import HealthStore
from app.db.contracts.keys import KeyStore
from app.db.contracts.managing import ManagingDB
from app.db.contracts.results import ResultStore
from app.db.contracts.retention import RetentionDB
from app.db.contracts.submitting import Submitting
from app.db.contracts.webhooks import WebhookStore
from app.domain.jobs import (
    Attempt,
    Claim,
    ClaimedJob,
    Job,
    JobStatus,
    LogLine,
    Milestone,
    NodeInfo,
    Progress,
    RunningJob,
    Usage,
    WakeUp,
)
from app.domain.keys import PendingCaps
from app.domain.lifecycle import Verdict
from app.domain.sharing import CallUsage, FailedCalls, PaidCall


class DBInterface(
    HealthStore,
    Submitting,
    FollowingDB,
    DatasetStore,
    ResultStore,
    ManagingDB,
    RetentionDB,
    KeyStore,
    WebhookStore,
    Protocol,
):
    """The store of jobs, their history and the nodes that run them."""

    async def open(self) -> None:
        """Connect; optional, every other method connects by itself at first use."""

    async def close(self) -> None:
        """Give every connection back within a few seconds; a second call does nothing."""

    # -- reading ----------------------------------------------------------------------------

    async def get_job(self, job_id: str) -> Job:
        """The job with the state of its latest attempt; JobNotFoundError.

        Its milestones as of the same instant are those up to `last_event_id`.
        """

    async def list_milestones(self, job_id: str) -> list[Milestone]:
        """The stages that the job entered, oldest first, over all attempts; [] if unknown."""

    async def list_attempts(self, job_id: str) -> list[Attempt]:
        """Every claim of the job, oldest first; [] if unknown."""

    async def list_logs(self, job_id: str, limit: int = 1_000) -> list[LogLine]:
        """The last `limit` log lines of the job, oldest first; [] if unknown."""

    async def list_usage(self, job_id: str) -> list[CallUsage]:
        """What the job's calls cost in all its attempts, by stage and model; [] if unknown."""

    # -- ending and starting over -------------------------------------------------------------

    async def cancel_job(self, job_id: str) -> JobStatus:
        """Have a job end: a pending one at once, a running one by whoever runs it.

        Returns CANCELLED where the job is cancelled now, or was before, and RUNNING where the
        wish is noted: its processes end first, then it is cancelled. Whatever would make such a
        job pending again (a failed attempt, a lost node) cancels it instead; a result that was
        stored before the end of its processes stays.

        Raises:
            JobNotFoundError
            IllegalTransitionError: it has completed or failed already; nothing is changed.
        """

    async def retry_job(self, job_id: str, caps: PendingCaps | None = None) -> None:
        """Make an ended job pending again, due now, with a fresh budget of attempts and losses.

        Its attempts, milestones and logs stay. A failed or cancelled job keeps its checkpoints
        and goes on from them, a completed one starts over.

        Args:
            caps: what its submitter, if known, may have waiting; those of a key go before. As with
                `count_pending`, calls at the same time may count the same state.

        Raises:
            JobNotFoundError
            IllegalTransitionError: it has not ended; nothing is changed.
            QuotaExceededError
        """

    # -- claiming -----------------------------------------------------------------------------

    async def claim_next_pending_job(
        self, node_id: str, pipelines: Sequence[str] | None = None
    ) -> ClaimedJob | None:
        """Claim the due job that is first by (priority desc, run_at, id), None if there is none.

        Guarantees as `claim_pending_jobs`.
        """

    async def claim_pending_jobs(
        self, node_id: str, limit: int, pipelines: Sequence[str] | None = None
    ) -> list[ClaimedJob]:
        """Claim at most `limit` due jobs in the order (priority desc, run_at, id).

        A job goes to one claimer only. Jobs that another transaction holds are passed over without
        waiting for its end, so are paused queues and, where `pipelines` is given, other pipelines.
        A claim raises claim_no and attempt and opens an attempt row, all in the same transaction.
        A node that is not registered, draining or whose lease has ended gets nothing.
        """

    async def count_running_jobs(self, node_id: str | None = None) -> int:
        """How many jobs are running, on one node or in all."""

    async def list_running_jobs(self, node_id: str) -> list[RunningJob]:
        """The jobs that the store believes to run on this node."""

    async def list_lost_jobs(self, limit: int) -> list[RunningJob]:
        """At most `limit` running jobs whose node is stopped, unknown or past its lease."""

    # -- the holder's writes ------------------------------------------------------------------

    async def load_payload(self, claim: Claim) -> str:
        """The payload's JSON text; LeaseLostError."""

    async def report_started(self, claim: Claim, pid: int) -> None:
        """Note the worker's process id in the attempt; LeaseLostError."""

    async def report_progress(
        self, claim: Claim, progress: Progress, *, is_milestone: bool = False
    ) -> None:
        """Replace the attempt's latest progress; a milestone is kept for good. LeaseLostError.

        A milestone of the stage that the attempt is in already adds nothing, so that a report
        whose answer got lost can be repeated.
        """

    async def append_logs(self, claim: Claim, lines: Sequence[LogLine]) -> None:
        """Add lines to the job's log, those above the attempt's last number; LeaseLostError.

        A call whose answer got lost can therefore be repeated, also with further lines.
        """

    async def save_checkpoint(self, claim: Claim, stage: str, data: str) -> None:
        """Keep JSON text as the job's intermediate result of `stage`, replacing an earlier one.

        Raises LeaseLostError, and TooLargeError above MAX_CHECKPOINT_BYTES.
        """

    async def load_checkpoint(self, job_id: str, stage: str) -> str | None:
        """The JSON text kept under `stage` by any attempt of the job, else None."""

    async def load_call(self, key: str) -> str | None:
        """The JSON text that any job has kept as the answer of this paid call, else None."""

    async def save_call(self, claim: Claim, call: PaidCall) -> None:
        """Keep the answer of a paid call and count it for the job, in one transaction.

        The answer is kept also where the claim is lost: it is paid for, and belongs to no job.

        The first answer that is kept under a key stays. A call counts once per claim and key: a
        repetition adds nothing, another job or attempt that made the same call has paid, too.

        Raises LeaseLostError, and TooLargeError above MAX_CALL_ANSWER_BYTES.
        """

    async def count_cached_calls(self, claim: Claim, stage: str, model: str, total: int) -> None:
        """Note how many calls of `stage` this claim has found kept in all; LeaseLostError.

        The largest total counts, so that a call whose answer got lost can be repeated.
        """

    async def count_failed_calls(
        self, claim: Claim, stage: str, model: str, total: FailedCalls
    ) -> None:
        """Note what this claim's requests of `stage` without an answer took in all; LeaseLostError.

        Of each figure the largest counts.
        """

    async def finish_job(self, claim: Claim, verdict: Verdict, usage: Usage | None = None) -> bool:
        """Write the end of an attempt: status, result, attempt row and event in one transaction.

        Where the verdict is "pending again" but the job is to be cancelled it becomes cancelled.

        Returns whether this call settled the claim; False changes nothing and means that
        somebody else settled it (or this call did, before its answer got lost) or that the job
        was claimed anew. Repeating it is safe.
        """

    async def rescue_job(self, claim: Claim, verdict: Verdict) -> bool:
        """As `finish_job`, and only if the claim's node is lost (which it then stays)."""

    # -- nodes --------------------------------------------------------------------------------

    async def register_node(self, node: NodeInfo) -> None:
        """Make the node known; its lease runs from now."""

    async def renew_node(self, node_id: str) -> bool:
        """Extend the node's lease from now; False once it has ended: it never comes back."""

    async def drain_node(self, node_id: str) -> None:
        """The node claims nothing any more but goes on renewing."""

    async def deregister_node(self, node_id: str) -> None:
        """End the node; what it still runs may be rescued at once."""

    # -- wake-ups -----------------------------------------------------------------------------

    def wake_ups(self) -> AsyncGenerator[WakeUp, None]:
        """Yields when jobs may have become due or are to end, and both after every gap.

        Wake-ups are hints: several inserts may give one, and none may come (poll as well). The
        iterator reconnects by itself and never ends; close it with `aclose`.
        """


DBFactory = Callable[[], DBInterface]
"""Builds an unconnected adapter; picklable, so that it can cross into a worker process."""
