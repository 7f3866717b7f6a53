"""The faults themselves, all from outside: signals to processes, and one statement as superuser.

`aim` looks for a target and returns the shot, or None where there is nothing to hit at present.
"""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from soak.fault_log import Fault, FaultKind, FaultLog
from soak.lookup import Lookup
from soak.nodes import FORKSERVER, Node, Nodes, environment_of, signal_process
from soak.pace import Pace, PlannedFault
from soak.witness import now
from support.cluster import crash
from support.processes import command_of, parents

from app.db.postgres.embedded import EmbeddedPostgres

MOST_BACKENDS: Final = 3

RUNNING_JOBS: Final = """
select a.job_id::text as job_id, a.claim_no, a.pid, n.pid as node_pid
from haulage.jobs j
join haulage.job_attempts a on a.job_id = j.id and a.claim_no = j.claim_no
join haulage.nodes n on n.id = a.node_id
where j.status = 'running' and a.pid is not null
order by a.started_at, a.job_id
"""
BACKENDS: Final = r"""
select pid, application_name || ', ' || coalesce(state, '?') || ': '
    || coalesce(substr(regexp_replace(query, '\s+', ' ', 'g'), 1, 40), '') as what
from pg_stat_activity
where datname = current_database() and application_name like 'haulage%'
order by pid
"""

Shot = Coroutine[Any, Any, None]


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job's process that lives, on a node of ours."""

    job_id: str
    claim_no: int
    pid: int
    node: Node

    @property
    def label(self) -> str:
        """For the log of faults."""
        return f"{self.node.name}, job {self.job_id} claim {self.claim_no}, pid {self.pid}"


