"""Webhooks after Standard Webhooks 1.0: events, signatures, and what becomes of a try.

pending --2xx--> delivered
| ^
| '-- anything else: again after the next delay of the schedule
'-- the schedule is over, or the endpoint is gone (410) --> failed --replay--> pending
"""

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

SECRET_PREFIX: Final = "whsec_"  # noqa: S105  no secret, only how they begin
SECRET_BYTES: Final = 32
MAX_URL_CHARACTERS: Final = 2_000
# That are good beside the new one; a header of signatures stays below 300 bytes.
MAX_OLD_SECRETS: Final = 4
DEFAULT_OLD_SECRET_SECONDS: Final = 24 * 3_600.0
MAX_OLD_SECRET_SECONDS: Final = 30 * 24 * 3_600.0
# From a try to the next one; the first comes at once.
SCHEDULE_SECONDS: Final = (
    5.0,
    5 * 60.0,
    30 * 60.0,
    2 * 3_600.0,
    5 * 3_600.0,
    10 * 3_600.0,
    14 * 3_600.0,
    20 * 3_600.0,
    24 * 3_600.0,
)
MAX_TRIES: Final = len(SCHEDULE_SECONDS) + 1
MAX_WAIT_SECONDS: Final = 24 * 3_600.0
_GONE: Final = 410
# Those of whom a Retry-After is heeded.
BUSY_CODES: Final = frozenset({429, 503})


class WebhookEvent(StrEnum):
    """What an endpoint can be told of."""

    COMPLETED = "job.completed"
    FAILED = "job.failed"
    CANCELLED = "job.cancelled"


class DeliveryStatus(StrEnum):
    """Where a delivery is."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


class Replay(StrEnum):
    """What came of the wish to deliver once more."""

    REPLAYED = "replayed"
    PENDING = "pending"
    SWITCHED_OFF = "switched-off"


@dataclass(frozen=True, slots=True)
class Webhook:
    """An endpoint, columns in the statement's order; its secret stays in the store."""

    id: str
    url: str
    events: Sequence[str]
    is_active: bool
    disabled_reason: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Rotation:
    """What came of the wish for a new secret, columns in the statement's order.

    Attributes:
        is_done: False where too many old ones are good; then nothing was changed.
        valid_until: no old secret is good for longer.
    """

    is_done: bool
    valid_until: datetime


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event for one endpoint, columns in the statement's order.

    Attributes:
        attempt: tries so far.
        next_at: when the next one is due, for one that is pending.
    """

    id: str
    webhook_id: str
    job_id: str
    event: str
    status: str
    attempt: int
    next_at: datetime
    delivered_at: datetime | None
    last_status_code: int | None
    last_error: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True, repr=False)
class DueDelivery:
    """A delivery that is claimed for one try, columns in the statement's order.

    Printing it shows neither secrets nor URL, which may hold one.

    Attributes:
        secrets: to sign with: the endpoint's, then those that it had before and are still good.
    """

    id: str
    webhook_id: str
    url: str
    secrets: Sequence[str]
    job_id: str
    pipeline: str
    event: str
    attempt: int
    created_at: datetime

    def __repr__(self) -> str:
        return f"DueDelivery({self.id!r}, webhook {self.webhook_id}, attempt {self.attempt})"

    @property
    def body(self) -> bytes:
        """What is sent: thin, and the same at every try."""
        return json.dumps(
            {
                "type": self.event,
                "timestamp": self.created_at.isoformat(),
                "data": {
                    "id": self.job_id,
                    "status": self.event.removeprefix("job."),
                    "pipeline": self.pipeline,
                    "path": f"/jobs/{self.job_id}",
                },
            },
            separators=(",", ":"),
        ).encode()


@dataclass(frozen=True, slots=True)
class Answer:
    """What an endpoint said, or why it said nothing.

    Attributes:
        retry_after_seconds: as it asked for.
    """

    status_code: int | None = None
    error: str | None = None
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class TryEnded:
    """What is written after a try."""

    status: DeliveryStatus
    delay_seconds: float
    status_code: int | None
    error: str | None
    is_gone: bool = False


def judge(attempt: int, answer: Answer, jitter: float = 1.0) -> TryEnded:
    """What follows from the answer to the try with this number, counted from 1.

    Args:
        jitter: factor of the schedule's delay.
    """
    code = answer.status_code
    if code is not None and 200 <= code < 300:  # noqa: PLR2004  success
        return TryEnded(DeliveryStatus.DELIVERED, 0.0, code, None)
    error = answer.error or f"answered {code}"
    if code == _GONE:
        return TryEnded(DeliveryStatus.FAILED, 0.0, code, error, is_gone=True)
    if attempt >= MAX_TRIES:
        return TryEnded(DeliveryStatus.FAILED, 0.0, code, error)
    delay = SCHEDULE_SECONDS[attempt - 1] * jitter
    if code in BUSY_CODES and answer.retry_after_seconds is not None:
        delay = max(delay, min(answer.retry_after_seconds, MAX_WAIT_SECONDS))
    return TryEnded(DeliveryStatus.PENDING, delay, code, error)


def new_secret() -> str:
    """A fresh secret for signatures."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def signatures(secrets_: Sequence[str], message_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`: one for each secret, and any of them will do."""
    return " ".join(signature(secret, message_id, timestamp, body) for secret in secrets_)


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """The signature by one secret (symmetric, version 1)."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
