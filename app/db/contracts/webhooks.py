"""Webhook endpoints and what is to be delivered to them.

A delivery exists from the transaction on that ends its job: neither is without the other.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from app.domain.webhooks import Delivery, DueDelivery, Replay, Rotation, TryEnded, Webhook


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

    async def rotate_secret(
        self, webhook_id: str, secret: str, old_valid_seconds: float
    ) -> Rotation | None:
        """Sign messages to the endpoint with this secret and, for a time, with those before it.

        Secrets from earlier rotations keep their own time, or end with this one's where that is
        sooner: 0 ends all of them now. Otherwise nothing is changed where MAX_OLD_SECRETS are
        good. None if unknown.
        """

    async def delete_webhook(self, webhook_id: str) -> bool:
        """Forget the endpoint and its deliveries; False if unknown."""

    async def list_deliveries(
        self, webhook_id: str, limit: int, before: tuple[datetime, str] | None = None
    ) -> list[Delivery]:
        """Deliveries to an endpoint, the newest first.

        Args:
            before: when a delivery was made and its id; only older ones. It may be gone by now.
        """

    async def replay_delivery(self, delivery_id: str) -> Replay | None:
        """Make an ended delivery due again from the schedule's start, under its id.

        Nothing is changed where it is pending anyway or its endpoint is switched off. None if
        unknown.
        """

    async def claim_deliveries(
        self, limit: int, per_webhook: int, taken: Mapping[str, int], lease_seconds: float
    ) -> list[DueDelivery]:
        """Take due deliveries of active endpoints for one try each: of each the oldest first.

        Where there are more than `limit`, each endpoint's first goes before the second of any, and
        an endpoint with places taken counts as if it had been given so many already.

        Nobody else gets them for `lease_seconds`; then they are due again, if `end_try` has not
        said what became of them.

        Args:
            per_webhook: places of one endpoint.
            taken: how many of them are taken, by endpoint; none of those that are not named.
        """

    async def give_back_try(self, delivery: DueDelivery) -> None:
        """Uncount a try that its own process broke off; the delivery is due at once.

        Changes nothing where the lease was over and another one began.
        """

    async def end_try(self, delivery: DueDelivery, ended: TryEnded) -> bool:
        """Write what became of a try; False where the lease was over and another one began."""
