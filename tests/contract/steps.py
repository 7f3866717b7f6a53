"""Short ways to the states that the tests start from."""

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from app.db.ids import new_id
from app.db.interface import DBInterface
from app.domain.jobs import (
    Cause,
    ClaimedJob,
    ErrorInfo,
    JobOptions,
    LogLine,
    NodeInfo,
    Progress,
    RunningJob,
)
from app.domain.lifecycle import Completed, Raised, Released, decide
from app.domain.sharing import PaidCall
from app.domain.submissions import fingerprint

PROGRESS = Progress(0.5, "middle", "half way")
LINE = LogLine(1, 20, "stdout", "a line", datetime.now(UTC))
CALL = PaidCall("c0" * 32, '{"text": "an answer"}', "name", "small", 120, 30, 0.0015)
RAISED = Raised(ErrorInfo("ValueError", "no", "Traceback"), Cause.EXCEPTION)


async def new_node(db: DBInterface, lease_seconds: float = 60.0) -> str:
    """A registered node's id."""
    node = NodeInfo(new_id(), "test", os.getpid(), 4, lease_seconds, "0")
    await db.register_node(node)
    return node.id


def keyed(key: str = "key", payload: Any = None, **options: Any) -> JobOptions:
    """Options under a key, as the submission of this payload would have them."""
    chosen = JobOptions(**options)
    return replace(
        chosen,
        idempotency_key=key,
        fingerprint=fingerprint(payload or {}, chosen),
        job_id=new_id(),
    )


async def new_job(db: DBInterface, payload: Mapping[str, Any] | None = None, **options: Any) -> str:
    """A pending job's id."""
    return await db.insert_pending_job(dict(payload or {}), JobOptions(**options))


async def claimed(db: DBInterface, node_id: str | None = None, **options: Any) -> ClaimedJob:
    """A job of its own, claimed by a node of its own unless one is given."""
    job_id = await new_job(db, **options)
    job = await db.claim_next_pending_job(node_id or await new_node(db))
    assert job is not None
    assert job.id == job_id
    return job


async def complete(db: DBInterface, job: ClaimedJob | RunningJob, result: str = '"done"') -> bool:
    """Settle a claim with a result."""
    return await db.finish_job(job.claim, decide(Completed(result), job))


async def given_back(db: DBInterface, job: ClaimedJob) -> None:
    """The job pending again and due at once."""
    assert await db.finish_job(job.claim, decide(Released(), job))


async def snapshot(db: DBInterface, job_id: str) -> tuple[Any, ...]:
    """Everything that the store tells about a job."""
    return (
        await db.get_job(job_id),
        await db.list_attempts(job_id),
        await db.list_milestones(job_id),
        await db.list_logs(job_id),
        await db.get_result(job_id),
        await db.load_checkpoint(job_id, "stage"),
        await db.list_usage(job_id),
    )
