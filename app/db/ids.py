"""Ids of new rows: UUIDv7, so that ids sort by the time of their making and indexes stay dense."""

import sys
from uuid import UUID

if sys.version_info >= (3, 14):
    from uuid import uuid7
else:
    from uuid_utils.compat import uuid7


def new_id() -> str:
    """A fresh UUIDv7 as text."""
    return str(uuid7())


def as_uuid(text: str) -> UUID | None:
    """The UUID that `text` spells, None where it spells none."""
    try:
        return UUID(text)
    except ValueError:
        return None
