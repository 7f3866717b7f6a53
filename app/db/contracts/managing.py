"""The part of `DBInterface` for those who watch and manage: lists, deletion, queues, nodes."""

from typing import Protocol

from app.domain.keys import PendingCaps
from app.domain.managing import (
    BulkChange,
    JobCount,
    JobFilter,
    JobPage,
    NodeState,
    QueueState,
)


class ManagingDB(Protocol):
    """Looking for jobs, acting on many of them, and holding up queues and nodes."""

    async def list_jobs(
        self, wanted: JobFilter, *, limit: int, before: str | None = None
    ) -> JobPage:
        """The next jobs that pass the filter, in descending order of their ids.

        At most MAX_LOOKED_AT rows are looked at: a page may hold fewer than `limit`, even none,
        and yet name an id to go on from.

        Args:
            before: only jobs with smaller ids.
        """

    async def count_jobs(self, wanted: JobFilter) -> JobCount:
        """How many jobs pass the filter, counted up to MAX_COUNTED within MAX_LOOKED_AT rows."""

    async def get_payload(self, job_id: str) -> str:
        """The job's payload as JSON text; JobNotFoundError."""

    async def list_checkpoint_stages(self, job_id: str) -> list[str]:
        """The stages that the job has a checkpoint of, in the order of saving; [] if unknown."""

    async def delete_job(self, job_id: str) -> None:
        """Remove an ended job with everything that belongs to it.

        Raises:
            JobNotFoundError: JobDeletedError where it is known to have been.
            IllegalTransitionError: it has not ended; nothing is changed.
        """

    async def cancel_jobs(self, wanted: JobFilter) -> BulkChange:
        """`cancel_job` for at most MAX_BULK jobs that pass the filter, in batches of their own.

        Those that run and are to be cancelled already are not looked for. Each is changed once
        or not at all; a call that fails half-way may be repeated.
        """

    async def retry_jobs(self, wanted: JobFilter, caps: PendingCaps | None = None) -> BulkChange:
        """`retry_job` for at most MAX_BULK jobs that pass the filter, in batches of their own.

        Completed ones only where the filter names that status or the jobs themselves. Those that
        their submitters' caps leave no room for are `left`.

        Raises:
            QuotaExceededError: there was room for none of them.
        """

    async def list_queues(self, limit: int, after: str = "") -> list[QueueState]:
        """The next queues after a name that have jobs to do or were paused once, by name.

        Of the jobs that wait in each, MAX_COUNTED are looked at.
        """

    async def pause_queue(self, name: str) -> None:
        """No node claims jobs of this queue any more; it need not have any yet."""

    async def resume_queue(self, name: str) -> None:
        """Jobs of this queue are claimed again; schedulers are woken."""

    async def list_nodes(
        self, limit: int, behind: tuple[bool, str] | None = None
    ) -> list[NodeState]:
        """Nodes that are known: those that live first, the newest of both kinds first.

        Args:
            behind: whether a node lived when it was told, and its id; only those after that place.
        """

    async def hold_node(self, node_id: str) -> NodeState:
        """Have a node claim nothing more; what it runs goes on. Twice is harmless.

        Raises:
            NodeNotFoundError
            NodeGoneError: it has stopped or its lease has ended.
        """

    async def resume_node(self, node_id: str) -> NodeState:
        """Let a node claim again and wake it; errors as `hold_node`."""
