"""The part of `MockDatabase` about following, which the scheduler never asks."""

from collections.abc import Sequence

from app.domain.following import Checkpoint, FollowCursor, FoundLines, JobNews, LogCursor
from app.domain.jobs import Attempt


class MockFollowing:
    async def list_news(self, cursors: Sequence[FollowCursor], limit: int) -> list[JobNews]:
        raise NotImplementedError

    async def list_lines(self, cursors: Sequence[LogCursor], limit: int) -> list[FoundLines]:
        raise NotImplementedError

    async def find_log_tail(self, job_id: str, lines: int, least_level: int = 0) -> int:
        raise NotImplementedError

    async def list_attempts_after(self, job_id: str, claim_no: int, limit: int) -> list[Attempt]:
        raise NotImplementedError

    async def list_checkpoints(self, job_id: str, after: str, limit: int) -> list[Checkpoint]:
        raise NotImplementedError

    async def get_checkpoint(self, job_id: str, stage: str) -> bytes | None:
        raise NotImplementedError
