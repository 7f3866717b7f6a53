"""`QueueManager`: the scheduler of one node, on the event loop of whoever starts it.

    _listener_loop:  reap -> capacity -> claim -> spawn -> wait (wake-up or poll interval)
    _watchdog_loop:  reap -> rows against processes -> overdue, lost, stray -> other nodes' losses
    limits:          SIGTERM, later SIGKILL for what exceeds a limit, without the database
    heartbeat:       renew the node's lease; a node that cannot ends its own workers

The loops share nothing but `_running_processes` and survive each other's hanging. The database is
the truth about jobs; this module must never hold one in memory only, and never block the loop.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from app.db.interface import DBFactory, DBInterface
from app.domain.health import VitalSigns
from app.domain.jobs import Cause, Registration, WakeUp
from app.domain.lifecycle import (
    Died,
    Interrupted,
    NodeLost,
    NotConnected,
    NotStarted,
    Outcome,
    Released,
)
from app.loops import Companion, PeriodicLoop
from app.orchestrator import recovery
from app.orchestrator.claiming import Claimer
from app.orchestrator.ending import (
    FINAL_SECONDS,
    bounded,
    done_before,
    end_remaining,
    give_back,
    keep_reaping,
)
from app.orchestrator.enforcing import LimitEnforcer
from app.orchestrator.launching import WorkerLauncher
from app.orchestrator.lease import NodeLease
from app.orchestrator.memory import tree_memory_bytes
from app.orchestrator.options import ManagerOptions
from app.orchestrator.processes import WorkerProcess
from app.orchestrator.reaping import Reaper
from app.orchestrator.rescue import RESULTS_FIRST_SECONDS
from app.orchestrator.settling import Settlements
from app.orchestrator.waking import endless_wake_ups
from app.orchestrator.watching import Watchdog
from app.telemetry import Telemetry, default_telemetry

MERGE_WAKE_UPS_SECONDS: Final = 0.02
LIMITS_INTERVAL_SECONDS: Final = 0.5
# After an outage of the database every node is soon back, and what that cost is soon known.
RENEWAL_RETRY_SECONDS: Final = 1.0
LOOP_STOP_SECONDS: Final = 0.3
CLOSE_SECONDS: Final = 0.3


class QueueManager:
    """Claims jobs for one node and runs each in its own process.

    Args:
        db_factory: builds an adapter; picklable, since every worker builds its own with it.
        pipelines: what this node can run, by registered name.
        companions: work beside the scheduling, started and stopped with it.
    """

    def __init__(
        self,
        db_factory: DBFactory,
        *,
        pipelines: Mapping[str, Registration] | None = None,
        options: ManagerOptions | None = None,
        telemetry: Telemetry | None = None,
        worker_db_factory: DBFactory | None = None,
        companions: Sequence[Companion] = (),
    ) -> None:
        self.db: DBInterface = db_factory()
        self._db_impl_factory_for_worker: DBFactory = worker_db_factory or db_factory
        self._options = options or ManagerOptions()
        self._telemetry = telemetry or default_telemetry()
        self._launcher = WorkerLauncher(
            self._options.start_method, self._db_impl_factory_for_worker, self._telemetry
        )
        # A connection of its own: a renewal never waits behind the node's other work.
        self._lease_db = db_factory()
        self._lease = NodeLease(
            self._lease_db,
            self._options.max_concurrent_jobs,
            self._options.node_lease_seconds,
            self._telemetry,
        )
        self._settlements = Settlements(self.db, self._telemetry)
        # Job id -> its process here and now; never the truth about a job's state.
        self._running_processes: dict[str, WorkerProcess] = {}
        self._enforcer = LimitEnforcer(
            self._running_processes,
            self._options.kill_grace_seconds,
            self._telemetry,
            tree_memory_bytes,
        )
        self._reaper = Reaper(self._settlements, self._telemetry, self._judge)
        self._claimer = Claimer(
            self.db,
            pipelines or {},
            self._options,
            self._launcher,
            self._running_processes,
            self._reaper,
            self._settlements,
            self._telemetry,
            on_process_end=self._on_process_end,
        )
        self._watchdog = Watchdog(
            self.db,
            self._lease,
            self._running_processes,
            self._claimer.launches,
            self._claimer.unanswered,
            self._reaper,
            self._settlements,
            self._telemetry,
            judge=self._judge,
            results_first_seconds=RESULTS_FIRST_SECONDS,
        )
        self._companions = companions
        self._is_draining = False
        self._grace_end = 0.0
        self._drained = asyncio.Event()
        self._process_ended = asyncio.Event()
        self._listener_task: asyncio.Task[None] | None = None
        self._watchdog_task: asyncio.Task[None] | None = None
        self._wake_up_task: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._listening = PeriodicLoop(
            "listener",
            self._listen_once,
            self._options.poll_interval_seconds,
            self._telemetry,
            min_gap_seconds=MERGE_WAKE_UPS_SECONDS,
        )
        self._watching = PeriodicLoop(
            "watchdog",
            self._watch_once,
            self._options.watchdog_interval_seconds,
            self._telemetry,
            min_gap_seconds=MERGE_WAKE_UPS_SECONDS,
        )
        self._limiting = PeriodicLoop(
            "limits", self._enforcer.enforce, LIMITS_INTERVAL_SECONDS, self._telemetry
        )
        self._renewing = PeriodicLoop(
            "heartbeat",
            self._renew_once,
            self._options.heartbeat_interval_seconds,
            self._telemetry,
            max_retry_seconds=RENEWAL_RETRY_SECONDS,
        )

    @property
    def node_id(self) -> str:
        """This node's identity; a new one after a lost lease."""
        return self._lease.node_id

    @property
    def running_jobs(self) -> int:
        """How many worker processes live here."""
        return len(self._running_processes)

    def vital_signs(self) -> VitalSigns:
        """How this scheduler is, without asking anybody."""
        loops = (self._listening, self._watching, self._limiting, self._renewing)
        return VitalSigns(
            is_draining=self._is_draining,
            is_listening=self.db.is_listening,
            slowest_pass_seconds=max(loop.pass_seconds for loop in loops),
            dead_loops=tuple(loop.name for loop in loops if loop.is_dead),
        )

    # -- start and stop -----------------------------------------------------------------------

    async def start(self) -> None:
        """Register the node and start its loops on the running event loop.

        A `drain` meanwhile ends it: then nothing is started.
        """
        try:
            is_ready = await done_before(self._drained, self._prepare())
        except BaseException:
            # Who could not start is not stopped either.
            await self._step("close", self._close(), CLOSE_SECONDS)
            raise
        if not is_ready:
            await self._step("close", self._close(), CLOSE_SECONDS)
            return
        self._listener_task = asyncio.create_task(self._listener_loop(), name="haulage-listener")
        self._watchdog_task = asyncio.create_task(self._watchdog_loop(), name="haulage-watchdog")
        self._limiting.start()
        self._renewing.start()
        self._wake_up_task = asyncio.create_task(self._follow_wake_ups(), name="haulage-wake-ups")
        for companion in self._companions:
            companion.start()
        self._telemetry.emit(
            "manager.started",
            node=self.node_id,
            capacity=self._options.max_concurrent_jobs,
            start_method=self._options.start_method,
        )

    async def _prepare(self) -> None:
        await self._launcher.warm_up()
        await self._lease.register()

    def drain(self) -> None:
        """Claim nothing from now on; the grace of the coming `stop` is already running.

        Safe in a signal handler of the event loop; a second call ends the grace at once.
        """
        if self._is_draining:
            self._grace_end = time.monotonic()
            self._process_ended.set()
            return
        self._is_draining = True
        self._drained.set()
        self._grace_end = time.monotonic() + self._options.shutdown_grace_seconds
        self._claimer.launches.give_up(Released())
        self._telemetry.emit("manager.draining", running=len(self._running_processes))

    async def stop(self) -> None:
        """Stop claiming, let jobs finish within the grace, release the rest, leave nothing behind.

        Every wait is bounded: it returns within the grace + 2 s. A second call waits for the first.
        """
        if self._listener_task is None:
            return
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(), name="haulage-stop")
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        if not self._is_draining:
            self.drain()
        began = time.monotonic()
        await asyncio.gather(
            self._step("drain", self.db.drain_node(self.node_id), LOOP_STOP_SECONDS),
            self._listening.stop(LOOP_STOP_SECONDS),
            *(self._step("companion", c.stop(), LOOP_STOP_SECONDS) for c in self._companions),
            # Renewing and watching go on meanwhile.
            self._reap_until(lambda: self._grace_end),
        )
        end = max(self._grace_end, began) + FINAL_SECONDS - CLOSE_SECONDS
        await end_remaining(self._running_processes, self._reap_until)
        await asyncio.gather(
            self._watching.stop(LOOP_STOP_SECONDS),
            self._limiting.stop(LOOP_STOP_SECONDS),
            self._renewing.stop(LOOP_STOP_SECONDS),
            self._step(
                "farewell",
                give_back(self.db, self.node_id, self._settlements),
                end - time.monotonic(),
            ),
        )
        await self._step("close", self._close(), CLOSE_SECONDS)
        self._listener_task = self._watchdog_task = self._wake_up_task = None
        self._telemetry.emit("manager.stopped", node=self.node_id)
        # Ready for another start, as another node: a boot has an identity of its own.
        self._lease.forget()
        self._is_draining = False
        self._drained.clear()
        self._stopping = None

    # -- the listener loop --------------------------------------------------------------------

    async def _listener_loop(self) -> None:
        await self._listening.run()

    async def _follow_wake_ups(self) -> None:
        pause_seconds = self._options.poll_interval_seconds
        async for wake_up in endless_wake_ups(self.db, pause_seconds, self._telemetry):
            if WakeUp.JOBS in wake_up:
                self._listening.wake()
            if WakeUp.CONTROL in wake_up:
                self._watching.wake()

    async def _listen_once(self) -> int:
        """Reap, then claim and start a job for each free slot; how many were claimed."""
        await self._reap_finished()
        if self._is_draining:
            return 0
        return await self._claimer.fill(self.node_id, lambda: self._is_draining)

    def _on_process_end(self) -> None:
        self._process_ended.set()
        self._listening.wake()

    # -- ends ---------------------------------------------------------------------------------

    async def _reap_finished(self) -> int:
        """Settle the job of every process that has ended; how many there were."""
        await self._settlements.retry()
        ended = 0
        for job_id, worker in list(self._running_processes.items()):
            if worker.has_ended():
                # Taken out before the first await, so that the two loops never share one.
                del self._running_processes[job_id]
                self._reaper.begin(worker)
                ended += 1
            else:
                worker.escalate(self._options.kill_grace_seconds)
        await self._reaper.wait()
        return ended

    def _judge(self, outcome: Outcome) -> Outcome:
        """The outcome as the node's state explains it."""
        match outcome:
            case NotConnected():
                self._claimer.note_failed_start()
            case Interrupted() | NotStarted() | Died(cause=Cause.WORKER_LOST) if self._is_draining:
                # Who stops a service often signals all of its processes at once; and a start that
                # was under way has been given up.
                return Released()
            case _:
                pass
        return outcome

    # -- the watchdog loop --------------------------------------------------------------------

    async def _watchdog_loop(self) -> None:
        await self._watching.run()

    async def _watch_once(self) -> recovery.Findings:
        """One look at processes and rows; acts on what it finds and returns it."""
        self._enforcer.end_overdue()
        await self._reap_finished()
        return await self._watchdog.look()

    # -- the lease ----------------------------------------------------------------------------

    async def _renew_once(self) -> bool:
        """Renew the node's lease; a node whose lease has ended ends its workers and starts anew."""
        was_steady = self._lease.steady_seconds > 0
        is_renewed = await self._lease.renew(self._fence)
        if not is_renewed:
            self._fence()
            if not self._is_draining:
                await self._lease.begin_anew()
        if not was_steady:
            # What the outage has cost is looked after without another watch period.
            loop = asyncio.get_running_loop()
            loop.call_later(RESULTS_FIRST_SECONDS, self._watching.wake)
        return is_renewed

    def _fence(self) -> None:
        # Who has a result only tries to store it, and that is guarded: past the lease too.
        unfinished = [w for w in self._running_processes.values() if not w.has_outcome]
        if unfinished:
            self._telemetry.emit("node.lease_lost", node=self.node_id, killed=len(unfinished))
        for worker in unfinished:
            worker.kill(NodeLost(self.node_id))
        self._claimer.launches.give_up(NodeLost(self.node_id))

    # -- shutdown -----------------------------------------------------------------------------

    async def _reap_until(self, end: Callable[[], float]) -> None:
        while (self._running_processes or self._reaper.claims) and end() > time.monotonic():
            self._process_ended.clear()
            # Looked at in between too, in case that an end was not announced.
            patience = min(end() - time.monotonic(), LIMITS_INTERVAL_SECONDS)
            await keep_reaping(self._reap_and_wait(), patience, self._telemetry)

    async def _reap_and_wait(self) -> None:
        await self._reap_finished()
        if self._running_processes:
            await self._process_ended.wait()

    async def _close(self) -> None:
        if self._wake_up_task is not None:
            self._wake_up_task.cancel()
        await asyncio.gather(self._reaper.close(), self._settlements.close())
        # Destroyed, yet not seen to end: nobody here may wait for them any more.
        while self._running_processes:
            self._running_processes.popitem()[1].close()
        companions = (companion.close() for companion in self._companions)
        await asyncio.gather(
            self.db.close(), self._lease_db.close(), self._launcher.close(), *companions
        )
        if self._wake_up_task is not None:
            # Last: it may wait for a network that is silent.
            await asyncio.gather(self._wake_up_task, return_exceptions=True)

    async def _step(self, what: str, work: Awaitable[None], timeout_seconds: float) -> None:
        await bounded(what, work, timeout_seconds, self._telemetry)
