"""Limits of running workers: look at what each uses, end what exceeds, escalate what clings.

Needs no database, so it goes on while that is away or while the watchdog's pass hangs in it.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from app.domain.jobs import Cause
from app.domain.lifecycle import Overran
from app.orchestrator import recovery
from app.orchestrator.processes import WorkerProcess
from app.telemetry import Telemetry

# Memory that grows on past its limit by this much is not given the grace of the ladder.
RUNAWAY_FACTOR: Final = 1.25
# Between two looks, which come twice a second.
STANDSTILL_SECONDS: Final = 3.0


class LimitEnforcer:
    """Ends workers that exceed a limit, each by the ladder.

    Args:
        processes: job id -> worker; read only, it changes under our feet.
        measure_memory: bytes used by a worker and everything that it started, by pid.
    """

    def __init__(
        self,
        processes: Mapping[str, WorkerProcess],
        kill_grace_seconds: float,
        telemetry: Telemetry,
        measure_memory: Callable[[int, int | None], int | None],
    ) -> None:
        self._processes = processes
        self._kill_grace_seconds = kill_grace_seconds
        self._telemetry = telemetry
        self._measure_memory = measure_memory
        self._looked_at = time.monotonic()

    async def enforce(self) -> None:
        """One look at every worker and its consequences."""
        workers = list(self._processes.values())
        # Reading /proc takes milliseconds: not on the event loop.
        used = await asyncio.to_thread(self._measure, workers)
        for worker, memory_bytes in zip(workers, used, strict=True):
            worker.note_memory(memory_bytes)
        self.end_overdue()
        for worker in list(self._processes.values()):
            worker.escalate(self._kill_grace_seconds)

    def end_overdue(self) -> None:
        """Begin to end what exceeds a limit by what is known now."""
        self._excuse_standstill()
        workers = {worker.job.claim: worker for worker in self._processes.values()}
        seen = {claim: worker.seen() for claim, worker in workers.items()}
        for claim, outcome in recovery.find_overdue(seen.values()).items():
            worker = workers[claim]
            if worker.stop_reason is None:
                self._telemetry.emit("job.overdue", job=claim.job_id, reason=outcome.description)
            worker.stop(outcome)
            # Who stores an outcome heeds no SIGTERM, and the ladder leaves it alone.
            if seen[claim].is_storing or _is_runaway(outcome, worker):
                worker.kill()

    def _excuse_standstill(self) -> None:
        # Who froze us (a paused container, a suspended machine) may have frozen the jobs as well:
        # time in which nobody looked counts for no limit.
        now = time.monotonic()
        missed_seconds, self._looked_at = now - self._looked_at, now
        if missed_seconds > STANDSTILL_SECONDS:
            for worker in self._processes.values():
                worker.excuse(missed_seconds)

    def _measure(self, workers: list[WorkerProcess]) -> list[int | None]:
        return [
            self._measure_memory(worker.pid, worker.job.memory_limit_bytes) for worker in workers
        ]


def _is_runaway(outcome: object, worker: WorkerProcess) -> bool:
    if not isinstance(outcome, Overran) or outcome.cause is not Cause.OUT_OF_MEMORY:
        return False
    used, limit = worker.memory_bytes, worker.job.memory_limit_bytes
    return used is not None and limit is not None and used > RUNAWAY_FACTOR * limit
