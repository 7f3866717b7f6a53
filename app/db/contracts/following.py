"""Following jobs and looking at what their attempts left behind."""

from collections.abc import Sequence
from typing import Protocol

from app.domain.following import Checkpoint, FollowCursor, FoundLines, JobNews, LogCursor
from app.domain.jobs import Attempt


class FollowingDB(Protocol):
    """The part of `DBInterface` for those who follow jobs.

    Events and log lines of one job become visible in the order of their ids, because whoever
    writes about a job locks it first. Between jobs there is no such order: an id may become
    visible after a higher one of another job. So a reader keeps its place per job.
    """

    async def list_news(self, cursors: Sequence[FollowCursor], limit: int) -> list[JobNews]:
        """The jobs that differ from what their cursors know, in the order of the cursors.

        A job is left out where its version is the cursor's. `Job.version` and this one are the
        same; it changes whenever status, progress, milestones or anything else that `get_job`
        tells does.

        Args:
            cursors: several of them may be about one job.
            limit: events per cursor at most; exactly so many mean that there may be more.
        """

    async def list_lines(self, cursors: Sequence[LogCursor], limit: int) -> list[FoundLines]:
        """For each cursor the next lines of its job's log, at most `limit`, oldest first.

        Each look goes through LOG_LINES_LOOKED_AT lines at most, so it may find none of the level
        and yet not be whole.
        """

    async def find_log_tail(self, job_id: str, lines: int, least_level: int = 0) -> int:
        """The id after which `lines` lines are left, 0 where there are no more than that."""

    async def list_attempts_after(self, job_id: str, claim_no: int, limit: int) -> list[Attempt]:
        """The next claims of the job after this one, at most `limit`, oldest first."""

    async def list_checkpoints(self, job_id: str, after: str, limit: int) -> list[Checkpoint]:
        """The intermediate results whose stage comes after this one, at most `limit`, by stage."""

    async def get_checkpoint(self, job_id: str, stage: str) -> bytes | None:
        """The intermediate result of `stage` as JSON bytes, None where there is none."""
