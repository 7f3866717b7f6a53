"""API keys: what they look like, what they allow, and how little of them is kept.

A key is random to 256 bits, so its SHA-256 needs neither salt nor a slow function: nobody can guess
one, and whoever reads the table cannot use what is there.
"""

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

KEY_PREFIX: Final = "hlg_"
SECRET_BYTES: Final = 32
# Enough to tell keys apart in lists and logs: 48 of the 256 bits.
SHOWN_CHARACTERS: Final = 12
MAX_KEY_NAME_CHARACTERS: Final = 100

_WELL_FORMED: Final = re.compile(r"hlg_[A-Za-z0-9_-]{43}")


class Scope(StrEnum):
    """What a key allows; each includes those before it."""

    READ = "read"
    SUBMIT = "submit"
    ADMIN = "admin"

    def includes(self, other: "Scope") -> bool:
        """Whether who may do this may also do what `other` stands for."""
        order = list(Scope)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A stored key, columns in the statement's order; the key itself is nowhere.

    Attributes:
        prefix: its first SHOWN_CHARACTERS characters.
        max_pending_jobs: None where the settings decide, likewise `max_pending_bytes`.
    """

    id: str
    name: str
    prefix: str
    scopes: Sequence[str]
    max_pending_jobs: int | None
    max_pending_bytes: int | None
    created_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None

    def allows(self, scope: Scope) -> bool:
        """Whether one of its scopes includes this one; words that are unknown allow nothing."""
        known = [Scope(name) for name in self.scopes if name in set(Scope)]
        return any(own.includes(scope) for own in known)


@dataclass(frozen=True, slots=True)
class Pending:
    """What a submitter has waiting, columns in the statement's order.

    Attributes:
        size_bytes: of the payloads as they are stored, compressed.
    """

    jobs: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PendingCaps:
    """How much a submitter may have waiting whose key has no caps of its own."""

    jobs: int
    size_bytes: int


def new_key() -> str:
    """A fresh key."""
    return KEY_PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def is_well_formed(text: str) -> bool:
    """Whether `text` looks like a key at all; cheap, and bounded by the key's length."""
    return _WELL_FORMED.fullmatch(text) is not None


def digest(key: str) -> bytes:
    """What is stored of a key."""
    return hashlib.sha256(key.encode()).digest()
