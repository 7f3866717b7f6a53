"""What a soak does in its time: the nodes' settings, the stream of jobs, the plan of faults.

Everything random comes from the seed; only which process a fault then meets depends on the moment.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from soak.fault_log import FaultKind

# Some shots meet nobody: what they were aimed at has just ended.
LEAST_OF_EACH_PER_MINUTE: Final = 1.2
JOBS_PER_SECOND: Final = 1.4
FIRST_FAULT_SECONDS: Final = 3.0
# How the faults above the least of each kind are spread; those that take a node away for a whole
# lease are enough as they are.
WEIGHTS: Final = {
    FaultKind.KILL_WORKER: 8,
    FaultKind.KILL_GUARD: 2,
    FaultKind.FREEZE_WORKER: 3,
    FaultKind.KILL_MANAGER: 3,
    FaultKind.FREEZE_MANAGER: 0,
    FaultKind.PAUSE_MANAGER: 2,
    FaultKind.FREEZE_NODE: 0,
    FaultKind.STOP_NODE: 2,
    FaultKind.KILL_FORKSERVER: 3,
    FaultKind.KILL_BACKEND: 5,
    FaultKind.FREEZE_BACKEND: 3,
    FaultKind.CRASH_DATABASE: 2,
}


@dataclass(frozen=True, slots=True)
class Pace:
    """The nodes' settings, and how hard they are tried.

    Attributes:
        jobs_per_node: enough that a job never waits for a slot while all other nodes are away.
    """

    seconds: float
    lease_seconds: float = 15.0
    heartbeat_seconds: float = 3.0
    watch_seconds: float = 2.0
    grace_seconds: float = 3.0
    jobs_per_node: int = 24
    faults_per_second: float = 0.42

    @property
    def recovery_seconds(self) -> float:
        """Within this a job that a fault hit has to be decided on."""
        return self.lease_seconds + self.watch_seconds + 2.0

    @property
    def past_lease_seconds(self) -> tuple[float, float]:
        """How long a node is frozen that has to lose its lease."""
        return self.lease_seconds + 1.0, self.lease_seconds + 5.0

    @property
    def moment_seconds(self) -> tuple[float, float]:
        """How long something is frozen that must not cost a lease."""
        return self.lease_seconds * 0.1, self.lease_seconds * 0.5

    @property
    def outage_seconds(self) -> float:
        """How long at most the database stays down when it was crashed."""
        return self.lease_seconds * 0.13

    @property
    def settings(self) -> dict[str, Any]:
        """Of every node, by the names of app.config."""
        return {
            "node_lease_seconds": self.lease_seconds,
            "heartbeat_interval_seconds": self.heartbeat_seconds,
            "watchdog_interval_seconds": self.watch_seconds,
            "shutdown_grace_seconds": self.grace_seconds,
            "max_concurrent_jobs": self.jobs_per_node,
        }


def quick_pace(seconds: float) -> Pace:
    """A short lease, so that a soak of less than a minute meets everything."""
    return Pace(
        seconds,
        lease_seconds=5.0,
        heartbeat_seconds=1.0,
        watch_seconds=1.0,
        faults_per_second=0.6,
    )


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """When to do what.

    Attributes:
        share: 0.0 to 1.0, places the length of a freeze in its range.
    """

    at_seconds: float
    kind: FaultKind
    share: float


def plan_faults(pace: Pace, chance: random.Random) -> list[PlannedFault]:
    """So many of each kind and the rest by weight, spread over the time."""
    least = max(1, math.ceil(pace.seconds / 60 * LEAST_OF_EACH_PER_MINUTE))
    first = list(FaultKind)
    more = [kind for kind in FaultKind for _ in range(least - 1)]
    rest = round(pace.seconds * pace.faults_per_second) - len(first) - len(more)
    more += chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=max(0, rest))
    chance.shuffle(first)
    chance.shuffle(more)
    # One of each kind comes early: on a busy machine some wait long for a target.
    kinds = first + more
    # The last ones begin early enough to be over at the end.
    usable = max(1.0, pace.seconds - FIRST_FAULT_SECONDS - pace.past_lease_seconds[1] / 2)
    return [
        PlannedFault(
            FIRST_FAULT_SECONDS + usable * (number + chance.random()) / len(kinds),
            kind,
            chance.random(),
        )
        for number, kind in enumerate(kinds)
    ]


@dataclass(frozen=True, slots=True)
class Submission:
    """A job to be sent, and how long to wait before the next one."""

    kind: str
    payload: dict[str, Any]
    max_attempts: int
    pause_seconds: float


def submissions(chance: random.Random) -> Iterator[Submission]:
    """An endless stream of jobs."""
    number = 0
    while True:
        number += 1
        kind = chance.choices(list(_KINDS), [entry[0] for entry in _KINDS.values()])[0]
        _, shortest, longest, steps_per_second, max_attempts = _KINDS[kind]
        seconds = chance.uniform(shortest, longest)
        payload = {
            "number": number,
            "seconds": round(seconds, 3),
            "steps": max(1, round(seconds * steps_per_second)),
            "has_grandchild": kind == "family",
            "fails": kind == "failing",
        }
        pause = min(4.0, chance.expovariate(JOBS_PER_SECOND))
        yield Submission(kind, payload, chance.choice(max_attempts), pause)


# "patient" jobs outlast a lease, so that one whose manager sleeps is at work beside its successor.
# Share, shortest and longest run in seconds, steps per second, allowed attempts.
_KINDS: Final[dict[str, tuple[int, float, float, float, tuple[int, ...]]]] = {
    "quick": (28, 0.1, 0.3, 1.0, (1,)),
    "medium": (22, 1.0, 4.0, 2.0, (2, 3)),
    "long": (18, 10.0, 10.0, 1.0, (1, 3)),
    "patient": (12, 17.0, 22.0, 1.0, (1, 2)),
    "family": (22, 2.0, 7.0, 1.0, (1, 2)),
    "failing": (10, 0.2, 2.0, 1.0, (1, 2)),
}
KINDS: Final = tuple(_KINDS)
