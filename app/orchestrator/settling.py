"""Settling attempts: outcome -> decide -> one guarded write, repeated until the database took it.

A healthy node never leaves a finished job running because a write failed once.
"""

from app.db.interface import DBInterface
from app.domain.errors import DatabaseUnavailableError
from app.domain.jobs import Claim
from app.domain.lifecycle import AttemptBudget, Outcome, Verdict, decide
from app.telemetry import Telemetry


class Settlements:
    """Verdicts on their way to the database."""

    def __init__(self, db: DBInterface, telemetry: Telemetry) -> None:
        self._db = db
        self._telemetry = telemetry
        self._waiting: dict[Claim, Verdict] = {}
        self._in_flight: set[Claim] = set()

    def __contains__(self, claim: Claim) -> bool:
        """Whether a verdict on this claim still waits."""
        return claim in self._waiting

    async def settle(self, claim: Claim, job: AttemptBudget, outcome: Outcome) -> None:
        """Decide on an attempt and write it, now or with a later `retry`."""
        self._waiting[claim] = decide(outcome, job)
        await self._write(claim)

    async def retry(self) -> None:
        """Try again what the database has not taken yet."""
        for claim in list(self._waiting):
            # Several loops come here: meanwhile another may have written it, or be about to.
            if claim in self._waiting and claim not in self._in_flight:
                await self._write(claim)

    async def _write(self, claim: Claim) -> None:
        verdict = self._waiting[claim]
        self._in_flight.add(claim)
        try:
            has_won = await self._db.finish_job(claim, verdict)
        except DatabaseUnavailableError as error:
            self._telemetry.emit("finish.delayed", job=claim.job_id, reason=str(error))
            return
        finally:
            self._in_flight.discard(claim)
        self._waiting.pop(claim, None)
        if has_won:
            self._telemetry.emit(
                "job.finished",
                job=claim.job_id,
                status=verdict.status,
                outcome=verdict.outcome,
                cause=verdict.cause,
                reason=verdict.error and verdict.error.message,
            )
