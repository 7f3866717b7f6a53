"""Endpoints that are told when jobs end, and what became of each message to them."""

import base64
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Self
from uuid import UUID

from fastapi import Query, Request, Response
from fastapi.routing import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from app.api.links import NEXT_PAGE, link_to_next, next_page
from app.api.openapi import headers, problems
from app.api.problems import Problem
from app.api.versions import beside
from app.db.contracts.webhooks import WebhookStore
from app.domain.webhooks import (
    DEFAULT_OLD_SECRET_SECONDS,
    MAX_OLD_SECRET_SECONDS,
    MAX_OLD_SECRETS,
    MAX_URL_CHARACTERS,
    Delivery,
    DeliveryStatus,
    Replay,
    Webhook,
    WebhookEvent,
    new_secret,
)
from app.webhooks.addresses import AddressRules

MAX_WEBHOOKS = 100
MAX_DELIVERIES_PAGE = 200
_SWITCHED_OFF = "switched off by request"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WebhookRequest(BaseModel):
    """An endpoint to be told."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"url": "https://app.example/hooks/haulage", "events": ["job.completed"]}]
        },
    )

    url: str = Field(max_length=MAX_URL_CHARACTERS, description="http or https.")
    events: list[WebhookEvent] = Field(
        default_factory=lambda: list(WebhookEvent), min_length=1, max_length=len(WebhookEvent)
    )


class WebhookChange(BaseModel):
    """Whether the endpoint is to be told."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"is_active": True}]})

    is_active: bool


class WebhookResponse(BaseModel):
    """An endpoint; its secret is not told again."""

    id: str
    url: str
    events: list[WebhookEvent]
    is_active: bool
    disabled_reason: str | None
    created_at: datetime

    @classmethod
    def of(cls, webhook: Webhook) -> Self:
        """As the API tells it."""
        return cls(
            id=webhook.id,
            url=webhook.url,
            events=[WebhookEvent(event) for event in webhook.events],
            is_active=webhook.is_active,
            disabled_reason=webhook.disabled_reason,
            created_at=webhook.created_at,
        )


class NewWebhookResponse(WebhookResponse):
    """A new endpoint with its secret, which is told this once."""

    secret: str = Field(description="For verifying `webhook-signature`: `whsec_` and base64.")


