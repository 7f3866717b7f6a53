"""API keys in PostgreSQL; it never sees more of a key than its SHA-256 and its first letters."""

from collections.abc import Sequence
from uuid import UUID

from app.db.ids import as_uuid, new_id
from app.db.postgres.calls import PostgresCalls
from app.domain.json_values import check_storable
from app.domain.keys import SHOWN_CHARACTERS, ApiKey, Pending, Scope, digest


class PostgresKeys(PostgresCalls):
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
        """See KeyStore."""
        check_storable({"name": name})
        [stored] = await self._fetch_as(
            ApiKey,
            "insert_key",
            UUID(new_id()),
            name,
            key[:SHOWN_CHARACTERS],
            digest(key),
            [scope.value],
            max_pending_jobs,
            max_pending_bytes,
        )
        return stored

    async def find_key(self, sha256: bytes) -> ApiKey | None:
        """See KeyStore."""
        found = await self._fetch_as(ApiKey, "find_key", sha256)
        return found[0] if found else None

    async def has_keys(self) -> bool:
        """See KeyStore."""
        row = await self._fetch_row("has_keys")
        return row is not None and bool(row["found"])

    async def list_keys(self) -> list[ApiKey]:
        """See KeyStore."""
        return await self._fetch_as(ApiKey, "list_keys")

    async def revoke_key(self, key_id: str) -> bool:
        """See KeyStore."""
        return await self._fetch_row("revoke_key", as_uuid(key_id)) is not None

    async def note_key_use(self, key_id: str) -> None:
        """See KeyStore."""
        await self._execute("note_key_use", as_uuid(key_id))

    async def count_pending(self, submitter: str) -> Pending:
        """See KeyStore."""
        [pending] = await self._fetch_as(Pending, "count_pending", submitter)
        return pending

    async def count_keys_used(self, submitter: str, idempotency_keys: Sequence[str]) -> int:
        """See KeyStore."""
        keys = list(set(idempotency_keys))
        return len(await self._fetch_all("find_jobs_by_key", [submitter] * len(keys), keys))

    async def count_datasets(self, submitter: str) -> int:
        """See KeyStore."""
        row = await self._fetch_row("count_datasets", submitter)
        return 0 if row is None else int(row["datasets"])

    async def get_dataset_submitter(self, dataset_id: str) -> str | None:
        """See KeyStore."""
        row = await self._fetch_row("get_dataset_submitter", as_uuid(dataset_id))
        return None if row is None else str(row["submitted_by"])

    async def get_submitter(self, job_id: str) -> str | None:
        """See KeyStore."""
        row = await self._fetch_row("get_submitter", as_uuid(job_id))
        return None if row is None else str(row["submitted_by"])
