"""`PostgresJobsDB`: the jobs in PostgreSQL, one method per named statement and no SQL text.

It knows the store only: no scheduling, no processes.
"""

import dataclasses
from collections.abc import AsyncGenerator, Sequence
from typing import Final
from uuid import UUID

from app.db.ids import as_uuid
from app.db.postgres.connections import (
    COMMAND_TIMEOUT_SECONDS,
)
from app.db.postgres.datasets import PostgresDatasets
from app.db.postgres.following import PostgresFollowing
from app.db.postgres.keys import PostgresKeys
from app.db.postgres.listener import WakeUpListener
from app.db.postgres.managing import PostgresManaging
from app.db.postgres.results import PostgresResults
from app.db.postgres.retention import PostgresRetention
from app.db.postgres.rows import finish_arguments, job_from_row, job_uuid
from app.db.postgres.submitting import PostgresSubmitting
from app.db.postgres.webhooks import PostgresWebhooks
from app.domain.errors import (
    DatabaseUnavailableError,
    IllegalTransitionError,
    QuotaExceededError,
)
from app.domain.jobs import (
    INLINE_PAYLOAD_BYTES,
    MAX_CHECKPOINT_BYTES,
    Attempt,
    AttemptOutcome,
    Cause,
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
from app.domain.json_values import check_size
from app.domain.keys import PendingCaps
from app.domain.lifecycle import JobEvent, Verdict
from app.domain.sharing import MAX_CALL_ANSWER_BYTES, CallUsage, FailedCalls, PaidCall
from app.telemetry import Telemetry, default_telemetry

MAX_POOL_CONNECTIONS: Final = 8

_CONTROL_TRIES: Final = 3


class PostgresJobsDB(
    PostgresSubmitting,
    PostgresFollowing,
    PostgresDatasets,
    PostgresResults,
    PostgresManaging,
    PostgresRetention,
    PostgresKeys,
    PostgresWebhooks,
):
    """`DBInterface` on PostgreSQL 15 or newer.

    Args:
        dsn: postgresql:// URL as asyncpg takes it.
        listen_dsn: the same for LISTEN where `dsn` leads to a pooler that cannot carry it.
        default_pipeline: for jobs whose options name none.
        max_connections: of the pool; NOTIFY has one more, and so has LISTEN while somebody
            iterates wake-ups.
        command_timeout_seconds: for each call, waiting for a connection included.
        notify: False leaves schedulers to their polling.

    Everything is text and numbers, so that a partial of this class can cross into a worker.
    """

    def __init__(
        self,
        dsn: str,
        *,
        listen_dsn: str | None = None,
        application_name: str = "haulage",
        default_pipeline: str = "thematic",
        max_connections: int = MAX_POOL_CONNECTIONS,
        command_timeout_seconds: float = COMMAND_TIMEOUT_SECONDS,
        notify: bool = True,
        telemetry: Telemetry | None = None,
    ) -> None:
        super().__init__(
            dsn,
            application_name,
            default_pipeline=default_pipeline,
            max_connections=max_connections,
            command_timeout_seconds=command_timeout_seconds,
            notify=notify,
        )
        self._listen_dsn = listen_dsn or dsn
        self._telemetry = telemetry or default_telemetry()
        self._listener: WakeUpListener | None = None

    # -- reading ----------------------------------------------------------------------------

    async def get_job(self, job_id: str) -> Job:
        """See DBInterface."""
        row = await self._fetch_row("get_job", job_uuid(job_id))
        if row is None:
            raise await self._missing(job_id)
        return dataclasses.replace(
            job_from_row(row),
            version=row["version"],
            last_event_id=row["last_event_id"],
            batch_id=row["batch_id"],
            submitted_by=row["submitted_by"],
        )

    async def list_milestones(self, job_id: str) -> list[Milestone]:
        """See DBInterface."""
        return await self._fetch_as(Milestone, "list_milestones", as_uuid(job_id))

    async def list_attempts(self, job_id: str) -> list[Attempt]:
        """See DBInterface."""
        attempts = await self._fetch_as(Attempt, "list_attempts", as_uuid(job_id))
        return [
            dataclasses.replace(
                attempt,
                outcome=attempt.outcome and AttemptOutcome(attempt.outcome),
                cause=attempt.cause and Cause(attempt.cause),
            )
            for attempt in attempts
        ]

    async def list_logs(self, job_id: str, limit: int = 1_000) -> list[LogLine]:
        """See DBInterface."""
        return await self._fetch_as(LogLine, "list_logs", as_uuid(job_id), limit)

    async def list_usage(self, job_id: str) -> list[CallUsage]:
        """See DBInterface."""
        return await self._fetch_as(CallUsage, "list_usage", as_uuid(job_id))

    # -- ending and starting over -------------------------------------------------------------

    async def cancel_job(self, job_id: str) -> JobStatus:
        """See DBInterface."""
        for _ in range(_CONTROL_TRIES):
            asked = await self._fetch_row("cancel_jobs", [job_uuid(job_id)], list(JobStatus))
            if asked is not None:
                status = JobStatus(asked["status"])
                if status is JobStatus.RUNNING:
                    self._request_wake_up(WakeUp.CONTROL)
                return status
            status = await self._get_status(job_id)
            if status is JobStatus.CANCELLED:
                return status
            if status.is_terminal:
                raise IllegalTransitionError(status, JobEvent.CANCELLED)
        # Ended and revived between the two looks, again and again.
        raise DatabaseUnavailableError(f"job {job_id} changes too quickly")

    async def retry_job(self, job_id: str, caps: PendingCaps | None = None) -> None:
        """See DBInterface."""
        bounds = (None, None) if caps is None else (caps.jobs, caps.size_bytes)
        for _ in range(_CONTROL_TRIES):
            asked = await self._fetch_row(
                "retry_jobs", [job_uuid(job_id)], list(JobStatus), *bounds
            )
            if asked is not None and asked["violated"] is not None:
                raise QuotaExceededError((asked["violated"],))
            if asked is not None:
                self._request_wake_up(WakeUp.JOBS)
                return
            status = await self._get_status(job_id)
            if not status.is_terminal:
                raise IllegalTransitionError(status, JobEvent.REVIVED)
        raise DatabaseUnavailableError(f"job {job_id} changes too quickly")

    # -- claiming -----------------------------------------------------------------------------

    async def claim_next_pending_job(
        self, node_id: str, pipelines: Sequence[str] | None = None
    ) -> ClaimedJob | None:
        """See DBInterface."""
        claimed = await self.claim_pending_jobs(node_id, 1, pipelines)
        return claimed[0] if claimed else None

    async def claim_pending_jobs(
        self, node_id: str, limit: int, pipelines: Sequence[str] | None = None
    ) -> list[ClaimedJob]:
        """See DBInterface."""
        known = None if pipelines is None else list(pipelines)
        return await self._fetch_as(
            ClaimedJob, "claim_pending_jobs", UUID(node_id), limit, known, INLINE_PAYLOAD_BYTES
        )

    async def count_running_jobs(self, node_id: str | None = None) -> int:
        """See DBInterface."""
        row = await self._fetch_row("count_running_jobs", node_id and UUID(node_id))
        return 0 if row is None else int(row["n"])

    async def list_running_jobs(self, node_id: str) -> list[RunningJob]:
        """See DBInterface."""
        return await self._fetch_as(RunningJob, "list_running_jobs", UUID(node_id))

    async def list_lost_jobs(self, limit: int) -> list[RunningJob]:
        """See DBInterface."""
        return await self._fetch_as(RunningJob, "list_lost_jobs", limit)

    # -- the holder's writes ------------------------------------------------------------------

    async def load_payload(self, claim: Claim) -> str:
        """See DBInterface."""
        row = await self._held("load_payload", claim)
        return str(row["payload"])

    async def report_started(self, claim: Claim, pid: int) -> None:
        """See DBInterface."""
        await self._held("report_started", claim, pid)

    async def report_progress(
        self, claim: Claim, progress: Progress, *, is_milestone: bool = False
    ) -> None:
        """See DBInterface."""
        await self._held(
            "report_progress",
            claim,
            progress.fraction,
            progress.stage,
            progress.message,
            is_milestone,
        )

    async def append_logs(self, claim: Claim, lines: Sequence[LogLine]) -> None:
        """See DBInterface."""
        await self._held(
            "append_logs",
            claim,
            [line.number for line in lines],
            [line.at for line in lines],
            [line.level for line in lines],
            [line.source for line in lines],
            [line.text for line in lines],
        )

    async def save_checkpoint(self, claim: Claim, stage: str, data: str) -> None:
        """See DBInterface."""
        check_size(data, f"checkpoint {stage!r}", MAX_CHECKPOINT_BYTES)
        await self._held("save_checkpoint", claim, stage, data)

    async def load_checkpoint(self, job_id: str, stage: str) -> str | None:
        """See DBInterface."""
        row = await self._fetch_row("load_checkpoint", as_uuid(job_id), stage)
        return None if row is None else str(row["data"])

    async def load_call(self, key: str) -> str | None:
        """See DBInterface."""
        row = await self._fetch_row("load_call", bytes.fromhex(key))
        return None if row is None else str(row["answer"])

    async def save_call(self, claim: Claim, call: PaidCall) -> None:
        """See DBInterface."""
        check_size(call.answer, f"answer of a call of {call.stage!r}", MAX_CALL_ANSWER_BYTES)
        await self._held(
            "save_call",
            claim,
            bytes.fromhex(call.key),
            call.answer,
            call.stage,
            call.model,
            call.prompt_tokens,
            call.completion_tokens,
            call.cost,
        )

    async def count_cached_calls(self, claim: Claim, stage: str, model: str, total: int) -> None:
        """See DBInterface."""
        await self._held("count_cached_calls", claim, stage, model, total)

    async def count_failed_calls(
        self, claim: Claim, stage: str, model: str, total: FailedCalls
    ) -> None:
        """See DBInterface."""
        await self._held(
            "count_failed_calls",
            claim,
            stage,
            model,
            total.calls,
            total.prompt_tokens,
            total.completion_tokens,
            total.cost,
        )

    async def finish_job(self, claim: Claim, verdict: Verdict, usage: Usage | None = None) -> bool:
        """See DBInterface."""
        arguments = finish_arguments(claim, verdict, usage)
        is_settled = await self._fetch_row("finish_job", *arguments) is not None
        if is_settled and verdict.status is JobStatus.PENDING and verdict.delay_seconds <= 0:
            self._request_wake_up(WakeUp.JOBS)
        return is_settled

    async def rescue_job(self, claim: Claim, verdict: Verdict) -> bool:
        """See DBInterface."""
        # No transaction around both: a node that is lost stays so, and the end is guarded by the
        # claim anyway.
        lost = await self._fetch_row("find_lost_job", UUID(claim.job_id), claim.claim_no)
        return lost is not None and await self.finish_job(claim, verdict)

    # -- nodes --------------------------------------------------------------------------------

    async def register_node(self, node: NodeInfo) -> None:
        """See DBInterface."""
        await self._execute(
            "register_node",
            UUID(node.id),
            node.name,
            node.pid,
            node.version,
            node.capacity,
            node.lease_seconds,
        )

    async def renew_node(self, node_id: str) -> bool:
        """See DBInterface."""
        return await self._fetch_row("renew_node", UUID(node_id)) is not None

    async def drain_node(self, node_id: str) -> None:
        """See DBInterface."""
        await self._execute("drain_node", UUID(node_id))

    async def deregister_node(self, node_id: str) -> None:
        """See DBInterface."""
        await self._execute("deregister_node", UUID(node_id))

    # -- wake-ups -----------------------------------------------------------------------------

    async def wake_ups(self) -> AsyncGenerator[WakeUp, None]:
        """See DBInterface."""
        self._listener = WakeUpListener(self._listen_dsn, self._telemetry)
        listening = self._listener.wake_ups()
        try:
            async for wake_up in listening:
                yield wake_up
        finally:
            await listening.aclose()

    @property
    def is_listening(self) -> bool:
        """See DBInterface."""
        return self._listener is not None and self._listener.is_connected
