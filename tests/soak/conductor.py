"""One soak from beginning to end: a cluster, nodes, jobs, faults, the drain, and the end of it all.

Whatever happens, everything that was started here is ended here.
"""

import asyncio
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from soak.fault_log import FaultKind, FaultLog
from soak.faults import Faults
from soak.lookup import Lookup
from soak.nodes import Node, Nodes
from soak.pace import KINDS, Pace, PlannedFault, plan_faults
from soak.traffic import Traffic
from support.processes import command_of

from app.db.postgres.embedded import EmbeddedPostgres

ROLES: Final = ("serve", "serve", "serve", "worker")
LOOK_SECONDS: Final = 0.2
# A job may need a recovery, its longest backoffs and another run of ten seconds, and that again.
DRAIN_SECONDS: Final = 120.0
# A service that was frozen may store what it was sent long ago.
QUIET_SECONDS: Final = 3.0
# The interpreter's own helpers notice the end of their parent a moment later.
LEFTOVER_SECONDS: Final = 3.0

UNFINISHED: Final = """
select count(*) as n from haulage.jobs where status in ('pending', 'running')
"""


class Conductor:
    """Runs one soak in a folder of its own.

    Attributes:
        incidents: what went wrong beside the jobs.
        not_done: planned faults that found no target, by kind.
        drain_seconds: how long the queue took to drain, None where it did not.
    """

    def __init__(
        self, pace: Pace, seed: int, server: EmbeddedPostgres, database_url: str, folder: Path
    ) -> None:
        self._pace = pace
        self._chance = random.Random(seed)  # noqa: S311  a plan to be repeated, no secret
        self._lookup = Lookup(database_url)
        self.witnesses = folder / "witnesses"
        self.witnesses.mkdir()
        self.log = FaultLog(folder / "faults.jsonl")
        self.nodes = Nodes(
            [
                Node(f"node-{number}", role, self._settings(), database_url, folder)
                for number, role in enumerate(ROLES, 1)
            ]
        )
        chances = [random.Random(self._chance.random()) for _ in range(2)]  # noqa: S311
        self.traffic = Traffic(self.nodes, folder / "promises", chances[0])
        self._faults = Faults(pace, self.nodes, server, self._lookup, self.log, chances[1])
        self.not_done: list[FaultKind] = []
        self.drain_seconds: float | None = None

    @property
    def incidents(self) -> list[str]:
        """See the class."""
        outages = [f for f in self.log.faults if f.kind is FaultKind.CRASH_DATABASE]
        return self.nodes.incidents + [
            why
            for began, ended, why in self.nodes.failed_starts
            # Without a database no node comes up; it says so and ends.
            if not any(outage.began <= ended and began <= outage.ended for outage in outages)
        ]

    async def run(self) -> None:
        """All of it."""
        keepers: list[asyncio.Task[None]] = []
        try:
            await asyncio.gather(*(node.start() for node in self.nodes))
            keepers = [asyncio.create_task(self.nodes.keep_running(node)) for node in self.nodes]
            async with asyncio.TaskGroup() as group:
                group.create_task(self.traffic.flow(self._pace.seconds))
                group.create_task(self._shoot(plan_faults(self._pace, self._chance)))
            await self._drain()
            await self.nodes.stop()
            await self._look_for_leftovers()
        finally:
            await _cancel(keepers)
            self._faults.thaw()
            self.nodes.kill()
            await self._lookup.close()

    async def _shoot(self, plan: Iterable[PlannedFault]) -> None:
        """Do what is planned when it is due; what has no target yet is tried again until it has."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        coming = list(plan)
        due: list[PlannedFault] = []
        shots: set[asyncio.Task[None]] = set()
        try:
            while (coming or due) and loop.time() - began < self._pace.seconds:
                while coming and loop.time() - began >= coming[0].at_seconds:
                    due.append(coming.pop(0))
                # One of each kind: where it finds no target, the next one finds none either.
                for planned in list({planned.kind: planned for planned in reversed(due)}.values()):
                    if await self._try(planned, shots):
                        due.remove(planned)
                await asyncio.sleep(LOOK_SECONDS)
            self.not_done += [planned.kind for planned in due + coming]
            await asyncio.gather(*shots)
        finally:
            await _cancel(shots)

    async def _try(self, planned: PlannedFault, shots: set[asyncio.Task[None]]) -> bool:
        shot = await self._faults.aim(planned)
        if shot is not None:
            shots.add(asyncio.create_task(shot))
            return True
        if planned.kind is FaultKind.KILL_GUARD and self._faults.has_guards is False:
            self.not_done.append(planned.kind)
            return True
        return False

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        began = busy_at = loop.time()
        while loop.time() - began < DRAIN_SECONDS:
            rows = await self._lookup.fetch(UNFINISHED)
            if not rows or rows[0]["n"] > 0:
                busy_at = loop.time()
            elif loop.time() - busy_at > QUIET_SECONDS:
                self.drain_seconds = busy_at - began
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _look_for_leftovers(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while left := self.nodes.processes():
            if loop.time() - began > LEFTOVER_SECONDS:
                lines = [f"{pid}: {command_of(pid)[:60]}" for pid in sorted(left)]
                self.incidents.append(f"left behind by stopped nodes: {lines}")
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _settings(self) -> dict[str, Any]:
        registration = {
            "target": "soak.pipelines:Steps",
            "arguments": {"folder": str(self.witnesses)},
        }
        return {**self._pace.settings, "pipelines": dict.fromkeys(KINDS, registration)}


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
