"""Jobs on their way in: what makes two submissions equal, and what is known of those sent together.

An idempotency key belongs to the row of the job that it made, and lives as long as that row. The
fingerprint beside it says what the key was used for.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from app.domain.jobs import JobOptions, JobStatus, Limits

MAX_BATCH_ROWS: Final = 1_000
MAX_BATCH_BYTES: Final = 32 * 1024 * 1024
MAX_KEY_CHARACTERS: Final = 255

# Options that say who asks and how, not what is to be done.
# Who and when, and what the payload says itself.
_ASIDE: Final = frozenset(
    {"job_id", "idempotency_key", "fingerprint", "submitted_by", "dataset_id"}
)
_DEFAULTS: Final = JobOptions()
# A float that is a whole number, as Python writes it; texts are passed over.
_WHOLE_FLOAT: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|(?P<number>-?[0-9]+)\.0(?![0-9e])')


@dataclass(frozen=True, slots=True)
class Submission:
    """One job of several that are submitted together; `payload` is JSON text that was checked."""

    payload: str
    options: JobOptions = _DEFAULTS


@dataclass(frozen=True, slots=True)
class BatchReceipt:
    """What became of jobs that were submitted together.

    Attributes:
        id: of the batch that the jobs belong to; None where all of them were known before and
            come from several batches, or from none.
        job_ids: in the order of the submissions.
        replayed: indexes of those that their idempotency keys had made before.
    """

    id: str | None
    job_ids: tuple[str, ...]
    replayed: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Batch:
    """Where the jobs of a batch are, those that were deleted left out."""

    id: str
    total: int
    pending: int
    running: int
    completed: int
    failed: int
    cancelled: int
    created_at: datetime

    @property
    def counts(self) -> dict[JobStatus, int]:
        """Jobs by status, every status named."""
        return {status: getattr(self, status.value) for status in JobStatus}

    @property
    def is_done(self) -> bool:
        """Whether all have ended; a retry may undo it."""
        return not self.pending and not self.running


def fingerprint(payload: Any, options: JobOptions) -> bytes:
    """SHA-256 of everything that defines a job, as canonical JSON: equal jobs have equal ones.

    The order of keys and the way in which numbers and texts are spelled do not count. Nor do
    options at their defaults, so that a later option changes no fingerprint from before it.

    Args:
        payload: JSON data that `dump_storable` has passed.
    """
    said = {field.name: getattr(options, field.name) for field in fields(options)}
    defining = {
        name: value
        for name, value in said.items()
        if name not in _ASIDE and value != getattr(_DEFAULTS, name)
    }
    return _digest([payload, defining])


def common_fingerprint(fingerprints: Sequence[bytes]) -> bytes:
    """That of several jobs in their order."""
    return _digest([one.hex() for one in fingerprints])


def part_key(key: str, index: int) -> str:
    """The key of one job of a batch that has a key as a whole; no client's own has a space."""
    return f"{key} {index}"


def _digest(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)
    if ".0" in text:
        # As RFC 8785 has it; floats from 1e16 on are spelled with an exponent and stay.
        text = _WHOLE_FLOAT.sub(_as_integer, text)
    return sha256(text.encode()).digest()


def _as_integer(found: re.Match[str]) -> str:
    number = found["number"]
    return found[0] if number is None else "0" if number == "-0" else number


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat()
        case Limits():
            return {name: limit for name, limit in asdict(value).items() if limit is not None}
        case _:
            return dict(value)
