"""The end of a node: every step bounded, whatever hangs, and nothing left that it owns."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

from app.db.interface import DBInterface
from app.domain.lifecycle import Released
from app.orchestrator.processes import WorkerProcess
from app.orchestrator.settling import Settlements
from app.telemetry import Telemetry

RETRY_SECONDS: Final = 0.1
# After the grace of a shutdown all this has to be over well within two seconds, whatever hangs:
# SIGTERM, this long, SIGKILL, this long, and what is left goes to giving jobs back.
FINAL_SECONDS: Final = 1.6
FINAL_TERM_SECONDS: Final = 0.7
FINAL_KILL_SECONDS: Final = 0.3


async def bounded(
    what: str, work: Awaitable[None], timeout_seconds: float, telemetry: Telemetry
) -> None:
    """Wait for one step of a shutdown; its failure or its hanging is reported and gone past."""
    try:
        async with asyncio.timeout(max(0.0, timeout_seconds)):
            await work
    except Exception as error:  # noqa: BLE001  shutdown goes on to its end
        # Without the database the lease ends by itself and another node takes over.
        telemetry.emit("loop.failed", loop=what, error=repr(error), failures=1)


async def done_before(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Whether `work` was done before the event came; then it is cancelled."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
            return True
        return False
    finally:
        working.cancel()
        waiting.cancel()
        await asyncio.wait({working, waiting}, timeout=RETRY_SECONDS)


async def keep_reaping(
    reaping: Awaitable[None], timeout_seconds: float, telemetry: Telemetry
) -> None:
    """Reap for a while; whatever one end does, the shutdown goes on."""
    try:
        async with asyncio.timeout(max(0.0, timeout_seconds)):
            await reaping
    except TimeoutError:
        pass
    except Exception as error:  # noqa: BLE001  told; the next look comes to it again
        telemetry.emit("loop.failed", loop="stop", error=repr(error), failures=1)
        await asyncio.sleep(RETRY_SECONDS)


async def end_remaining(
    processes: Mapping[str, WorkerProcess],
    reap_until: Callable[[Callable[[], float]], Awaitable[None]],
) -> None:
    """The ladder for all that still run at the end of the grace, each step in its time."""
    for worker in processes.values():
        worker.stop(Released())
    terminated = time.monotonic() + FINAL_TERM_SECONDS
    await reap_until(lambda: terminated)
    for worker in processes.values():
        worker.kill()
    killed = time.monotonic() + FINAL_KILL_SECONDS
    await reap_until(lambda: killed)
    for worker in processes.values():
        worker.destroy()


async def give_back(db: DBInterface, node_id: str, settlements: Settlements) -> None:
    """Release what the database still counts as running here, then leave."""
    await settlements.retry()
    await _release_rows(db, node_id, settlements)
    await db.deregister_node(node_id)
    # A claim that was under way when the listener stopped may have been committed since.
    await _release_rows(db, node_id, settlements)


async def _release_rows(db: DBInterface, node_id: str, settlements: Settlements) -> None:
    for row in await db.list_running_jobs(node_id):
        if row.claim not in settlements:
            await settlements.settle(row.claim, row, Released())
