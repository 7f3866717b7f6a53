"""Webhook endpoints and what is to be delivered to them.

A delivery exists from the transaction on that ends its job: neither is without the other.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from app.domain.webhooks import Delivery, DueDelivery, TryEnded, Webhook


class WebhookStore(Protocol):
    """The part of `DBInterface` about webhooks."""

    async def insert_webhook(self, url: str, events: Sequence[str], secret: str) -> Webhook:
        """A new endpoint that is told of these events of jobs that end from now on."""

    async def list_webhooks(self) -> list[Webhook]:
        """All endpoints in the order of their making."""

    async def get_webhook(self, webhook_id: str) -> Webhook | None:
        """An endpoint, None if unknown."""

    async def enable_webhook(self, webhook_id: str) -> bool:
        """Tell the endpoint again, of jobs that end from now on; False if unknown."""

    async def disable_webhook(self, webhook_id: str, reason: str) -> bool:
        """Tell the endpoint no more, and give up what is pending; False if unknown."""

    async def delete_webhook(self, webhook_id: str) -> bool:
        """Forget the endpoint and its deliveries; False if unknown."""

    async def list_deliveries(
        self, webhook_id: str, limit: int, before: tuple[datetime, str] | None = None
    ) -> list[Delivery]:
        """Deliveries to an endpoint, the newest first.

        Args:
            before: when a delivery was made and its id; only older ones. It may be gone by now.
        """

    async def replay_delivery(self, delivery_id: str) -> bool | None:
        """Make an ended delivery due again from the schedule's start, under its id.

        False where it is pending anyway, None if unknown.
        """

    async def claim_deliveries(
        self, limit: int, per_webhook: int, busy: Sequence[str], lease_seconds: float
    ) -> list[DueDelivery]:
        """Take due deliveries of active endpoints for one try each, the oldest first.

        Nobody else gets them for `lease_seconds`; then they are due again, if `end_try` has not
        said what became of them.

        Args:
            per_webhook: at most so many of one endpoint.
            busy: endpoints to pass over.
        """

    async def end_try(self, delivery: DueDelivery, ended: TryEnded) -> bool:
        """Write what became of a try; False where the lease was over and another one began."""
