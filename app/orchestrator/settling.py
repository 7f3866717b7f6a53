"""Settling attempts: outcome -> decide -> one guarded write, repeated until the database took it.

A healthy node never leaves a finished job running because a write failed once. Each write is a
task of its own, waited for only briefly: one row that somebody else holds locked delays neither
the other ends nor the loop that asked.
"""

import asyncio
from typing import Final

from app.db.interface import DBInterface
from app.domain.errors import DatabaseUnavailableError
from app.domain.jobs import Claim, Usage
from app.domain.lifecycle import AttemptBudget, Outcome, Verdict, decide
from app.telemetry import Telemetry

PATIENCE_SECONDS: Final = 0.25


class Settlements:
    """Verdicts on their way to the database."""

    def __init__(self, db: DBInterface, telemetry: Telemetry) -> None:
        self._db = db
        self._telemetry = telemetry
        self._waiting: dict[Claim, tuple[Verdict, Usage | None]] = {}
        self._writing: dict[Claim, asyncio.Task[None]] = {}
        self._settled: set[Claim] = set()

    def __contains__(self, claim: Claim) -> bool:
        """Whether a verdict on this claim still waits."""
        return claim in self._waiting

    async def settle(
        self,
        claim: Claim,
        job: AttemptBudget,
        outcome: Outcome,
        usage: Usage | None = None,
        *,
        may_be_settled: bool = False,
    ) -> None:
        """Decide on an attempt and write it: now where that is quick, else in the background.

        Args:
            may_be_settled: the worker may have done so itself, which is then no loss of the claim.
        """
        self._waiting[claim] = (decide(outcome, job), usage)
        if may_be_settled:
            self._settled.add(claim)
        self._start(claim)
        await asyncio.wait({self._writing[claim]}, timeout=PATIENCE_SECONDS)

    async def retry(self) -> None:
        """Try again what the database has not taken yet."""
        for claim in self._waiting:
            self._start(claim)
        if self._writing:
            await asyncio.wait(set(self._writing.values()), timeout=PATIENCE_SECONDS)

    async def close(self) -> None:
        """Give up what is under way."""
        writing = list(self._writing.values())
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)

    def _start(self, claim: Claim) -> None:
        if claim not in self._writing:
            task = asyncio.create_task(self._write(claim), name="haulage-settle")
            self._writing[claim] = task
            task.add_done_callback(lambda _: self._writing.pop(claim, None))

    async def _write(self, claim: Claim) -> None:
        verdict, usage = self._waiting[claim]
        try:
            has_won = await self._db.finish_job(claim, verdict, usage)
        except DatabaseUnavailableError as error:
            self._telemetry.emit("finish.delayed", job=claim.job_id, reason=str(error))
            return
        except Exception as error:  # noqa: BLE001  kept and tried again: an end must not get lost
            self._telemetry.emit("finish.delayed", job=claim.job_id, reason=repr(error))
            return
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
        elif claim not in self._settled:
            self._telemetry.emit("claim.lost", job=claim.job_id, claim=claim.claim_no)
        self._settled.discard(claim)
