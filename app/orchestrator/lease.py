"""A node's identity and its lease: one boot of one process, known by a row that it renews.

The lease belongs to the node, not to its jobs. Once it has ended it is never renewed again, so
whoever finds it ended may take the node's jobs; the node itself comes back under a new identity.
"""

import asyncio
import math
import os
import platform
import time
from collections.abc import Callable
from typing import Final

from app import __version__
from app.db.ids import new_id
from app.db.interface import DBInterface
from app.domain.errors import DatabaseUnavailableError
from app.domain.jobs import NodeInfo
from app.telemetry import Telemetry

# The event loop's timers may be early by its clock's resolution.
CLOCK_SLACK_SECONDS: Final = 0.001


class NodeLease:
    """The identity under which a node claims, and how long it may still speak for its jobs."""

    def __init__(
        self, db: DBInterface, capacity: int, lease_seconds: float, telemetry: Telemetry
    ) -> None:
        self._db = db
        self._capacity = capacity
        self._lease_seconds = lease_seconds
        self._telemetry = telemetry
        self._renewed = time.monotonic()
        # None while the database does not answer.
        self._steady_since: float | None = -math.inf
        self.node = self._new_node()

    @property
    def node_id(self) -> str:
        """The present identity."""
        return self.node.id

    @property
    def has_ended(self) -> bool:
        """By our own clock, counted from before the last renewal was sent.

        Others count by the database's clock from when it arrived: ours ends first.
        """
        return self.remaining_seconds <= 0

    @property
    def remaining_seconds(self) -> float:
        """Until `has_ended`; negative afterwards."""
        return self._renewed + self._lease_seconds - time.monotonic()

    @property
    def steady_seconds(self) -> float:
        """For how long every renewal has been answered; 0 while the last one was not."""
        return 0.0 if self._steady_since is None else time.monotonic() - self._steady_since

    async def register(self) -> None:
        """Make the present identity known."""
        began = time.monotonic()
        await self._db.register_node(self.node)
        self._note_answer(began)
        self._telemetry.emit("node.registered", node=self.node.id, host=self.node.name)

    async def renew(self, on_ended: Callable[[], None]) -> bool:
        """Extend the lease; False where the database says that it has ended for good.

        Args:
            on_ended: called where there is no answer and the lease ends by our own clock, at
                that instant, whenever the next try may be.

        Raises:
            DatabaseUnavailableError: no answer.
        """
        try:
            return await self._renew()
        except Exception:
            self._steady_since = None
            wait_seconds = max(0.0, self.remaining_seconds) + CLOCK_SLACK_SECONDS
            loop = asyncio.get_running_loop()
            loop.call_later(wait_seconds, lambda: on_ended() if self.has_ended else None)
            raise

    async def _renew(self) -> bool:
        began = time.monotonic()
        # An ended lease is asked about too: the answer tells whether to begin anew.
        patience = self.remaining_seconds if self.remaining_seconds > 0 else self._lease_seconds
        patience = min(patience, self._lease_seconds / 2)
        try:
            async with asyncio.timeout(patience):
                is_renewed = await self._db.renew_node(self.node.id)
        except TimeoutError as error:
            said = f"the lease was not renewed in {patience:.1f} s"
            raise DatabaseUnavailableError(said) from error
        if is_renewed:
            self._note_answer(began)
        return is_renewed

    def _note_answer(self, began: float) -> None:
        self._renewed = began
        if self._steady_since is None:
            self._steady_since = time.monotonic()

    def forget(self) -> None:
        """Give up the present identity; the next `register` makes a new one known."""
        self.node = self._new_node()

    async def begin_anew(self) -> None:
        """Take a new identity after the old one's lease has ended."""
        self.forget()
        await self.register()

    def _new_node(self) -> NodeInfo:
        return NodeInfo(
            id=new_id(),
            name=platform.node(),
            pid=os.getpid(),
            capacity=self._capacity,
            lease_seconds=self._lease_seconds,
            version=__version__,
        )
