"""How a node works: what the composition root passes on from the settings."""

import platform
from dataclasses import dataclass, field

from app.config import (
    JOB_START_TIMEOUT_SECONDS,
    JOB_TIMEOUT_SECONDS,
    MAX_CONCURRENT_JOBS,
    NODE_LEASE_SECONDS,
    POLL_INTERVAL_SECONDS,
    WATCHDOG_INTERVAL_SECONDS,
)
from app.domain.jobs import Limits
from app.machine import memory_share_bytes


def _default_limits() -> Limits:
    return Limits(
        JOB_TIMEOUT_SECONDS,
        JOB_START_TIMEOUT_SECONDS,
        memory_limit_bytes=memory_share_bytes(MAX_CONCURRENT_JOBS),
    )


@dataclass(frozen=True, slots=True)
class ManagerOptions:
    """Bounds and intervals of a `QueueManager`; the settings of the same names explain them."""

    max_concurrent_jobs: int = MAX_CONCURRENT_JOBS
    poll_interval_seconds: float = POLL_INTERVAL_SECONDS
    watchdog_interval_seconds: float = WATCHDOG_INTERVAL_SECONDS
    node_lease_seconds: float = NODE_LEASE_SECONDS
    heartbeat_interval_seconds: float = NODE_LEASE_SECONDS / 5
    shutdown_grace_seconds: float = 30.0
    kill_grace_seconds: float = 5.0
    default_limits: Limits = field(default_factory=_default_limits)
    start_method: str = "forkserver" if platform.system() == "Linux" else "spawn"
