"""Results in PostgreSQL: as they were stored, or parts that the server cuts out of them."""

import asyncpg

from app.db.ids import as_uuid
from app.db.postgres.calls import PostgresCalls
from app.db.postgres.rows import job_uuid
from app.domain.jobs import JobStatus
from app.domain.results import RESULT_PIECE_BYTES, PartPage, ResultState, ThemeQuotes


class PostgresResults(PostgresCalls):
    """The part of `DBInterface` about results."""

    async def get_result(self, job_id: str) -> bytes | None:
        """See DBInterface."""
        pieces = await self.list_result_pieces(job_id)
        if not pieces:
            await self.get_result_state(job_id)  # tells whether there is such a job
            return None
        return b"".join(pieces)

    async def list_result_pieces(self, job_id: str) -> list[bytes]:
        """See DBInterface."""
        rows = await self._fetch_all("list_result_pieces", as_uuid(job_id), RESULT_PIECE_BYTES)
        return [row["piece"] for row in rows]

    async def get_result_state(self, job_id: str) -> ResultState:
        """See DBInterface."""
        row = await self._fetch_row("get_result_state", job_uuid(job_id))
        if row is None:
            raise await self._missing(job_id)
        return ResultState(JobStatus(row["status"]), row["claim_no"])

    async def get_result_themes(self, job_id: str) -> str | None:
        """See DBInterface."""
        row = await self._fetch_row("get_result_themes", as_uuid(job_id))
        return None if row is None else str(row["themes"])

    async def get_theme_quotes(
        self, job_id: str, theme_id: str, limit: int, *, after: int = 0
    ) -> ThemeQuotes | None:
        """See DBInterface."""
        if not (theme_id.isascii() and theme_id.isprintable()):
            return None  # no theme has such an id, and some of these the server would refuse
        row = await self._fetch_row("get_theme_quotes", as_uuid(job_id), theme_id, limit, after)
        return None if row is None else ThemeQuotes(row["theme"], _page(row))

    async def list_assignments(self, job_id: str, limit: int, *, after: int = 0) -> PartPage | None:
        """See DBInterface."""
        row = await self._fetch_row("list_assignments", as_uuid(job_id), limit, after)
        return None if row is None else _page(row)


def _page(row: asyncpg.Record) -> PartPage:
    return PartPage(row["items"], row["count"], row["has_more"])
