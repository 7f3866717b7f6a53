"""From free slots to running workers: claim, start, and what may get lost in between.

A claim is on its way between the database's answer and its process, or without any answer at all.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from app.db.interface import DBInterface
from app.domain.errors import DatabaseUnavailableError
from app.domain.jobs import Claim, ClaimedJob, Registration, RunningJob
from app.domain.lifecycle import NotStarted, Released, Unanswered, free_slots
from app.domain.masking import mask_secrets
from app.loops import Backoff
from app.orchestrator.launching import WorkerLauncher
from app.orchestrator.options import ManagerOptions
from app.orchestrator.processes import StopReason, WorkerProcess
from app.orchestrator.reaping import Reaper
from app.orchestrator.settling import Settlements
from app.telemetry import Telemetry

MOST_REMEMBERED: Final = 10_000


class Launches:
    """Claims on their way to a process, with the reason why they are not to run any more."""

    def __init__(self) -> None:
        self._reasons: dict[Claim, StopReason | None] = {}
        self._calls = 0
        self._is_asking = False

    def __contains__(self, claim: Claim) -> bool:
        """Whether the claim is on its way."""
        return claim in self._reasons

    @contextmanager
    def asking(self) -> Iterator[None]:
        """While a call to claim is under way."""
        self._calls += 1
        self._is_asking = True
        try:
            yield
        finally:
            self._is_asking = False

    @property
    def look(self) -> int | None:
        """Equal to that of an earlier look when no call to claim was under way between the two."""
        return None if self._is_asking else self._calls

    def begin(self, claims: Iterable[Claim]) -> None:
        """These have been claimed and are to be started one after the other."""
        self._reasons = dict.fromkeys(claims)

    def give_up(self, reason: StopReason) -> None:
        """None of those on their way is to run; the first reason counts."""
        for claim, earlier in self._reasons.items():
            self._reasons[claim] = earlier or reason

    def reason(self, claim: Claim) -> StopReason | None:
        """Why the claim is not to run any more, None where it is."""
        return self._reasons.get(claim)

    def end(self, claim: Claim) -> StopReason | None:
        """It has a process, or is settled without one; the reason why it is not to run."""
        return self._reasons.pop(claim, None)

    def clear(self) -> None:
        """None is on its way."""
        self._reasons.clear()


class UnansweredClaims:
    """Whether calls to claim went without an answer: what they took never ran.

    Such a call may be carried out long after it was given up, by a session that was frozen: no
    clock tells what it took, only that nobody here was ever told of it.
    """

    def __init__(self) -> None:
        self._was_noted = False
        self.is_due = False
        # The newest ones; an older claim without a process would have been seen long ago.
        self._answered: dict[Claim, None] = {}

    def note(self) -> None:
        """A call got no answer: perhaps that is lost, perhaps the commit is yet to come."""
        self._was_noted = self.is_due = True

    def note_given_back(self) -> None:
        """What was committed by now has been given back."""
        self.is_due = False

    def note_answered(self, claims: Iterable[Claim]) -> None:
        """A call was answered with these."""
        self._answered.update(dict.fromkeys(claims))
        while len(self._answered) > MOST_REMEMBERED:
            del self._answered[next(iter(self._answered))]

    def explains(self, row: RunningJob) -> bool:
        """Whether a row that no process runs comes from such a call."""
        return self._was_noted and row.claim not in self._answered


class Claimer:
    """Fills a node's free slots: one claim, then a process for each job of the answer.

    Args:
        processes: job id -> worker; every started one is put in here.
        on_process_end: called at the end of each process.

    Attributes:
        launches: claims on their way to a process.
        unanswered: calls to claim that got no answer.
    """

    def __init__(
        self,
        db: DBInterface,
        pipelines: Mapping[str, Registration],
        options: ManagerOptions,
        launcher: WorkerLauncher,
        processes: dict[str, WorkerProcess],
        reaper: Reaper,
        settlements: Settlements,
        telemetry: Telemetry,
        *,
        on_process_end: Callable[[], None],
    ) -> None:
        self._db = db
        self._pipelines = pipelines
        self._options = options
        self._launcher = launcher
        self._processes = processes
        self._reaper = reaper
        self._settlements = settlements
        self._telemetry = telemetry
        self._on_process_end = on_process_end
        self.launches = Launches()
        self.unanswered = UnansweredClaims()
        # A node that cannot start processes must not use up the queue.
        self._starting = Backoff(first_seconds=1.0)

    def note_failed_start(self) -> None:
        """A worker came to nothing through no fault of its job; claims pause for a while."""
        self._starting.note_failure()

    async def fill(self, node_id: str, is_draining: Callable[[], bool]) -> int:
        """Claim and start a job for each free slot; how many were claimed."""
        if self.unanswered.is_due:
            await self._give_back_unanswered(node_id)
        free = await self._free_slots(node_id)
        if free == 0:
            return 0
        try:
            with self.launches.asking():
                claimed = await self._db.claim_pending_jobs(node_id, free, tuple(self._pipelines))
                self.launches.begin(job.claim for job in claimed)
                self.unanswered.note_answered(job.claim for job in claimed)
        except DatabaseUnavailableError:
            self.unanswered.note()
            raise
        if is_draining():
            # The claim was under way when it began.
            self.launches.give_up(Released())
        try:
            for job in claimed:
                self._telemetry.emit(
                    "job.claimed", job=job.id, pipeline=job.pipeline, attempt=job.attempt
                )
                await self._spawn_worker(job)
        finally:
            # What a cancellation leaves has no process; watchdog or shutdown give it back.
            self.launches.clear()
        return len(claimed)

    async def _give_back_unanswered(self, node_id: str) -> None:
        """Release what a call without an answer may have claimed: it never ran.

        Only this class claims, so a running row without a process, past or present, is such a one.
        """
        for row in await self._db.list_running_jobs(node_id):
            here = {worker.job.claim for worker in self._processes.values()}
            if row.claim not in here | self._reaper.claims and row.claim not in self._settlements:
                await self._settlements.settle(row.claim, row, Unanswered())
        self.unanswered.note_given_back()

    async def _free_slots(self, node_id: str) -> int:
        here = len(self._processes)
        if here >= self._options.max_concurrent_jobs or self._starting.is_pausing:
            return 0
        # The database may know of more: claims whose answer got lost, ends not yet settled.
        running = await self._db.count_running_jobs(node_id)
        return free_slots(self._options.max_concurrent_jobs, max(running, here))

    async def _spawn_worker(self, job: ClaimedJob) -> None:
        """Start the job's process; where none comes up, give the job back with the reason."""
        if reason := self.launches.reason(job.claim):
            await self._settlements.settle(job.claim, job, reason)
            self.launches.end(job.claim)
            return
        try:
            registration = self._pipelines[job.pipeline]
            job = job.within(registration.limits.or_else(self._options.default_limits))
            worker = await self._launcher.launch(job, registration)
        except Exception as error:  # noqa: BLE001  whatever it is: no process, so back with the job
            self._telemetry.emit("worker.start_failed", job=job.id, reason=repr(error))
            self._starting.note_failure()
            outcome = self.launches.reason(job.claim) or NotStarted(mask_secrets(str(error)))
            await self._settlements.settle(job.claim, job, outcome)
            self.launches.end(job.claim)
            return
        self._starting.note_success()
        # Claimed anew while its last process lives on here: that one has lost.
        if (former := self._processes.get(job.id)) is not None:
            former.kill()
            self._reaper.begin(former)
        self._processes[job.id] = worker
        worker.watch(self._on_process_end)
        self._telemetry.emit("worker.started", job=job.id, pid=worker.pid)
        # While it started the node may have begun to drain, or lost its lease.
        if reason := self.launches.end(job.claim):
            worker.kill(reason)
