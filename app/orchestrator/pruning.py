"""`Pruner`: lets go of jobs, datasets, calls and nodes that are old enough, a few at a time.

    each interval:  for each kind of thing  [ batch -> pause ] until a batch comes back short

It must never be in the way: it has a connection of its own, its statements are short, and between
two of them it rests at least as long as the one before took. Several nodes may do this at once; the
database lets one of them at a time.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from app.db.interface import DBFactory, DBInterface
from app.domain.errors import DatabaseUnavailableError
from app.domain.retention import Retention
from app.loops import PeriodicLoop
from app.telemetry import Telemetry

BATCH: Final = 500
# A dataset may have 200,000 rows, and a job as many lines of log.
DATASET_BATCH: Final = 10
# A batch that takes longer is halved the next time.
LONG_SECONDS: Final = 0.5
LEAST_PAUSE_SECONDS: Final = 0.05
STOP_SECONDS: Final = 0.1

Prune = Callable[[int], Awaitable[int]]


class Batch:
    """How many things go at once: fewer where they are large, more again where they are not."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = most

    def note(self, seconds: float) -> None:
        """A batch of this size took so long."""
        if seconds > LONG_SECONDS:
            self.size = max(1, self.size // 2)
        elif seconds < LONG_SECONDS / 4:
            self.size = min(self._most, self.size * 2)


class Pruner:
    """Deletes what has been kept for as long as was wished.

    Args:
        db_factory: builds the adapter that it has for itself.
    """

    def __init__(self, db_factory: DBFactory, retention: Retention, telemetry: Telemetry) -> None:
        self._db: DBInterface = db_factory()
        self._retention = retention
        self._telemetry = telemetry
        self._stopping = asyncio.Event()
        self._batches: dict[str, Batch] = {}
        self._loop = PeriodicLoop(
            "retention", self._prune_once, retention.interval_seconds, telemetry
        )

    def start(self) -> None:
        """Begin to look, at once and at each interval."""
        self._stopping.clear()
        self._loop.start()

    async def stop(self) -> None:
        """End between two batches, or in the middle of one: the database takes that back."""
        self._stopping.set()
        await self._loop.stop(STOP_SECONDS)

    async def close(self) -> None:
        """Give the connection back."""
        await self._db.close()

    async def _prune_once(self) -> dict[str, int]:
        """Let everything go that is old enough; how many of each kind went."""
        gone: dict[str, int] = {}
        errors: list[Exception] = []
        for what, prune in self._kinds():
            try:
                if count := await self._prune_all(what, prune):
                    gone[what] = count
            except Exception as error:  # noqa: BLE001  one kind that fails keeps no other
                errors.append(error)
        if gone:
            self._telemetry.emit("retention.pruned", **gone)
        if errors:
            raise errors[0]
        return gone

    def _kinds(self) -> list[tuple[str, Prune]]:
        keep, db = self._retention, self._db
        kinds: list[tuple[str, Prune]] = [
            (f"{status}_jobs", partial(db.prune_jobs, status, age))
            for status, age in keep.jobs.items()
        ]
        # After the jobs: with them the last reason to keep a dataset may have gone.
        if keep.dataset_seconds is not None:
            kinds.append(("datasets", partial(db.prune_datasets, keep.dataset_seconds)))
        if keep.call_seconds is not None:
            kinds.append(("calls", partial(db.prune_calls, keep.call_seconds)))
        kinds.append(("nodes", partial(db.prune_nodes, keep.node_seconds)))
        kinds.append(("tombstones", partial(db.prune_tombstones, keep.tombstone_seconds)))
        return kinds

    async def _prune_all(self, what: str, prune: Prune) -> int:
        most = DATASET_BATCH if what == "datasets" else BATCH
        batch = self._batches.setdefault(what, Batch(most))
        total = 0
        while not self._stopping.is_set():
            size = batch.size
            began = time.monotonic()
            try:
                count = await prune(size)
            except DatabaseUnavailableError:
                # Too much for one statement perhaps: the next pass takes less.
                batch.note(math.inf)
                raise
            seconds = time.monotonic() - began
            batch.note(seconds)
            total += count
            if count < size:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(LEAST_PAUSE_SECONDS, seconds)):
                    await self._stopping.wait()
        return total
