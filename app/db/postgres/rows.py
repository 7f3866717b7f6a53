"""Between rows and the domain's values: ids in, a verdict's arguments in, a job out."""

import json
from uuid import UUID

import asyncpg

from app.db.ids import as_uuid
from app.domain.errors import JobNotFoundError
from app.domain.jobs import Cause, Claim, ErrorInfo, Job, JobStatus, Limits, Progress, Usage
from app.domain.lifecycle import Verdict


def job_uuid(job_id: str) -> UUID:
    """The key of a job; JobNotFoundError where the text is no id at all."""
    key = as_uuid(job_id)
    if key is None:
        raise JobNotFoundError(job_id)
    return key


def finish_arguments(claim: Claim, verdict: Verdict, usage: Usage | None) -> tuple[object, ...]:
    """The arguments of `finish_job` in its order."""
    error = verdict.error or ErrorInfo("", "")
    usage = usage or Usage()
    return (
        UUID(claim.job_id),
        claim.claim_no,
        verdict.status,
        verdict.attempt_change,
        verdict.node_loss_change,
        verdict.delay_seconds,
        verdict.outcome,
        verdict.cause,
        verdict.exit_code,
        verdict.signal,
        error.error_class or None,
        error.message or None,
        error.traceback,
        usage.peak_memory_bytes,
        usage.cpu_seconds,
        verdict.result,
    )


def job_from_row(row: asyncpg.Record) -> Job:
    """The job of a row of `get_job`."""
    fraction: float | None = row["progress_fraction"]
    return Job(
        id=row["id"],
        status=JobStatus(row["status"]),
        pipeline=row["pipeline"],
        queue=row["queue"],
        priority=row["priority"],
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        claim_no=row["claim_no"],
        node_losses=row["node_losses"],
        node_id=row["node_id"],
        pid=row["pid"],
        limits=Limits(
            row["timeout_seconds"],
            row["start_timeout_seconds"],
            row["stall_seconds"],
            row["memory_limit_bytes"],
        ),
        tags=tuple(row["tags"]),
        metadata=json.loads(row["metadata"]),
        created_at=row["created_at"],
        run_at=row["run_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        cancel_requested_at=row["cancel_requested_at"],
        progress=None
        if fraction is None
        else Progress(fraction, row["progress_stage"], row["progress_message"]),
        error=None
        if row["error_class"] is None
        else ErrorInfo(row["error_class"], row["error_message"] or "", row["traceback"]),
        cause=row["cause"] and Cause(row["cause"]),
    )
