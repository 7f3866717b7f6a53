"""Ends and new beginnings in MongoDB: each is one transaction over all that it touches.

    finish, cancel --> the job's document, the attempt's, the result's pieces, webhook deliveries

A wish to cancel and an end change the same document, so one of them comes after the other and sees
what it did.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pymongo import ReturnDocument

from app.db.ids import new_id
from app.db.mongo.calls import Session, held_by, job_key, literal
from app.db.mongo.connections import Document
from app.db.mongo.documents import MAX_HELD_EVENTS, with_event
from app.db.mongo.holding import MongoHolding
from app.db.mongo.instants import NOW, now_plus
from app.db.mongo.keys import MongoKeys
from app.db.mongo.nodes import ALIVE
from app.db.mongo.texts import normal_text, packed
from app.domain.errors import (
    DatabaseUnavailableError,
    IllegalTransitionError,
    QuotaExceededError,
)
from app.domain.jobs import TERMINAL_STATUSES, AttemptOutcome, Claim, JobStatus, Usage, WakeUp
from app.domain.keys import PendingCaps
from app.domain.lifecycle import JobEvent, Verdict
from app.domain.webhooks import DeliveryStatus

CONTROL_TRIES: Final = 3
_PENDING: Final = JobStatus.PENDING.value
_CANCELLED: Final = JobStatus.CANCELLED.value
_MORTAL: Final = (JobStatus.PENDING.value, JobStatus.RUNNING.value)
_IS_WANTED_ENDED: Final = {"$ne": ["$cancel_requested_at", None]}


class MongoEnding(MongoHolding, MongoKeys):
    """The part of `DBInterface` that ends jobs and begins them anew."""

    async def finish_job(self, claim: Claim, verdict: Verdict, usage: Usage | None = None) -> bool:
        """See DBInterface."""
        return await self._finish(claim, verdict, usage or Usage(), only_if_lost=False)

    async def rescue_job(self, claim: Claim, verdict: Verdict) -> bool:
        """See DBInterface."""
        return await self._finish(claim, verdict, Usage(), only_if_lost=True)

    async def _finish(
        self, claim: Claim, verdict: Verdict, usage: Usage, *, only_if_lost: bool
    ) -> bool:
        text = verdict.result
        result = [] if text is None else await packed(await normal_text(text))

        async def finish(session: Session) -> Document | None:
            if only_if_lost and not await self._is_lost(claim, session):
                return None
            ended = await self._collection("jobs").find_one_and_update(
                held_by(claim),
                _end(verdict, usage),
                projection={"status": 1, "latest": 1, "events": {"$size": "$events"}},
                return_document=ReturnDocument.AFTER,
                session=session,
            )
            if ended is not None:
                await self._close_attempt(ended, session)
                if result:
                    await self._store_result(claim, result, session)
                await self._tell({ended["_id"]: ended["status"]}, session)
            return ended

        ended = await self._in_transaction(finish)
        if ended is None:
            return False
        if ended["status"] == _PENDING and verdict.delay_seconds <= 0:
            self._request_wake_up(WakeUp.JOBS)
        if ended["events"] >= MAX_HELD_EVENTS:
            await self._move_events(claim.job_id)
        return True

    async def _is_lost(self, claim: Claim, session: Session) -> bool:
        """Whether a claim runs on a lost node, which it then stays."""
        job = await self._collection("jobs").find_one(
            held_by(claim), {"node_id": 1}, session=session
        )
        if job is None:
            return False
        # Changed, not only looked at: this look may be much later than the picture of the node that
        # the transaction has. A node that has renewed since then conflicts with it.
        nodes, node = self._collection("nodes"), {"_id": job["node_id"]}
        lost = await nodes.update_one(
            {**node, "$nor": [ALIVE]}, {"$inc": {"rescues": 1}}, session=session
        )
        return bool(lost.matched_count) or await nodes.find_one(node, session=session) is None

    async def _close_attempt(self, ended: Document, session: Session) -> None:
        """Keep the attempt for good; the job's document has it until the next claim."""
        await self._collection("job_attempts").insert_one(
            {"job_id": ended["_id"], **ended["latest"]}, session=session
        )

    async def _store_result(
        self, claim: Claim, pieces: Sequence[Document], session: Session
    ) -> None:
        results = self._collection("job_results")
        if claim.claim_no > 1:
            # A retried job may have left a result of an earlier life.
            await results.delete_many({"job_id": claim.job_id}, session=session)
        await results.insert_many(
            [{"job_id": claim.job_id, "claim_no": claim.claim_no, **p} for p in pieces],
            session=session,
        )

    async def _tell(self, statuses: Mapping[str, str], session: Session) -> None:
        """Deliveries of the ends of jobs to those endpoints that want to know of them."""
        ended = {job: f"job.{status}" for job, status in statuses.items() if _has_ended(status)}
        if not ended:
            return
        wanted = self._collection("webhooks").find(
            {"is_active": True, "events": {"$in": sorted(set(ended.values()))}}, session=session
        )
        endpoints = [webhook async for webhook in wanted]
        deliveries = [
            _delivery(job, event, webhook)
            for job, event in ended.items()
            for webhook in endpoints
            if event in webhook["events"]
        ]
        for delivery in deliveries:
            await self._collection("webhook_deliveries").update_one(
                {"_id": delivery.pop("_id")},
                [{"$set": {**delivery, "created_at": NOW, "next_at": NOW}}],
                upsert=True,
                session=session,
            )

    # -- wishes from outside ------------------------------------------------------------------

    async def cancel_job(self, job_id: str) -> JobStatus:
        """See DBInterface."""
        for _ in range(CONTROL_TRIES):
            asked = await self._cancel([job_key(job_id)], _MORTAL)
            if asked:
                [status] = asked.values()
                if status is JobStatus.RUNNING:
                    self._request_wake_up(WakeUp.CONTROL)
                return status
            status = await self._get_status(job_id)
            if status is JobStatus.CANCELLED:
                return status
            if status.is_terminal:
                raise IllegalTransitionError(status, JobEvent.CANCELLED)
        # Ended and revived between the two looks, again and again.
        raise DatabaseUnavailableError(f"job {job_id} changes too quickly")

    async def retry_job(self, job_id: str, caps: PendingCaps | None = None) -> None:
        """See DBInterface."""
        for _ in range(CONTROL_TRIES):
            revived, violated = await self._retry([job_key(job_id)], tuple(TERMINAL_STATUSES), caps)
            if violated:
                raise QuotaExceededError(tuple(violated))
            if revived:
                self._request_wake_up(WakeUp.JOBS)
                return
            status = await self._get_status(job_id)
            if not status.is_terminal:
                raise IllegalTransitionError(status, JobEvent.REVIVED)
        raise DatabaseUnavailableError(f"job {job_id} changes too quickly")

    async def _cancel(self, keys: Sequence[str], statuses: Iterable[str]) -> dict[str, JobStatus]:
        """Cancel those that are pending in a status of these, note the wish where they run.

        Returns what became of each that was changed.
        """

        async def cancel(session: Session) -> dict[str, JobStatus]:
            alive = await self._in_status(keys, statuses, _MORTAL, session)
            is_pending = {"$eq": ["$status", _PENDING]}
            await self._collection("jobs").update_many(
                {"_id": {"$in": list(alive)}},
                [
                    {
                        "$set": {
                            "status": {"$cond": [is_pending, _CANCELLED, "$status"]},
                            "cancel_requested_at": {"$ifNull": ["$cancel_requested_at", NOW]},
                            "finished_at": {"$cond": [is_pending, NOW, None]},
                            **with_event(_CANCELLED, "$attempt", condition=is_pending),
                            "writes": {"$add": ["$writes", 1]},
                        }
                    }
                ],
                session=session,
            )
            asked = {
                key: JobStatus.CANCELLED if status == _PENDING else JobStatus.RUNNING
                for key, status in alive.items()
            }
            await self._tell(asked, session)
            return asked

        return await self._in_transaction(cancel)

    async def _retry(
        self, keys: Sequence[str], statuses: Iterable[str], caps: PendingCaps | None
    ) -> tuple[int, list[str]]:
        """Make those that have ended in a status of these pending again, with a fresh budget.

        Returns how many became so, and for each of the others without room which cap says no.
        """

        async def revive(session: Session) -> tuple[int, list[str]]:
            found = await self._in_status(keys, statuses, tuple(TERMINAL_STATUSES), session)
            violated = {} if caps is None else await self._without_room(found, caps, session)
            ended = {key: status for key, status in found.items() if key not in violated}
            await self._collection("jobs").update_many(
                {"_id": {"$in": list(ended)}},
                [
                    {
                        "$set": {
                            "status": _PENDING,
                            "attempt": 0,
                            "node_losses": 0,
                            "run_at": NOW,
                            "started_at": None,
                            "finished_at": None,
                            "cancel_requested_at": None,
                            **with_event(_PENDING, 0),
                        }
                    }
                ],
                session=session,
            )
            # Who completed would only find everything done already.
            done = [key for key, status in ended.items() if status == JobStatus.COMPLETED]
            if done:
                await self._collection("job_checkpoints").delete_many(
                    {"job_id": {"$in": done}}, session=session
                )
            return len(ended), list(violated.values())

        return await self._in_transaction(revive)

    async def _without_room(
        self, keys: Iterable[str], caps: PendingCaps, session: Session
    ) -> dict[str, str]:
        """Jobs that their submitters' caps leave no room for, with the cap that says so."""
        found = self._collection("jobs").find(
            {"_id": {"$in": list(keys)}, "submitted_by": {"$gt": ""}},
            {"submitted_by": 1, "payload_bytes": 1},
            session=session,
        )
        by_submitter: dict[str, list[Document]] = {}
        async for job in found.sort([("_id", 1)]):
            by_submitter.setdefault(job["submitted_by"], []).append(job)
        violated = {}
        for submitter, asked in by_submitter.items():
            key = await self._collection("api_keys").find_one({"_id": submitter}, session=session)
            waiting = await self._waiting_of(submitter, session)
            room = _cap(key, "max_pending_jobs", caps.jobs) - waiting.jobs
            room_bytes = _cap(key, "max_pending_bytes", caps.size_bytes) - waiting.size_bytes
            jobs = size_bytes = 0
            for job in asked:
                # One that fits in no case takes no room from the others.
                is_fitting = job["payload_bytes"] <= room_bytes
                if is_fitting:
                    jobs, size_bytes = jobs + 1, size_bytes + job["payload_bytes"]
                if jobs > room or room < 1:
                    violated[job["_id"]] = "pending-jobs"
                elif size_bytes > room_bytes or not is_fitting:
                    violated[job["_id"]] = "pending-bytes"
        return violated

    async def _in_status(
        self,
        keys: Sequence[str],
        statuses: Iterable[str],
        legal: Sequence[str],
        session: Session,
    ) -> dict[str, str]:
        wanted = [str(status) for status in statuses if status in legal]
        found = self._collection("jobs").find(
            {"_id": {"$in": list(keys)}, "status": {"$in": wanted}},
            {"status": 1},
            session=session,
        )
        return {job["_id"]: job["status"] async for job in found}

    async def _get_status(self, job_id: str) -> JobStatus:
        async with self._bounded():
            job = await self._collection("jobs").find_one({"_id": job_key(job_id)}, {"status": 1})
        if job is None:
            raise await self._missing(job_id)
        return JobStatus(job["status"])


