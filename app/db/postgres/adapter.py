"""`PostgresJobsDB`: the jobs in PostgreSQL, one method per named statement and no SQL text.

It knows the store only: no scheduling, no processes.
"""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final
from uuid import UUID

from app.db.ids import as_uuid, new_id
from app.db.postgres.connections import (
    COMMAND_TIMEOUT_SECONDS,
    unavailable_errors,
)
from app.db.postgres.datasets import PostgresDatasets
from app.db.postgres.listener import WakeUpListener
from app.db.postgres.rows import finish_arguments, job_from_row, job_uuid
from app.domain.errors import (
    DatabaseUnavailableError,
    IllegalTransitionError,
    JobNotFoundError,
)
from app.domain.jobs import (
    INLINE_PAYLOAD_BYTES,
    MAX_CHECKPOINT_BYTES,
    MAX_METADATA_BYTES,
    MAX_PAYLOAD_BYTES,
    Attempt,
    AttemptOutcome,
    Cause,
    Claim,
    ClaimedJob,
    Job,
    JobOptions,
    JobStatus,
    LogLine,
    Milestone,
    NodeInfo,
    Progress,
    RunningJob,
    Usage,
    WakeUp,
)
from app.domain.json_values import check_size, check_storable, dump_storable
from app.domain.lifecycle import JobEvent, Verdict
from app.domain.sharing import MAX_CALL_ANSWER_BYTES, CallUsage, FailedCalls, PaidCall
from app.telemetry import Telemetry, default_telemetry

MAX_POOL_CONNECTIONS: Final = 8

_INSERT_TRIES: Final = 2
_CONTROL_TRIES: Final = 3


class PostgresJobsDB(PostgresDatasets):
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
            max_connections=max_connections,
            command_timeout_seconds=command_timeout_seconds,
            notify=notify,
        )
        self._listen_dsn = listen_dsn or dsn
        self._default_pipeline = default_pipeline
        self._telemetry = telemetry or default_telemetry()

    # -- submitting and reading ---------------------------------------------------------------

    async def insert_pending_job(
        self, payload: dict[str, Any] | str, options: JobOptions | None = None
    ) -> str:
        """See DBInterface."""
        options = options or JobOptions()
        if isinstance(payload, str):
            text = check_size(payload, "payload", MAX_PAYLOAD_BYTES)
        else:
            text = dump_storable(payload, "payload", MAX_PAYLOAD_BYTES)
        check_storable(
            {
                "pipeline": options.pipeline,
                "queue": options.queue,
                "tags": options.tags,
                "metadata": dict(options.metadata),
                "submitted_by": options.submitted_by,
            }
        )
        job_id = new_id()
        arguments = (
            UUID(job_id),
            options.pipeline or self._default_pipeline,
            options.queue,
            options.priority,
            options.run_at,
            options.delay_seconds,
            options.max_attempts or 1,
            options.limits.timeout_seconds,
            options.limits.start_timeout_seconds,
            options.limits.stall_seconds,
            options.limits.memory_limit_bytes,
            list(options.tags),
            dump_storable(dict(options.metadata), "metadata", MAX_METADATA_BYTES),
            options.submitted_by or "",
            text,
        )
        # All tries together take no longer than one call may.
        async with unavailable_errors(), asyncio.timeout(self._command_timeout_seconds):
            for tries_left in reversed(range(_INSERT_TRIES)):
                try:
                    await self._execute("insert_pending_job", *arguments)
                    break
                except DatabaseUnavailableError:
                    if not tries_left:
                        raise
        if options.run_at is None and options.delay_seconds <= 0:
            self._request_wake_up(WakeUp.JOBS)
        return job_id

    async def get_job(self, job_id: str) -> Job:
        """See DBInterface."""
        row = await self._fetch_row("get_job", job_uuid(job_id))
        if row is None:
            raise JobNotFoundError(job_id)
        return job_from_row(row)

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

    async def get_result(self, job_id: str) -> bytes | None:
        """See DBInterface."""
        row = await self._fetch_row("get_result", job_uuid(job_id))
        if row is None:
            raise JobNotFoundError(job_id)
        return None if row["result"] is None else row["result"].encode()

    async def list_usage(self, job_id: str) -> list[CallUsage]:
        """See DBInterface."""
        return await self._fetch_as(CallUsage, "list_usage", as_uuid(job_id))

    # -- ending and starting over -------------------------------------------------------------

    async def cancel_job(self, job_id: str) -> JobStatus:
        """See DBInterface."""
        for _ in range(_CONTROL_TRIES):
            asked = await self._fetch_row("cancel_job", job_uuid(job_id))
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

    async def retry_job(self, job_id: str) -> None:
        """See DBInterface."""
        for _ in range(_CONTROL_TRIES):
            if await self._fetch_row("retry_job", job_uuid(job_id)) is not None:
                self._request_wake_up(WakeUp.JOBS)
                return
            status = await self._get_status(job_id)
            if not status.is_terminal:
                raise IllegalTransitionError(status, JobEvent.REVIVED)
        raise DatabaseUnavailableError(f"job {job_id} changes too quickly")

    async def _get_status(self, job_id: str) -> JobStatus:
        row = await self._fetch_row("get_status", job_uuid(job_id))
        if row is None:
            raise JobNotFoundError(job_id)
        return JobStatus(row["status"])

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
        listening = WakeUpListener(self._listen_dsn, self._telemetry).wake_ups()
        try:
            async for wake_up in listening:
                yield wake_up
        finally:
            await listening.aclose()
