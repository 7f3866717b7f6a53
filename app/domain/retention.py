"""How long what is done with is kept."""

from dataclasses import dataclass, field
from typing import Final

from app.domain.jobs import JobStatus

DAY_SECONDS: Final = 86_400.0
NODE_SECONDS: Final = 7 * DAY_SECONDS
TOMBSTONE_SECONDS: Final = 30 * DAY_SECONDS


@dataclass(frozen=True, slots=True)
class Retention:
    """Ages at which things go.

    Attributes:
        jobs: seconds since a job ended, by how it ended; a status that is missing is kept for ever.
        dataset_seconds: since a dataset was stored that no job names; None keeps them.
        call_seconds: since the answer of a paid call was kept; None keeps them.
        node_seconds: since a node was last heard of.
        tombstone_seconds: for how long a deleted job is known to have been.
        interval_seconds: between two looks.
    """

    jobs: dict[JobStatus, float] = field(default_factory=dict)
    dataset_seconds: float | None = None
    call_seconds: float | None = None
    node_seconds: float = NODE_SECONDS
    tombstone_seconds: float = TOMBSTONE_SECONDS
    interval_seconds: float = 60.0