class Faults:
    """Aims and shoots.

    Attributes:
        has_guards: whether a job's process has one in this build; None until one was seen.
    """

    def __init__(
        self,
        pace: Pace,
        nodes: Nodes,
        server: EmbeddedPostgres,
        lookup: Lookup,
        log: FaultLog,
        chance: random.Random,
    ) -> None:
        self._pace = pace
        self._nodes = nodes
        self._server = server
        self._lookup = lookup
        self._log = log
        self._chance = chance
        self._database = asyncio.Lock()
        self._frozen: set[int] = set()
        self.has_guards: bool | None = None

    async def aim(self, planned: PlannedFault) -> Shot | None:
        """A shot of this kind, None where there is no target now."""
        shortest, longest = (
            self._pace.past_lease_seconds
            if planned.kind in (FaultKind.FREEZE_MANAGER, FaultKind.FREEZE_NODE)
            else self._pace.moment_seconds
        )
        seconds = shortest + planned.share * (longest - shortest)
        match planned.kind:
            case FaultKind.KILL_WORKER | FaultKind.FREEZE_WORKER | FaultKind.KILL_GUARD:
                return await self._aim_at_job(planned.kind, seconds)
            case FaultKind.KILL_BACKEND | FaultKind.FREEZE_BACKEND | FaultKind.CRASH_DATABASE:
                return await self._aim_at_database(planned, seconds)
            case _:
                return self._aim_at_node(planned.kind, seconds)

    def thaw(self) -> None:
        """Let everything go on that is frozen."""
        for pid in self._frozen:
            signal_process(pid, signal.SIGCONT)
        self._frozen.clear()

    # -- jobs ---------------------------------------------------------------------------------

    async def _aim_at_job(self, kind: FaultKind, seconds: float) -> Shot | None:
        jobs = [job for job in await self._running_jobs() if job.pid not in self._frozen]
        if not jobs:
            return None
        job = self._chance.choice(jobs)
        match kind:
            case FaultKind.KILL_GUARD:
                guard = _guard_of(job)
                self.has_guards = self.has_guards or guard is not None
                return None if guard is None else self._kill_job(kind, job, guard)
            case FaultKind.FREEZE_WORKER:
                return self._freeze(kind, {job.pid}, seconds, job.label, job.node.pid, job.pid)
            case _:
                return self._kill_job(kind, job, job.pid)

    async def _kill_job(self, kind: FaultKind, job: RunningJob, victim: int) -> None:
        began = now()
        if signal_process(victim, signal.SIGKILL):
            self._log.add(Fault(kind, began, began, job.label, job.node.pid, job.pid))

    async def _running_jobs(self) -> list[RunningJob]:
        rows = await self._lookup.fetch(RUNNING_JOBS)
        # Rows may be late: what is shot at has to live and to carry our mark.
        ours = self._nodes.processes()
        return [
            RunningJob(row["job_id"], row["claim_no"], row["pid"], ours[row["pid"]])
            for row in rows
            if row["pid"] in ours and ours[row["pid"]].pid == row["node_pid"]
        ]

    # -- nodes --------------------------------------------------------------------------------

    def _aim_at_node(self, kind: FaultKind, seconds: float) -> Shot | None:
        is_brief = kind is FaultKind.KILL_FORKSERVER
        targets = self._nodes.free() if is_brief else self._nodes.spare()
        if not targets:
            return None
        node = self._chance.choice(targets)
        match kind:
            case FaultKind.KILL_FORKSERVER:
                forkserver = node.forkserver()
                return None if forkserver is None else self._kill_forkserver(node, forkserver)
            case FaultKind.KILL_MANAGER:
                return self._borrowing(node, self._kill_manager)
            case FaultKind.STOP_NODE:
                return self._borrowing(node, self._stop_node)
            case FaultKind.FREEZE_NODE:
                return self._borrowing(
                    node, lambda _: self._freeze_node(kind, node, self._processes_of(node), seconds)
                )
            case _:
                return self._borrowing(
                    node, lambda _: self._freeze_node(kind, node, {node.pid}, seconds)
                )

    def _borrowing(self, node: Node, harm: Callable[[Node], Awaitable[None]]) -> Shot:
        # Borrowed at once: the next aim must not find it free before this shot has begun.
        node.is_borrowed = True

        async def shot() -> None:
            with self._nodes.borrowed(node):
                await harm(node)

        return shot()

    async def _kill_forkserver(self, node: Node, forkserver: int) -> None:
        began = now()
        if signal_process(forkserver, signal.SIGKILL):
            target = f"{node.name}, pid {forkserver}"
            self._log.add(Fault(FaultKind.KILL_FORKSERVER, began, began, target, node.pid))

    async def _kill_manager(self, node: Node) -> None:
        pid, node.is_stopping = node.pid, True
        began = now()
        signal_process(pid, signal.SIGKILL)
        self._log.add(Fault(FaultKind.KILL_MANAGER, began, began, f"{node.name}, pid {pid}", pid))
        await self._is_back(node, pid)

    async def _stop_node(self, node: Node) -> None:
        pid, began = node.pid, now()
        try:
            code, seconds = await node.stop()
            if code != 0:
                self._nodes.incidents.append(f"{node.name} ended with {code} after SIGTERM")
        except TimeoutError:
            seconds = now() - began
            self._nodes.incidents.append(f"{node.name} (pid {pid}) lives {seconds:.1f} s on")
            signal_process(pid, signal.SIGKILL)
        target = f"{node.name}, pid {pid}, took {seconds:.1f} s"
        self._log.add(Fault(FaultKind.STOP_NODE, began, now(), target, pid))
        await self._is_back(node, pid)

    async def _freeze_node(
        self, kind: FaultKind, node: Node, pids: set[int], seconds: float
    ) -> None:
        await self._freeze(kind, pids, seconds, f"{node.name}, pid {node.pid}", node.pid)

    def _processes_of(self, node: Node) -> set[int]:
        return {pid for pid, its_node in self._nodes.processes().items() if its_node is node}

    @staticmethod
    async def _is_back(node: Node, pid: int) -> None:
        # Another task starts it.
        while node.pid == pid or not node.is_ready:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    # -- the database -------------------------------------------------------------------------

    async def _aim_at_database(self, planned: PlannedFault, seconds: float) -> Shot | None:
        if self._database.locked():
            return None
        if planned.kind is FaultKind.CRASH_DATABASE:
            return self._crash(planned.share * self._pace.outage_seconds)
        backends = await self._lookup.fetch(BACKENDS)
        if not backends:
            return None
        count = 1 + int(planned.share * MOST_BACKENDS)
        chosen = self._chance.sample(list(backends), min(count, len(backends)))
        if planned.kind is FaultKind.KILL_BACKEND:
            return self._terminate({row["pid"]: row["what"] for row in chosen})
        return self._freeze_backend(chosen[0]["pid"], chosen[0]["what"], seconds)

    async def _terminate(self, backends: dict[int, str]) -> None:
        began = now()
        done = await self._lookup.fetch(
            "select pg_terminate_backend(pid) from unnest($1::int[]) as pid", list(backends)
        )
        if done:
            target = "; ".join(f"pid {pid}, {what}" for pid, what in backends.items())
            self._log.add(Fault(FaultKind.KILL_BACKEND, began, now(), target))

    async def _freeze_backend(self, pid: int, what: str, seconds: float) -> None:
        # A stopped backend would hold up an immediate stop for five seconds.
        async with self._database:
            if parents().get(pid) == self._server.status().pid:
                await self._freeze(
                    FaultKind.FREEZE_BACKEND, {pid}, seconds, f"pid {pid}, {what}", None
                )

    async def _crash(self, outage_seconds: float) -> None:
        async with self._database:
            began = now()
            await asyncio.to_thread(crash, self._server)
            await asyncio.sleep(outage_seconds)
            await asyncio.to_thread(self._server.start)
            target = f"away for {now() - began:.1f} s"
            self._log.add(Fault(FaultKind.CRASH_DATABASE, began, now(), target))

    # -- freezing -----------------------------------------------------------------------------

    async def _freeze(
        self,
        kind: FaultKind,
        pids: set[int],
        seconds: float,
        target: str,
        node_pid: int | None,
        pid: int | None = None,
    ) -> None:
        began = now()
        others = self._frozen & pids
        frozen = {each for each in pids - others if signal_process(each, signal.SIGSTOP)}
        self._frozen |= frozen
        try:
            await asyncio.sleep(seconds)
        finally:
            for each in frozen & self._frozen:
                signal_process(each, signal.SIGCONT)
            self._frozen -= frozen
            if frozen:
                self._log.add(Fault(kind, began, now(), target, node_pid, pid))


def _guard_of(job: RunningJob) -> int | None:
    """The process between the job's and whoever forks for the manager; None where there is none."""
    tree = parents()
    guard = tree.get(job.pid, 0)
    if guard == job.node.pid or job.node.mark.encode() not in environment_of(guard):
        return None
    is_forkserver = FORKSERVER in command_of(guard) and (tree.get(guard) == job.node.pid)
    return None if is_forkserver else guard
