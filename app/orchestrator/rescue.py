"""Rescue: jobs whose node is gone are decided on by whichever node looks first."""

import asyncio
from collections.abc import Callable
from typing import Final

from app.db.interface import DBInterface
from app.domain.jobs import Claim
from app.domain.lifecycle import NodeLost, decide
from app.telemetry import Telemetry

LOST_JOBS_PER_PASS: Final = 100
PATIENCE_SECONDS: Final = 1.0
# Longer than a worker with a result waits between two tries to store it.
RESULTS_FIRST_SECONDS: Final = 3.0


async def rescue_lost(
    db: DBInterface,
    telemetry: Telemetry,
    is_storing_here: Callable[[Claim], bool] = lambda _: False,
) -> int:
    """One repeatable pass over lost jobs; how many were taken over.

    An error about one job is reported and keeps none of the others lost.

    Args:
        is_storing_here: whether a claim of an earlier identity of this node has a living worker
            that only stores its result; to take that one away would be to throw work away.
    """
    rescued = 0
    for job in await db.list_lost_jobs(LOST_JOBS_PER_PASS):
        if is_storing_here(job.claim):
            continue
        verdict = decide(NodeLost(job.node_id), job)
        try:
            # Somebody may hold the job's row; the others do not wait for that.
            async with asyncio.timeout(PATIENCE_SECONDS):
                has_won = await db.rescue_job(job.claim, verdict)
        except Exception as error:  # noqa: BLE001  the next pass comes to it again
            telemetry.emit("loop.failed", loop="rescue", job=job.id, error=repr(error))
            continue
        if has_won:
            rescued += 1
            telemetry.emit("node.lost", node=job.node_id, job=job.id, status=verdict.status)
    return rescued
