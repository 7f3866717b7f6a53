"""Claims between the database's answer and a process: on their way, or without any answer."""

import math
import time
from collections.abc import Iterable

from app.domain.jobs import Claim, RunningJob
from app.orchestrator.processes import StopReason


class Launches:
    """Claims on their way to a process, with the reason why they are not to run any more."""

    def __init__(self) -> None:
        self._reasons: dict[Claim, StopReason | None] = {}

    def __contains__(self, claim: Claim) -> bool:
        """Whether the claim is on its way."""
        return claim in self._reasons

    def begin(self, claims: Iterable[Claim]) -> None:
        """These have been claimed and are to be started one after the other."""
        self._reasons = dict.fromkeys(claims)

    def give_up(self, reason: StopReason) -> None:
        """None of those on their way is to run; the first reason counts."""
        for claim, earlier in self._reasons.items():
            self._reasons[claim] = earlier or reason

    def reason(self, claim: Claim) -> StopReason | None:
        """Why the claim is not to run any more, None where it is."""
        return self._reasons.get(claim)

    def end(self, claim: Claim) -> StopReason | None:
        """It has a process, or is settled without one; the reason why it is not to run."""
        return self._reasons.pop(claim, None)

    def clear(self) -> None:
        """None is on its way."""
        self._reasons.clear()


class UnansweredClaims:
    """Whether calls to claim went without an answer: what they took never ran."""

    def __init__(self) -> None:
        self._last = -math.inf
        self.is_due = False

    def note(self) -> None:
        """A call got no answer: perhaps that is lost, perhaps the commit is yet to come."""
        self._last = time.monotonic()
        self.is_due = True

    def note_given_back(self) -> None:
        """What was committed by now has been given back."""
        self.is_due = False

    def explains(self, row: RunningJob) -> bool:
        """Whether a row that no process runs may come from such a call, committed late."""
        return time.monotonic() - row.run_seconds <= self._last
