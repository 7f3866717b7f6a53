"""API keys and what their holders have waiting."""

from collections.abc import Sequence
from typing import Protocol

from app.domain.keys import ApiKey, Pending, Scope


class KeyStore(Protocol):
    """The part of `DBInterface` about API keys."""

    async def insert_key(
        self,
        name: str,
        key: str,
        scope: Scope,
        *,
        max_pending_jobs: int | None = None,
        max_pending_bytes: int | None = None,
    ) -> ApiKey:
        """Store a key by its SHA-256; the key itself is kept nowhere.

        Args:
            max_pending_jobs: cap of its own, None for the settings'; likewise `max_pending_bytes`.
        """

    async def find_key(self, sha256: bytes) -> ApiKey | None:
        """The key with this SHA-256; None where there is none or it was revoked."""

    async def has_keys(self) -> bool:
        """Whether a key was ever made, if they were revoked since.

        A service that was closed once stays so: who revokes a leaked key before making the next one
        must not open it.
        """

    async def list_keys(self) -> list[ApiKey]:
        """All keys, those that were revoked too, in the order of their making."""

    async def revoke_key(self, key_id: str) -> bool:
        """Make a key useless for good; False where there is no such active key."""

    async def note_key_use(self, key_id: str) -> None:
        """Note that the key was used now; changes nothing within a minute of the last note."""

    async def count_pending(self, submitter: str) -> Pending:
        """How many jobs of a submitter are pending, scheduled ones too, and their payloads' size.

        Two calls at once may count the same state: who holds a submitter to a bound has to allow
        for what is being submitted meanwhile.
        """

    async def count_keys_used(self, submitter: str, idempotency_keys: Sequence[str]) -> int:
        """How many of these idempotency keys of a submitter have made a job that is still there."""

    async def count_datasets(self, submitter: str) -> int:
        """How many datasets a submitter has stored; 0 for ""."""

    async def get_dataset_submitter(self, dataset_id: str) -> str | None:
        """Who stored the dataset: the id of a key, or "" for nobody known; None if unknown."""

    async def get_submitter(self, job_id: str) -> str | None:
        """Who submitted the job: the id of a key, or "" for nobody known; None if unknown."""