class SecretRequest(BaseModel):
    """How long secrets from before are good."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"old_valid_seconds": 3600}]}
    )

    old_valid_seconds: float = Field(
        default=DEFAULT_OLD_SECRET_SECONDS,
        ge=0,
        le=MAX_OLD_SECRET_SECONDS,
        allow_inf_nan=False,
        description="Messages are signed with them, too, for so long; 0 ends all of them now.",
    )


class SecretResponse(BaseModel):
    """A new secret, which is told this once."""

    secret: str = Field(description="For verifying `webhook-signature`: `whsec_` and base64.")
    old_valid_until: datetime = Field(description="No earlier secret is good for longer.")


class WebhooksResponse(BaseModel):
    """All endpoints."""

    items: list[WebhookResponse]


class DeliveryResponse(BaseModel):
    """One event for one endpoint."""

    id: str = Field(description="Sent as `webhook-id`, the same at every try.")
    webhook_id: str
    job_id: str
    event: WebhookEvent
    status: DeliveryStatus
    attempt: int = Field(description="Tries so far.")
    next_at: datetime | None = Field(description="When the next try is due.")
    delivered_at: datetime | None
    last_status_code: int | None
    last_error: str | None
    created_at: datetime

    @classmethod
    def of(cls, delivery: Delivery) -> Self:
        """As the API tells it."""
        status = DeliveryStatus(delivery.status)
        return cls(
            id=delivery.id,
            webhook_id=delivery.webhook_id,
            job_id=delivery.job_id,
            event=WebhookEvent(delivery.event),
            status=status,
            attempt=delivery.attempt,
            next_at=delivery.next_at if status is DeliveryStatus.PENDING else None,
            delivered_at=delivery.delivered_at,
            last_status_code=delivery.last_status_code,
            last_error=delivery.last_error,
            created_at=delivery.created_at,
        )


class DeliveriesResponse(BaseModel):
    """A page of deliveries, the newest first."""

    items: list[DeliveryResponse]
    next: str | None = Field(
        description="Where the next page is; null where nothing is left.",
        examples=["/webhooks/019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a13/deliveries?before=AAZE..."],
    )


class WebhookRoutes:
    """Routes below `/webhooks`."""

    def __init__(self, db: WebhookStore, rules: AddressRules) -> None:
        self._db = db
        self._rules = rules

    def add_to(self, router: APIRouter) -> None:
        """Declare the routes."""
        add = router.add_api_route
        add(
            "/webhooks",
            self.create_webhook,
            methods=["POST"],
            status_code=HTTPStatus.CREATED,
            response_model=NewWebhookResponse,
            summary="Tell an endpoint of jobs that end",
            tags=["webhooks"],
            responses={
                201: {"headers": headers(Location="The endpoint.")},
                **problems(400, 408, 409, 413, 415, 422, 503),
            },
        )
        add(
            "/webhooks",
            self.list_webhooks,
            methods=["GET"],
            response_model=WebhooksResponse,
            summary="List the endpoints",
            tags=["webhooks"],
            responses=problems(503),
        )
        add(
            "/webhooks/{webhook_id}",
            self.get_webhook,
            methods=["GET"],
            response_model=WebhookResponse,
            summary="Look at an endpoint",
            tags=["webhooks"],
            responses=problems(404, 503),
        )
        add(
            "/webhooks/{webhook_id}",
            self.change_webhook,
            methods=["PATCH"],
            response_model=WebhookResponse,
            summary="Switch an endpoint on or off",
            tags=["webhooks"],
            responses=problems(400, 404, 408, 413, 415, 422, 503),
        )
        add(
            "/webhooks/{webhook_id}",
            self.delete_webhook,
            methods=["DELETE"],
            status_code=HTTPStatus.NO_CONTENT,
            response_class=Response,
            summary="Forget an endpoint and its deliveries",
            tags=["webhooks"],
            responses=problems(404, 503),
        )
        add(
            "/webhooks/{webhook_id}/secret",
            self.rotate_secret,
            methods=["POST"],
            response_model=SecretResponse,
            summary="Give an endpoint a new secret",
            tags=["webhooks"],
            responses=problems(400, 404, 408, 409, 413, 415, 422, 503),
        )
        add(
            "/webhooks/{webhook_id}/deliveries",
            self.list_deliveries,
            methods=["GET"],
            response_model=DeliveriesResponse,
            summary="What became of the messages to an endpoint",
            tags=["webhooks"],
            responses={200: {"headers": headers(Link=NEXT_PAGE)}, **problems(404, 422, 503)},
        )
        add(
            "/webhooks/deliveries/{delivery_id}/replay",
            self.replay_delivery,
            methods=["POST"],
            status_code=HTTPStatus.ACCEPTED,
            response_class=Response,
            summary="Deliver once more",
            tags=["webhooks"],
            responses=problems(404, 409, 503),
        )

    async def create_webhook(
        self, request: WebhookRequest, response: Response, http: Request
    ) -> NewWebhookResponse:
        """Jobs that end from now on are told to this endpoint, signed after Standard Webhooks.

        The answer has the secret to verify the signatures with; it is not told again.
        """
        try:
            url = self._rules.check_url(request.url)
        except ValueError as error:
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "unusable-url",
                f"url: {error}",
                errors=[("/url", str(error))],
            ) from None
        if len(await self._db.list_webhooks()) >= MAX_WEBHOOKS:
            raise Problem(
                HTTPStatus.CONFLICT,
                "too-many-webhooks",
                f"there are {MAX_WEBHOOKS} endpoints; every job that ends looks through them",
            )
        secret = new_secret()
        events = [event.value for event in WebhookEvent if event in request.events]
        webhook = await self._db.insert_webhook(url, events, secret)
        response.headers["Location"] = beside(http, f"/webhooks/{webhook.id}")
        return NewWebhookResponse(**WebhookResponse.of(webhook).model_dump(), secret=secret)

    async def list_webhooks(self) -> WebhooksResponse:
        """All endpoints, the oldest first."""
        return WebhooksResponse(
            items=[WebhookResponse.of(webhook) for webhook in await self._db.list_webhooks()]
        )

    async def get_webhook(self, webhook_id: str) -> WebhookResponse:
        """One endpoint."""
        webhook = await self._db.get_webhook(webhook_id)
        if webhook is None:
            raise _no_such("webhook", webhook_id)
        return WebhookResponse.of(webhook)

    async def change_webhook(self, webhook_id: str, request: WebhookChange) -> WebhookResponse:
        """Off gives up what is pending; on tells it of jobs that end from then on."""
        if request.is_active:
            is_known = await self._db.enable_webhook(webhook_id)
        else:
            is_known = await self._db.disable_webhook(webhook_id, _SWITCHED_OFF)
        if not is_known:
            raise _no_such("webhook", webhook_id)
        return await self.get_webhook(webhook_id)

    async def rotate_secret(
        self, webhook_id: str, request: SecretRequest | None = None
    ) -> SecretResponse:
        """Sign with a new secret from now on, and for a time with the old ones, too.

        Each message then has a signature of each of them in `webhook-signature`, divided by spaces,
        and any of them will do: those who verify can change their secret when they like. A request
        whose answer got lost can be repeated.
        """
        seconds = (request or SecretRequest()).old_valid_seconds
        secret = new_secret()
        rotation = await self._db.rotate_secret(webhook_id, secret, seconds)
        if rotation is None:
            raise _no_such("webhook", webhook_id)
        if not rotation.is_done:
            detail = f"{MAX_OLD_SECRETS} old secrets are still good; 0 seconds end all of them"
            raise Problem(HTTPStatus.CONFLICT, "too-many-secrets", detail)
        return SecretResponse(secret=secret, old_valid_until=rotation.valid_until)

    async def delete_webhook(self, webhook_id: str) -> Response:
        """It is told nothing more, and nothing is known of what it was told."""
        if not await self._db.delete_webhook(webhook_id):
            raise _no_such("webhook", webhook_id)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def list_deliveries(
        self,
        webhook_id: str,
        response: Response,
        http: Request,
        limit: Annotated[int, Query(ge=1, le=MAX_DELIVERIES_PAGE)] = 50,
        before: Annotated[
            str | None, Query(max_length=64, description="Of the `next` of the page before.")
        ] = None,
    ) -> DeliveriesResponse:
        """The newest first; each with its tries so far and the last answer's status."""
        await self.get_webhook(webhook_id)
        place = None if before is None else _place_of(before)
        found = await self._db.list_deliveries(webhook_id, limit + 1, place)
        items = [DeliveryResponse.of(delivery) for delivery in found[:limit]]
        more = None
        if len(found) > limit:
            more = next_page(http, before=_cursor_of(found[limit - 1]))
        link_to_next(response, more)
        return DeliveriesResponse(items=items, next=more)

    async def replay_delivery(self, delivery_id: str) -> Response:
        """Start its schedule again, now, under the same id.

        409 while it is pending anyway, or its endpoint is switched off.
        """
        replay = await self._db.replay_delivery(delivery_id)
        if replay is None:
            raise _no_such("delivery", delivery_id)
        if replay is Replay.PENDING:
            raise Problem(HTTPStatus.CONFLICT, "still-pending", "it has not ended yet")
        if replay is Replay.SWITCHED_OFF:
            detail = "its endpoint is switched off; switch it on first"
            raise Problem(HTTPStatus.CONFLICT, "switched-off", detail)
        return Response(status_code=HTTPStatus.ACCEPTED)


def _cursor_of(delivery: Delivery) -> str:
    """Its place in the list, which is there also when the delivery has gone."""
    made = (delivery.created_at - _EPOCH) // timedelta(microseconds=1)
    place = made.to_bytes(8, "big") + UUID(delivery.id).bytes
    return base64.urlsafe_b64encode(place).decode()


def _place_of(cursor: str) -> tuple[datetime, str]:
    try:
        place = base64.b64decode(cursor, altchars=b"-_", validate=True)
        made = _EPOCH + timedelta(microseconds=int.from_bytes(place[:8], "big"))
        return made, str(UUID(bytes=place[8:]))
    except (ValueError, OverflowError):
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "bad-cursor",
            "take the cursor as it stands in the `next` of a page",
            errors=[("/query/before", "no cursor of ours")],
        ) from None


def _no_such(what: str, given_id: str) -> Problem:
    return Problem(HTTPStatus.NOT_FOUND, f"no-such-{what}", f"no {what} {given_id[:80]}")