def _end(verdict: Verdict, usage: Usage) -> list[Document]:
    """The update that ends the attempt of a running job."""
    status: Any = verdict.status.value
    has_ended: Any = True
    run_at: Any = "$run_at"
    if verdict.status is JobStatus.PENDING:
        # A job that is to be cancelled gets no further attempt.
        status = {"$cond": [_IS_WANTED_ENDED, _CANCELLED, _PENDING]}
        has_ended = _IS_WANTED_ENDED
        run_at = now_plus(verdict.delay_seconds)
    error = verdict.error
    message = literal((error and error.message) or None)
    fraction: Any = "$latest.progress_fraction"
    if verdict.outcome is AttemptOutcome.COMPLETED:
        fraction = 1.0
    return [
        {
            "$set": {
                "status": status,
                "attempt": {"$add": ["$attempt", verdict.attempt_change]},
                "node_losses": {"$add": ["$node_losses", verdict.node_loss_change]},
                "run_at": run_at,
                "finished_at": {"$cond": [has_ended, NOW, None]},
                "latest.ended_at": NOW,
                "latest.outcome": verdict.outcome.value,
                "latest.cause": verdict.cause and verdict.cause.value,
                "latest.exit_code": verdict.exit_code,
                "latest.signal": verdict.signal,
                "latest.error_class": literal((error and error.error_class) or None),
                "latest.error_message": message,
                "latest.traceback": literal(error and error.traceback),
                "latest.peak_memory_bytes": usage.peak_memory_bytes,
                "latest.cpu_seconds": usage.cpu_seconds,
                "latest.progress_fraction": fraction,
                # The number under which it ran; a refund concerns the job's count only.
                **with_event(status, "$latest.attempt", message=message),
            }
        }
    ]


def _cap(key: Document | None, name: str, otherwise: int) -> int:
    own = None if key is None else key[name]
    return otherwise if own is None else int(own)


def _has_ended(status: str) -> bool:
    return status in TERMINAL_STATUSES


def _delivery(job_id: str, event: str, webhook: Document) -> Document:
    return {
        "_id": new_id(),
        "job_id": job_id,
        "webhook_id": webhook["_id"],
        "url": literal(webhook["url"]),
        "event": event,
        "status": DeliveryStatus.PENDING.value,
        "attempt": 0,
        "delivered_at": None,
        "last_status_code": None,
        "last_error": None,
    }
