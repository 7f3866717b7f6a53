"""Webhook endpoints and their deliveries in MongoDB; it sends nothing."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from pymongo import ReturnDocument

from app.db.ids import new_id
from app.db.mongo.calls import MongoCalls, Session, key_of, literal, made_by, unless_there
from app.db.mongo.connections import Document
from app.db.mongo.instants import NOW, instant, instant_or_none, micros, now_plus
from app.domain.webhooks import (
    MAX_OLD_SECRETS,
    Delivery,
    DueDelivery,
    Replay,
    Rotation,
    TryEnded,
    Webhook,
)

# An expression: the old secrets of an endpoint that still are good.
_GOOD: Final = {"$filter": {"input": "$old_secrets", "cond": {"$gt": ["$$this.valid_until", NOW]}}}


class MongoWebhooks(MongoCalls):
    """The part of `DBInterface` about webhooks."""

    async def insert_webhook(self, url: str, events: Sequence[str], secret: str) -> Webhook:
        """See WebhookStore."""
        made = {
            "url": url,
            "events": [str(event) for event in events],
            "secret": secret,
            "old_secrets": [],
            "is_active": True,
            "disabled_reason": None,
        }
        async with self._bounded():
            stored = await self._collection("webhooks").find_one_and_update(
                {"_id": new_id()},
                unless_there(made, {"created_at": NOW}),
                upsert=True,
                return_document=ReturnDocument.AFTER,
            )
        return _webhook(made_by(stored))

    async def list_webhooks(self) -> list[Webhook]:
        """See WebhookStore."""
        async with self._bounded():
            found = self._collection("webhooks").find().sort([("_id", 1)])
            return [_webhook(webhook) async for webhook in found]

    async def get_webhook(self, webhook_id: str) -> Webhook | None:
        """See WebhookStore."""
        async with self._bounded():
            found = await self._collection("webhooks").find_one({"_id": key_of(webhook_id)})
        return None if found is None else _webhook(found)

    async def enable_webhook(self, webhook_id: str) -> bool:
        """See WebhookStore."""
        async with self._bounded():
            found = await self._collection("webhooks").find_one(
                {"_id": key_of(webhook_id)}, {"is_active": 1, "disabled_reason": 1, "now": NOW}
            )
            if found is None:
                return False
            if not found["is_active"]:
                # What a process has left that died while it switched the endpoint off.
                await self._give_up(found["_id"], found["disabled_reason"], found["now"])
            enabled = await self._collection("webhooks").update_one(
                {"_id": found["_id"]}, {"$set": {"is_active": True, "disabled_reason": None}}
            )
        return bool(enabled.matched_count)

    async def disable_webhook(self, webhook_id: str, reason: str) -> bool:
        """See WebhookStore."""
        async with self._bounded():
            disabled = await self._collection("webhooks").find_one_and_update(
                {"_id": key_of(webhook_id)},
                [{"$set": {"is_active": False, "disabled_reason": literal(reason)}}],
                projection={"_id": 1},
            )
            if disabled is None:
                return False
            # Whoever enables it replays what is still of interest, instead of being flooded with
            # what has grown old.
            await self._give_up(disabled["_id"], reason)
        return True

    async def _give_up(self, webhook_id: str, reason: str, until: int | None = None) -> None:
        """End what is pending for an endpoint that is switched off.

        In no transaction: there may be more than a server takes in one, and nobody is told of any
        of it meanwhile.
        """
        made = {} if until is None else {"created_at": {"$lte": until}}
        await self._collection("webhook_deliveries").update_many(
            {"webhook_id": webhook_id, "status": "pending", **made},
            {"$set": {"status": "failed", "last_error": reason}},
        )

    async def rotate_secret(
        self, webhook_id: str, secret: str, old_valid_seconds: float
    ) -> Rotation | None:
        """See WebhookStore."""
        async with self._bounded():
            rotated = await self._collection("webhooks").find_one_and_update(
                {"_id": key_of(webhook_id)},
                _rotation(secret, old_valid_seconds),
                projection={"rotation": 1},
                return_document=ReturnDocument.AFTER,
            )
        if rotated is None:
            return None
        told = rotated["rotation"]
        return Rotation(told["is_done"], instant(told["valid_until"]))

    async def delete_webhook(self, webhook_id: str) -> bool:
        """See WebhookStore."""
        key = key_of(webhook_id)
        async with self._bounded():
            gone = await self._collection("webhooks").delete_one({"_id": key})
            # Those that are left where this ends here are sent to nobody, and go with their jobs.
            await self._collection("webhook_deliveries").delete_many({"webhook_id": key})
        return bool(gone.deleted_count)

    async def list_deliveries(
        self, webhook_id: str, limit: int, before: tuple[datetime, str] | None = None
    ) -> list[Delivery]:
        """See WebhookStore."""
        if limit < 1:
            return []  # to the server none means all
        wanted: Document = {"webhook_id": key_of(webhook_id)}
        if before is not None:
            made, last = micros(before[0]), before[1]
            wanted["$or"] = [
                {"created_at": {"$lt": made}},
                {"created_at": made, "_id": {"$lt": last}},
            ]
        async with self._bounded():
            found = self._collection("webhook_deliveries").find(wanted)
            newest = found.sort([("created_at", -1), ("_id", -1)]).limit(limit)
            return [_delivery(delivery) async for delivery in newest]

    async def replay_delivery(self, delivery_id: str) -> Replay | None:
        """See WebhookStore."""
        key = key_of(delivery_id)

        async def replay(session: Session) -> Replay | None:
            deliveries = self._collection("webhook_deliveries")
            delivery = await deliveries.find_one({"_id": key}, session=session)
            if delivery is None:
                return None
            endpoint = {"_id": delivery["webhook_id"], "is_active": True}
            if await self._collection("webhooks").find_one(endpoint, session=session) is None:
                return Replay.SWITCHED_OFF
            if delivery["status"] == "pending":
                return Replay.PENDING
            due = {"status": "pending", "attempt": 0, "next_at": NOW, "delivered_at": None}
            await deliveries.update_one({"_id": key}, [{"$set": due}], session=session)
            return Replay.REPLAYED

        return await self._in_transaction(replay)

    async def claim_deliveries(
        self, limit: int, per_webhook: int, taken: Mapping[str, int], lease_seconds: float
    ) -> list[DueDelivery]:
        """See WebhookStore."""
        async with self._bounded():
            active = self._collection("webhooks").find(
                {"is_active": True}, {"url": 1, "secret": 1, "old_secrets": _GOOD}
            )
            endpoints = {webhook["_id"]: webhook async for webhook in active}
            found = [
                (places + rank, due["next_at"], due)
                for key in endpoints
                for places in (taken.get(key, 0),)
                for rank, due in enumerate(
                    await self._due_deliveries(key, per_webhook - places), start=1
                )
            ]
            # Fair: the first of each endpoint, then the second of each. By age alone the backlogs
            # of endpoints that hang would go before everything of those that answer.
            found.sort(key=lambda one: one[:2])
            claimed = [
                ours
                for _, _, due in found[:limit]
                if (ours := await self._claim(due, lease_seconds)) is not None
            ]
            jobs = self._collection("jobs").find(
                {"_id": {"$in": [ours["job_id"] for ours in claimed]}}, {"pipeline": 1}
            )
            pipelines = {job["_id"]: job["pipeline"] async for job in jobs}
        claimed.sort(key=lambda ours: (ours["created_at"], ours["_id"]))
        return [
            _due_delivery(ours, endpoints[ours["webhook_id"]], pipelines[ours["job_id"]])
            for ours in claimed
            if ours["job_id"] in pipelines
        ]

    async def _due_deliveries(self, webhook_id: str, places: int) -> list[Document]:
        """As many due deliveries of an endpoint as there are places, the oldest first."""
        if places < 1:
            return []
        found = self._collection("webhook_deliveries").find(
            {
                "webhook_id": webhook_id,
                "status": "pending",
                "$expr": {"$lte": ["$next_at", NOW]},
            },
            {"attempt": 1, "next_at": 1},
        )
        return [due async for due in found.sort([("next_at", 1)]).limit(places)]

    async def _claim(self, due: Document, lease_seconds: float) -> Document | None:
        """The delivery with one more try, None where somebody else was quicker."""
        return await self._collection("webhook_deliveries").find_one_and_update(
            {**due, "status": "pending"},
            [
                {
                    "$set": {
                        "attempt": {"$add": ["$attempt", 1]},
                        "next_at": now_plus(lease_seconds),
                    }
                }
            ],
            return_document=ReturnDocument.AFTER,
        )

    async def give_back_try(self, delivery: DueDelivery) -> None:
        """See WebhookStore."""
        back: Document = {"attempt": {"$subtract": ["$attempt", 1]}, "next_at": NOW}
        async with self._bounded():
            await self._collection("webhook_deliveries").update_one(
                _try_of(delivery), [{"$set": back}]
            )

    async def end_try(self, delivery: DueDelivery, ended: TryEnded) -> bool:
        """See WebhookStore."""
        is_delivered = ended.status.value == "delivered"
        told: dict[str, Any] = {
            "status": ended.status.value,
            "next_at": now_plus(ended.delay_seconds),
            "delivered_at": NOW if is_delivered else None,
            "last_status_code": ended.status_code,
            "last_error": literal(ended.error),
        }
        async with self._bounded():
            written = await self._collection("webhook_deliveries").update_one(
                _try_of(delivery), [{"$set": told}]
            )
        return bool(written.matched_count)


def _try_of(delivery: DueDelivery) -> Document:
    """The filter of a try that is still the latest one."""
    return {"_id": delivery.id, "attempt": delivery.attempt, "status": "pending"}


def _rotation(secret: str, old_valid_seconds: float) -> list[Document]:
    """The update that makes a secret the endpoint's; `rotation` says whether it did."""
    until = "$rotation.valid_until"
    # Who shortens the time means all of them: the reason may be that they leaked.
    shortened = {
        "$map": {
            "input": "$old_secrets",
            "in": {
                "secret": "$$this.secret",
                "valid_until": {"$min": ["$$this.valid_until", until]},
            },
        }
    }
    kept = [{"secret": "$secret", "valid_until": until}]
    old = {"$concatArrays": [shortened, kept]} if old_valid_seconds > 0 else literal([])
    is_done: Any = {"$lt": [{"$size": "$old_secrets"}, MAX_OLD_SECRETS]}
    done = "$rotation.is_done"
    return [
        {"$set": {"old_secrets": _GOOD, "rotation": {"valid_until": now_plus(old_valid_seconds)}}},
        {"$set": {"rotation.is_done": is_done if old_valid_seconds > 0 else True}},
        {
            "$set": {
                "secret": {"$cond": [done, literal(secret), "$secret"]},
                "old_secrets": {"$cond": [done, old, "$old_secrets"]},
            }
        },
    ]


