"""The last rites of worker processes: see that nothing is left, read the end, settle the job."""

import asyncio
from collections.abc import Callable
from typing import Final

from app.domain.jobs import Claim
from app.domain.lifecycle import Outcome
from app.orchestrator.processes import WorkerProcess
from app.orchestrator.settling import Settlements
from app.telemetry import Telemetry

PATIENCE_SECONDS: Final = 0.5


class Reaper:
    """Cleans up after processes that have ended, each in a task of its own.

    Args:
        judge: the last word on an outcome, by what the node is doing.
    """

    def __init__(
        self,
        settlements: Settlements,
        telemetry: Telemetry,
        judge: Callable[[Outcome], Outcome],
    ) -> None:
        self._settlements = settlements
        self._telemetry = telemetry
        self._judge = judge
        self._tasks: dict[Claim, asyncio.Task[None]] = {}

    @property
    def claims(self) -> frozenset[Claim]:
        """Whose processes have ended but are not settled yet."""
        return frozenset(self._tasks)

    def begin(self, worker: WorkerProcess) -> None:
        """Clean up after a process that has ended."""
        claim = worker.job.claim
        task = asyncio.create_task(self._reap(worker), name="haulage-reap")
        self._tasks[claim] = task
        task.add_done_callback(lambda _: self._tasks.pop(claim, None))

    async def wait(self, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        """Return when all are cleaned up, or after the time-out; nothing is stopped by it."""
        if self._tasks:
            await asyncio.wait(set(self._tasks.values()), timeout=timeout_seconds)

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _reap(self, worker: WorkerProcess) -> None:
        job = worker.job
        try:
            is_empty = await worker.end_group()
            outcome = worker.outcome()
        finally:
            worker.close()
        self._telemetry.emit("worker.ended", job=job.id, seconds=round(worker.run_seconds, 3))
        if not is_empty:
            self._telemetry.emit("worker.killed", job=job.id, reason="group did not empty")
        if outcome is None:
            self._telemetry.emit("claim.lost", job=job.id, claim=job.claim_no)
        else:
            await self._settlements.settle(
                job.claim,
                job,
                self._judge(outcome),
                worker.usage,
                may_be_settled=worker.may_have_settled,
            )
