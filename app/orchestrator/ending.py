"""The end of a node: every step bounded, whatever hangs, and nothing left that it owns."""

import asyncio
from collections.abc import Awaitable
from typing import Final

from app.db.interface import DBInterface
from app.domain.lifecycle import Released
from app.orchestrator.settling import Settlements
from app.telemetry import Telemetry

RETRY_SECONDS: Final = 0.1


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