def _in_order(old_secrets: Sequence[Document]) -> list[str]:
    """Those that are good for longest first."""
    in_order = sorted(old_secrets, key=lambda old: (-old["valid_until"], old["secret"]))
    return [old["secret"] for old in in_order]


def _webhook(found: Document) -> Webhook:
    return Webhook(
        id=found["_id"],
        url=found["url"],
        events=found["events"],
        is_active=found["is_active"],
        disabled_reason=found["disabled_reason"],
        created_at=instant(found["created_at"]),
    )


def _delivery(found: Document) -> Delivery:
    return Delivery(
        id=found["_id"],
        webhook_id=found["webhook_id"],
        job_id=found["job_id"],
        event=found["event"],
        status=found["status"],
        attempt=found["attempt"],
        next_at=instant(found["next_at"]),
        delivered_at=instant_or_none(found["delivered_at"]),
        last_status_code=found["last_status_code"],
        last_error=found["last_error"],
        created_at=instant(found["created_at"]),
    )


def _due_delivery(found: Document, webhook: Document, pipeline: str) -> DueDelivery:
    return DueDelivery(
        id=found["_id"],
        webhook_id=found["webhook_id"],
        url=webhook["url"],
        secrets=[webhook["secret"], *_in_order(webhook["old_secrets"])],
        job_id=found["job_id"],
        pipeline=pipeline,
        event=found["event"],
        attempt=found["attempt"],
        created_at=instant(found["created_at"]),
    )
