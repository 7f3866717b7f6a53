"""The part of `DBInterface` that lets go of what is done with."""

from typing import Protocol

from app.domain.jobs import JobStatus


class RetentionDB(Protocol):
    """Each method removes at most `limit` things older than `age_seconds` and says how many.

    One process removes at a time: who comes meanwhile is told 0. What others hold is not waited
    for, and jobs among it are passed over. Repeating any of them is safe.
    """

    async def prune_jobs(self, status: JobStatus, age_seconds: float, limit: int) -> int:
        """Jobs that ended so, with everything that belongs to them; they are known as deleted."""

    async def prune_datasets(self, age_seconds: float, limit: int) -> int:
        """Datasets that no job names, in its row or under `dataset.id` of its payload."""

    async def prune_calls(self, age_seconds: float, limit: int) -> int:
        """Kept answers of paid calls; what they cost stays told."""

    async def prune_nodes(self, age_seconds: float, limit: int) -> int:
        """Nodes that have stopped or were lost and of which no job is said to run."""

    async def prune_tombstones(self, age_seconds: float, limit: int) -> int:
        """What is known of deleted jobs."""
