"""Letting go of what is done with, in PostgreSQL; how old that is its caller says."""

import asyncpg

from app.db.postgres.calls import PostgresCalls
from app.domain.jobs import JobStatus


class PostgresRetention(PostgresCalls):
    """The part of `DBInterface` about retention."""

    async def prune_jobs(self, status: JobStatus, age_seconds: float, limit: int) -> int:
        """See DBInterface."""
        return await self._pruned("prune_jobs", status.value, age_seconds, limit)

    async def prune_datasets(self, age_seconds: float, limit: int) -> int:
        """See DBInterface."""
        try:
            return await self._pruned("prune_datasets", age_seconds, limit)
        except asyncpg.ForeignKeyViolationError:
            # A job was stored that names one of them, between the look and the deletion.
            return 0

    async def prune_calls(self, age_seconds: float, limit: int) -> int:
        """See DBInterface."""
        return await self._pruned("prune_calls", age_seconds, limit)

    async def prune_nodes(self, age_seconds: float, limit: int) -> int:
        """See DBInterface."""
        return await self._pruned("prune_nodes", age_seconds, limit)

    async def prune_tombstones(self, age_seconds: float, limit: int) -> int:
        """See DBInterface."""
        return await self._pruned("prune_tombstones", age_seconds, limit)

    async def _pruned(self, name: str, *arguments: object) -> int:
        row = await self._fetch_row_again(name, *arguments)
        return 0 if row is None else int(row["n"])
