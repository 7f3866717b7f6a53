"""Wake-ups as long as a node lives, whatever becomes of the connection that carries them."""

import asyncio
from collections.abc import AsyncGenerator

from app.db.interface import DBInterface
from app.domain.jobs import WakeUp
from app.telemetry import Telemetry


async def endless_wake_ups(
    db: DBInterface, pause_seconds: float, telemetry: Telemetry
) -> AsyncGenerator[WakeUp, None]:
    """The store's wake-ups; where they fail, that is told and they begin anew after a pause."""
    while True:
        wake_ups = db.wake_ups()
        try:
            async for wake_up in wake_ups:
                yield wake_up
        except Exception as error:  # noqa: BLE001  a deaf node still polls, but says so
            telemetry.emit("loop.failed", loop="wake-ups", error=repr(error))
        finally:
            await wake_ups.aclose()
        await asyncio.sleep(pause_seconds)
