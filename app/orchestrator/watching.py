"""The watchdog's look: what the database says of this node against its processes, and lost jobs.

`recovery` decides; here is what it needs to know, and what is done about its findings.
"""

from collections.abc import Callable, Iterable, Mapping

from app.db.interface import DBInterface
from app.domain.jobs import Claim, RunningJob
from app.domain.lifecycle import Cancelled, NotStarted, Outcome, Unanswered
from app.orchestrator import recovery
from app.orchestrator.claiming import Launches, UnansweredClaims
from app.orchestrator.lease import NodeLease
from app.orchestrator.processes import WorkerProcess
from app.orchestrator.reaping import Reaper
from app.orchestrator.rescue import rescue_lost
from app.orchestrator.settling import Settlements
from app.telemetry import Telemetry


class Watchdog:
    """Compares a node's running rows with its processes, and takes over what other nodes lost.

    Args:
        processes: job id -> worker; read only, it changes under our feet.
        judge: the last word on an outcome, by what the node is doing.
        results_first_seconds: for how long after an outage workers with a result have precedence.
    """

    def __init__(
        self,
        db: DBInterface,
        lease: NodeLease,
        processes: Mapping[str, WorkerProcess],
        launches: Launches,
        unanswered: UnansweredClaims,
        reaper: Reaper,
        settlements: Settlements,
        telemetry: Telemetry,
        *,
        judge: Callable[[Outcome], Outcome],
        results_first_seconds: float,
    ) -> None:
        self._db = db
        self._lease = lease
        self._processes = processes
        self._launches = launches
        self._unanswered = unanswered
        self._reaper = reaper
        self._settlements = settlements
        self._telemetry = telemetry
        self._judge = judge
        self._results_first_seconds = results_first_seconds
        self._suspects = recovery.Suspects()

    async def look(self) -> recovery.Findings:
        """One look; acts on what it finds and returns it."""
        rows = await self._rows_to_compare()
        workers = [worker.seen() for worker in self._processes.values()]
        findings = recovery.compare(rows, workers, self._suspects)
        self._suspects = findings.suspects
        for worker in self._processes_of(findings.cancelled):
            worker.stop(Cancelled())
        for worker in self._processes_of(findings.stray):
            self._telemetry.emit("claim.lost", job=worker.job.id, claim=worker.job.claim_no)
            worker.kill()
        for row in findings.orphaned:
            if row.claim not in self._settlements:
                # Committed after its caller gave up, or lost on its way: it never ran.
                orphan = NotStarted("no process runs this claim")
                outcome = Unanswered() if self._unanswered.explains(row) else self._judge(orphan)
                await self._settlements.settle(row.claim, row, outcome)
        # After an outage every node looks lost, to all of them at once: what is already computed
        # gets time to be stored.
        if self._lease.steady_seconds >= self._results_first_seconds:
            await rescue_lost(self._db, self._telemetry, self._is_storing)
        return findings

    async def _rows_to_compare(self) -> list[RunningJob]:
        """The rows that say "running" here, without those whose process is to come or to go."""
        before = self._launches.look
        rows = await self._db.list_running_jobs(self._lease.node_id)
        here = {worker.job.claim for worker in self._processes.values()}
        if before is None or before != self._launches.look:
            # A claim whose answer is on its way runs in the database alone.
            return [row for row in rows if row.claim in here]
        passing = self._reaper.claims
        return [row for row in rows if row.claim not in passing and row.claim not in self._launches]

    def _is_storing(self, claim: Claim) -> bool:
        return any(worker.has_outcome for worker in self._processes_of([claim]))

    def _processes_of(self, claims: Iterable[Claim]) -> list[WorkerProcess]:
        # Between a look and its consequence a process may have been reaped, even replaced.
        wanted = set(claims)
        return [w for w in self._processes.values() if w.job.claim in wanted]
