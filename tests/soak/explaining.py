"""Which fault explains that an attempt ended, by its recorded cause; and which excuses a live run.

    cause of the attempt's end      a fault that explains it
        signal, worker lost             a kill of this very process, or of its guard
        node lost                       what kept its manager from renewing the lease, or a database
                                        that was away for half of that time
        shutdown                        SIGTERM of its node; without a process also what explains
                                        that none came up
        start failed                    a killed forkserver, or a database that did not answer

Strict on purpose: a cause that no fault of its kind precedes is a finding.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from soak.fault_log import DATABASE_KINDS, FREEZING_KINDS, Fault, FaultKind
from soak.history import Attempt
from soak.pace import Pace

# Between the instants that two processes take of one thing.
SLACK_SECONDS: Final = 0.25

_PROCESS_KINDS: Final = frozenset({FaultKind.KILL_WORKER, FaultKind.KILL_GUARD})
_NODE_KINDS: Final[Mapping[str, frozenset[FaultKind]]] = {
    "node_lost": frozenset(
        {
            FaultKind.KILL_MANAGER,
            FaultKind.FREEZE_MANAGER,
            FaultKind.FREEZE_NODE,
            FaultKind.STOP_NODE,
        }
    ),
    "shutdown": frozenset({FaultKind.STOP_NODE}),
    "start_failed": FREEZING_KINDS | DATABASE_KINDS | {FaultKind.KILL_FORKSERVER},
}
DELIBERATE: Final = "DeliberateError"


@dataclass(frozen=True, slots=True)
class Explanations:
    """The faults of a soak, asked about attempts and runs."""

    all: list[Fault]
    pace: Pace

    def explaining(self, attempt: Attempt) -> Fault | None:
        """The fault that ended the attempt, None where none of its kind was there."""
        if attempt.cause in ("signal", "worker_lost") and attempt.outcome == "failed":
            found = self._kills(attempt)
        elif attempt.cause == "node_lost":
            found = [
                fault
                for fault in self._around(attempt, _NODE_KINDS["node_lost"])
                # What was over before the node's last renewal did not cost the lease. A killed one
                # may yet renew: by a statement that waits in a backend that is frozen.
                if fault.kind is FaultKind.KILL_MANAGER
                or fault.ended >= attempt.heartbeat_at - SLACK_SECONDS
            ] or self._outages(attempt)
            return found[0] if found else None
        else:
            kinds = _NODE_KINDS.get(attempt.cause or "", frozenset())
            if attempt.cause == "shutdown" and attempt.pid is None:
                # A claim whose answer got lost is given back in the same way; it never ran.
                kinds |= _NODE_KINDS["start_failed"]
            found = self._around(attempt, kinds)
        return found[-1] if found else None

    def excuse(self, attempt: Attempt, since: float, until: float, patience_seconds: float) -> bool:
        """Whether the manager of the attempt could not act from `since` to `until`.

        Args:
            patience_seconds: what it gets after the end of the fault.
        """
        return any(
            fault.kind in FREEZING_KINDS
            and fault.node_pid == attempt.node_pid
            and fault.began <= since
            and until <= fault.ended + patience_seconds
            for fault in self.all
        )

    def slept(self, attempt: Attempt, since: float, until: float, patience_seconds: float) -> bool:
        """Whether the attempt's own process was frozen then, see `excuse`."""
        return any(
            fault.kind is FaultKind.FREEZE_WORKER
            and fault.pid == attempt.pid
            and fault.began <= since
            and until <= fault.ended + patience_seconds
            for fault in self.all
        )

    def _kills(self, attempt: Attempt) -> list[Fault]:
        return [
            fault
            for fault in self.all
            if fault.kind in _PROCESS_KINDS
            and fault.pid == attempt.pid
            and attempt.started_at <= fault.began <= _end(attempt) + SLACK_SECONDS
        ]

    def _outages(self, attempt: Attempt) -> list[Fault]:
        """Faults of the database that took half of the lease or more."""
        lost_at = attempt.heartbeat_at + self.pace.lease_seconds
        found = [
            fault
            for fault in self.all
            if fault.kind in DATABASE_KINDS
            and fault.ended >= attempt.heartbeat_at
            and fault.began <= lost_at
        ]
        taken = sum(fault.ended - max(fault.began, attempt.heartbeat_at) for fault in found)
        return found if taken >= self.pace.lease_seconds / 2 else []

    def _around(self, attempt: Attempt, kinds: Iterable[FaultKind]) -> list[Fault]:
        patience = self.pace.recovery_seconds
        # A claim may be made, and its process not come up, just after the fault.
        earliest = attempt.started_at - patience
        return [
            fault
            for fault in self.all
            if fault.kind in kinds
            and (fault.kind in DATABASE_KINDS or fault.node_pid == attempt.node_pid)
            and fault.began <= _end(attempt) + SLACK_SECONDS
            and fault.ended >= max(earliest, _end(attempt) - patience)
        ]


def is_deliberate(attempt: Attempt) -> bool:
    """Whether the job failed as it was meant to."""
    return (attempt.cause, attempt.error_class) == ("exception", DELIBERATE)


def _end(attempt: Attempt) -> float:
    return attempt.started_at if attempt.ended_at is None else attempt.ended_at
