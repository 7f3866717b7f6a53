"""Which key a request comes with: looked up once in a while, its use noted beside the requests."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from typing import Final

from app.api.security_cache import BriefCache
from app.db.contracts.keys import KeyStore
from app.domain.errors import DatabaseUnavailableError
from app.domain.keys import SHOWN_CHARACTERS, ApiKey, Scope, digest, is_well_formed

# A revoked key works for so long in processes that have just seen it, and the first key of a
# database is asked for after so long.
KEY_SECONDS: Final = 5.0
MAX_REMEMBERED_KEYS: Final = 1_000
NOTE_EVERY: Final = timedelta(minutes=1)
# Of the pool's connections, so that a flood of made-up keys leaves the others to those who work.
_LOOK_UPS_AT_ONCE: Final = 3
_ANY: Final = b""


class KeyRing:
    """The keys of a database, and one of the settings.

    Args:
        admin_key: allows everything without being stored, None where there is none.
    """

    def __init__(self, db: KeyStore, admin_key: str | None = None) -> None:
        self._db = db
        self._admin_key = None if admin_key is None else _of_settings(admin_key)
        self._admin_sha256 = None if admin_key is None else digest(admin_key)
        self._turns = asyncio.Semaphore(_LOOK_UPS_AT_ONCE)
        self._keys: BriefCache[bytes, ApiKey] = BriefCache(
            self._find, seconds=KEY_SECONDS, max_entries=MAX_REMEMBERED_KEYS
        )
        self._any: BriefCache[bytes, bool] = BriefCache(
            self._has_keys, seconds=KEY_SECONDS, max_entries=1
        )
        self._notes: dict[str, asyncio.Task[None]] = {}

    async def find(self, text: str) -> ApiKey | None:
        """The active key that `text` is; DatabaseUnavailableError."""
        if not is_well_formed(text):
            return None
        sha256 = digest(text)
        # Digests may be compared in any time: nobody can choose one.
        if sha256 == self._admin_sha256:
            return self._admin_key
        return await self._keys.get(sha256)

    async def has_keys(self) -> bool:
        """Whether a key was ever made; DatabaseUnavailableError."""
        return self._admin_key is not None or bool(await self._any.get(_ANY))

    async def close(self) -> None:
        """End what goes on beside the requests."""
        await self._keys.close()
        await self._any.close()
        notes = list(self._notes.values())
        for note in notes:
            note.cancel()
        await asyncio.gather(*notes, return_exceptions=True)

    async def _find(self, sha256: bytes) -> ApiKey | None:
        async with self._turns:
            key = await self._db.find_key(sha256)
        if key is not None and key.id not in self._notes and _is_note_due(key):
            # Nobody waits for it; the next look-up tries again where it fails.
            note = asyncio.create_task(self._note(key.id), name="haulage-key-use")
            self._notes[key.id] = note
            note.add_done_callback(lambda _: self._notes.pop(key.id, None))
        return key

    async def _has_keys(self, _: bytes) -> bool:
        return await self._db.has_keys()

    async def _note(self, key_id: str) -> None:
        with contextlib.suppress(DatabaseUnavailableError):
            await self._db.note_key_use(key_id)


def _is_note_due(key: ApiKey) -> bool:
    # By this machine's clock only whether to ask; the database's decides.
    return key.last_used_at is None or datetime.now(UTC) - key.last_used_at > NOTE_EVERY


def _of_settings(text: str) -> ApiKey:
    return ApiKey(
        id="settings",
        name="HAULAGE_ADMIN_KEY",
        prefix=text[:SHOWN_CHARACTERS],
        scopes=(Scope.ADMIN,),
        max_pending_jobs=None,
        max_pending_bytes=None,
        created_at=None,
        last_used_at=None,
        revoked_at=None,
    )
