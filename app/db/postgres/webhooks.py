"""Webhook endpoints and their deliveries in PostgreSQL; it sends nothing."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from app.db.ids import as_uuid, new_id
from app.db.postgres.calls import PostgresCalls
from app.db.postgres.statements import STATEMENTS
from app.domain.webhooks import (
    MAX_OLD_SECRETS,
    Delivery,
    DueDelivery,
    Replay,
    Rotation,
    TryEnded,
    Webhook,
)


class PostgresWebhooks(PostgresCalls):
    """The part of `DBInterface` about webhooks."""

    async def insert_webhook(self, url: str, events: Sequence[str], secret: str) -> Webhook:
        """See WebhookStore."""
        [stored] = await self._fetch_as(
            Webhook, "insert_webhook", UUID(new_id()), url, list(events), secret
        )
        return stored

    async def list_webhooks(self) -> list[Webhook]:
        """See WebhookStore."""
        return await self._fetch_as(Webhook, "list_webhooks", None)

    async def get_webhook(self, webhook_id: str) -> Webhook | None:
        """See WebhookStore."""
        key = as_uuid(webhook_id)
        found = [] if key is None else await self._fetch_as(Webhook, "list_webhooks", key)
        return found[0] if found else None

    async def enable_webhook(self, webhook_id: str) -> bool:
        """See WebhookStore."""
        return await self._fetch_row("enable_webhook", as_uuid(webhook_id)) is not None

    async def disable_webhook(self, webhook_id: str, reason: str) -> bool:
        """See WebhookStore."""
        return await self._fetch_row("disable_webhook", as_uuid(webhook_id), reason) is not None

    async def rotate_secret(
        self, webhook_id: str, secret: str, old_valid_seconds: float
    ) -> Rotation | None:
        """See WebhookStore."""
        key = as_uuid(webhook_id)
        async with self._borrowed() as connection, connection.transaction():
            await connection.execute(STATEMENTS["hold_webhook"].sql, key)
            row = await connection.fetchrow(
                STATEMENTS["rotate_secret"].sql, key, secret, old_valid_seconds, MAX_OLD_SECRETS
            )
        return None if row is None else Rotation(**row)

    async def delete_webhook(self, webhook_id: str) -> bool:
        """See WebhookStore."""
        return await self._fetch_row_again("delete_webhook", as_uuid(webhook_id)) is not None

    async def list_deliveries(
        self, webhook_id: str, limit: int, before: tuple[datetime, str] | None = None
    ) -> list[Delivery]:
        """See WebhookStore."""
        created_at, delivery_id = before or (None, None)
        last = None if delivery_id is None else UUID(delivery_id)
        return await self._fetch_as(
            Delivery, "list_deliveries", as_uuid(webhook_id), limit, created_at, last
        )

    async def replay_delivery(self, delivery_id: str) -> Replay | None:
        """See WebhookStore."""
        row = await self._fetch_row("replay_delivery", as_uuid(delivery_id))
        return None if row is None else Replay(row["outcome"])

    async def claim_deliveries(
        self, limit: int, per_webhook: int, taken: Mapping[str, int], lease_seconds: float
    ) -> list[DueDelivery]:
        """See WebhookStore."""
        return await self._fetch_as(
            DueDelivery,
            "claim_deliveries",
            limit,
            per_webhook,
            [UUID(webhook_id) for webhook_id in taken],
            list(taken.values()),
            lease_seconds,
        )

    async def give_back_try(self, delivery: DueDelivery) -> None:
        """See WebhookStore."""
        await self._execute("give_back_try", UUID(delivery.id), delivery.attempt)

    async def end_try(self, delivery: DueDelivery, ended: TryEnded) -> bool:
        """See WebhookStore."""
        row = await self._fetch_row(
            "end_try",
            UUID(delivery.id),
            delivery.attempt,
            ended.status,
            ended.delay_seconds,
            ended.status_code,
            ended.error,
        )
        return row is not None
