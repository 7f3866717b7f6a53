"""Delivers what is due: claims, sends, writes down what came of it.

    claim (lease) --> send --> judge --> end_try

Whoever dies between sending and writing leaves the delivery due again when its lease is over: it is
sent at least once, always under the same id, and never more often than the schedule has tries.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from app.db.contracts.webhooks import WebhookStore
from app.domain.errors import DatabaseUnavailableError
from app.domain.webhooks import MAX_TRIES, Answer, DeliveryStatus, DueDelivery, judge
from app.loops import PeriodicLoop
from app.telemetry import Telemetry
from app.webhooks.addresses import AddressRules

POLL_SECONDS: Final = 1.0
# Longer than a try may take with its writes.
LEASE_SECONDS: Final = 60.0
# Each is a coroutine that waits for somebody else.
MAX_AT_ONCE: Final = 50
# One whose last try failed has only one, until it answers again.
MAX_OF_ONE_ENDPOINT: Final = 5
GONE: Final = "the endpoint answered 410 Gone"
NEVER_ENDED: Final = "no try came to an end: each process that made one was ended in it"


class Sender(Protocol):
    """Makes one try."""

    async def send(self, delivery: DueDelivery) -> Answer:
        """What the endpoint says; never raises for what it does."""

    async def close(self) -> None:
        """Give up what is under way."""


def _new_sender(rules: AddressRules) -> Sender:
    # 0.1 s of imports, for those who have an endpoint.
    from app.webhooks.sending import HTTPSender, PinnedTransport  # noqa: PLC0415

    return HTTPSender(PinnedTransport(rules))


class DeliveryService:
    """The deliveries of one process.

    Args:
        make_sender: called once, in a thread, when there is something to send.
    """

    def __init__(
        self,
        db: WebhookStore,
        rules: AddressRules,
        telemetry: Telemetry,
        *,
        poll_seconds: float = POLL_SECONDS,
        lease_seconds: float = LEASE_SECONDS,
        make_sender: Callable[[AddressRules], Sender] = _new_sender,
    ) -> None:
        self._db = db
        self._rules = rules
        self._telemetry = telemetry
        self._lease_seconds = lease_seconds
        self._make_sender = make_sender
        self._sender: Sender | None = None
        self._tries: dict[asyncio.Task[None], str] = {}
        # Endpoints whose last try failed; there are as few as endpoints.
        self._failing: set[str] = set()
        self._broken_off: list[DueDelivery] = []
        self._loop = PeriodicLoop("webhooks", self._deliver_once, poll_seconds, telemetry)

    async def start(self) -> None:
        """Begin to deliver."""
        self._loop.start()

    async def stop(self) -> None:
        """Claim no more and break off what is under way; it is due again, and lost no try."""
        await self._loop.stop()
        for task in self._tries:
            task.cancel()
        await asyncio.gather(*self._tries, return_exceptions=True)
        # Without the database they are due again after their lease.
        with contextlib.suppress(DatabaseUnavailableError):
            while self._broken_off:
                await self._db.give_back_try(self._broken_off.pop())
        if self._sender is not None:
            await self._sender.close()
            self._sender = None

    async def _deliver_once(self) -> int:
        """Begin as many tries as there is room for; how many."""
        room = MAX_AT_ONCE - len(self._tries)
        if room <= 0:
            return 0
        taken = Counter(self._tries.values())
        taken.update(dict.fromkeys(self._failing, MAX_OF_ONE_ENDPOINT - 1))
        due = await self._db.claim_deliveries(room, MAX_OF_ONE_ENDPOINT, taken, self._lease_seconds)
        if due and self._sender is None:
            self._sender = await asyncio.to_thread(self._make_sender, self._rules)
        for delivery in due:
            task = asyncio.create_task(self._try(delivery), name=f"haulage-webhook-{delivery.id}")
            self._tries[task] = delivery.webhook_id
            task.add_done_callback(self._is_over)
        return len(due)

    def _is_over(self, task: asyncio.Task[None]) -> None:
        del self._tries[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._telemetry.emit("loop.failed", loop="webhook-try", error=repr(error), failures=1)
        # There may be more that is due than there was room for.
        self._loop.wake()

    async def _answer(self, delivery: DueDelivery) -> Answer:
        """What came of sending. An error of ours is a failed try too, or it would never end."""
        assert self._sender is not None  # noqa: S101  made before the first try
        if delivery.attempt > MAX_TRIES:
            return Answer(error=NEVER_ENDED)
        try:
            return await self._sender.send(delivery)
        except asyncio.CancelledError:
            self._broken_off.append(delivery)
            raise
        except Exception as error:  # noqa: BLE001
            self._telemetry.emit("loop.failed", loop="webhook-try", error=repr(error), failures=1)
            return Answer(error=f"could not be sent: {type(error).__name__}")

    async def _try(self, delivery: DueDelivery) -> None:
        answer = await self._answer(delivery)
        jitter = random.uniform(0.9, 1.1)  # noqa: S311  spreads load, no secret
        ended = judge(delivery.attempt, answer, jitter)
        if ended.status is DeliveryStatus.DELIVERED or ended.is_gone:
            self._failing.discard(delivery.webhook_id)
        else:
            self._failing.add(delivery.webhook_id)
        try:
            is_ours = await self._db.end_try(delivery, ended)
            if is_ours and ended.is_gone:
                await self._db.disable_webhook(delivery.webhook_id, GONE)
        except DatabaseUnavailableError:
            return  # it is due again after its lease
        if not is_ours:
            return
        facts = {"webhook": delivery.webhook_id, "delivery": delivery.id, "job": delivery.job_id}
        if ended.status is DeliveryStatus.DELIVERED:
            self._telemetry.emit("webhook.delivered", **facts)
        elif ended.is_gone:
            self._telemetry.emit("webhook.disabled", webhook=delivery.webhook_id, reason=GONE)
        elif ended.status is DeliveryStatus.FAILED:
            self._telemetry.emit("webhook.given_up", **facts, reason=ended.error)
