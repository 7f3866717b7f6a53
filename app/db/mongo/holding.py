"""What the holder of a claim writes to MongoDB; each write tests that its claim is the running one.

What changes the job's document alone is one update of it. What lies beside it is written in a
transaction that changes the document as well: a write and the end of its job conflict, and one of
them comes after the other.
"""

from collections.abc import Sequence
from typing import Any, Final

from pymongo import ReturnDocument

from app.db.mongo.calls import MongoCalls, Session, held_by, key_of, literal
from app.db.mongo.connections import Document
from app.db.mongo.documents import MAX_HELD_EVENTS, with_event
from app.db.mongo.instants import NOW, micros
from app.db.mongo.texts import normal_text, packed, unpacked
from app.domain.errors import LeaseLostError
from app.domain.following import MILESTONE_KIND
from app.domain.jobs import MAX_CHECKPOINT_BYTES, Claim, LogLine, Progress
from app.domain.json_values import check_size, storable_text

_IN_ORDER: Final = [("n", 1)]


class MongoHolding(MongoCalls):
    """The part of `DBInterface` for the holder of a claim, but for the end."""

    async def load_payload(self, claim: Claim) -> str:
        """See DBInterface."""
        async with self._at_one_instant() as session:
            held = await self._collection("jobs").find_one(
                held_by(claim), {"_id": 1}, session=session
            )
            pieces = await self._pieces(session, "job_payloads", claim.job_id)
        if held is None or not pieces:
            raise LeaseLostError(claim.job_id, claim.claim_no)
        return (await unpacked(pieces)).decode()

    async def report_started(self, claim: Claim, pid: int) -> None:
        """See DBInterface."""
        await self._change_held(claim, [{"$set": {"latest.pid": pid}}])

    async def report_progress(
        self, claim: Claim, progress: Progress, *, is_milestone: bool = False
    ) -> None:
        """See DBInterface."""
        stage, message = literal(progress.stage), literal(progress.message)
        # A report that is repeated because its answer got lost finds its stage entered already.
        is_new = {"$and": [is_milestone, {"$ne": ["$latest.progress_stage", stage]}]}
        events = await self._change_held(
            claim,
            [
                {
                    "$set": {
                        "latest.progress_fraction": progress.fraction,
                        "latest.progress_stage": stage,
                        "latest.progress_message": message,
                        "latest.progress_at": NOW,
                        **with_event(
                            stage,
                            "$attempt",
                            condition=is_new,
                            kind=MILESTONE_KIND,
                            fraction=progress.fraction,
                            message=message,
                        ),
                    }
                }
            ],
        )
        if events >= MAX_HELD_EVENTS:
            await self._move_events(claim.job_id)

    async def append_logs(self, claim: Claim, lines: Sequence[LogLine]) -> None:
        """See DBInterface."""

        async def append(session: Session) -> None:
            held = await self._hold(claim, session)
            latest = held["latest"]
            last_no, last_id = latest["last_line_no"], held["last_line_id"]
            new = [line for line in lines if line.number > last_no]
            if not new:
                return
            new.sort(key=lambda line: line.number)
            await self._collection("jobs").update_one(
                {"_id": held["_id"]},
                {
                    "$set": {
                        "latest.last_line_no": new[-1].number,
                        "last_line_id": last_id + len(new),
                    }
                },
                session=session,
            )
            await self._collection("job_logs").insert_many(
                [
                    _log_document(held, latest["attempt"], line_id, line)
                    for line_id, line in enumerate(new, last_id + 1)
                ],
                session=session,
            )

        await self._in_transaction(append)

    async def save_checkpoint(self, claim: Claim, stage: str, data: str) -> None:
        """See DBInterface."""
        check_size(data, f"checkpoint {stage!r}", MAX_CHECKPOINT_BYTES)
        pieces = await packed(await normal_text(data))

        async def save(session: Session) -> None:
            held = await self._hold(claim, session)
            owner = {"job_id": held["_id"], "stage": stage}
            saved = {"claim_no": claim.claim_no, "saved_no": held["writes"]}
            checkpoints = self._collection("job_checkpoints")
            await checkpoints.delete_many(owner, session=session)
            await checkpoints.insert_many(
                [{**owner, **saved, "saved_at": held["now"], **p} for p in pieces], session=session
            )

        await self._in_transaction(save)

    async def load_checkpoint(self, job_id: str, stage: str) -> str | None:
        """See DBInterface."""
        found = await self.get_checkpoint(job_id, stage)
        return None if found is None else found.decode()

    async def get_checkpoint(self, job_id: str, stage: str) -> bytes | None:
        """See DBInterface."""
        if storable_text(stage, len(stage)) != stage:
            return None  # no stage can be called so
        async with self._at_one_instant() as session:
            pieces = await self._pieces(session, "job_checkpoints", job_id, stage=stage)
            if not pieces or not await self._is_there(job_id, session):
                return None
        return await unpacked(pieces)

    async def _change_held(self, claim: Claim, update: list[Document]) -> int:
        """Change the job's document alone; returns how many events lie in it."""
        async with self._bounded():
            held = await self._collection("jobs").find_one_and_update(
                held_by(claim),
                update,
                # Counted here: to a driver that asks again, since the answer got lost, the server
                # gives the document as it keeps it for that, without a look at the projection.
                projection={"events.id": 1},
                return_document=ReturnDocument.AFTER,
            )
        if held is None:
            raise LeaseLostError(claim.job_id, claim.claim_no)
        return len(held["events"])

    async def _pieces(
        self, session: Session, collection: str, job_id: str, **more: Any
    ) -> list[Document]:
        """The pieces of one text in their order."""
        found = self._collection(collection).find(
            {"job_id": key_of(job_id), **more}, session=session
        )
        return [piece async for piece in found.sort(_IN_ORDER)]

    async def _move_events(self, job_id: str) -> None:
        """Move the events of a job's document beside it, where they no longer count for its size.

        All of them are in one place or in the other at every moment.
        """
        key = key_of(job_id)

        async def move(session: Session) -> None:
            jobs = self._collection("jobs")
            found = await jobs.find_one({"_id": key}, {"events": 1}, session=session)
            if found is None or len(found["events"]) < MAX_HELD_EVENTS:
                return
            last_id = found["events"][-1]["id"]
            await self._collection("job_events").insert_one(
                {"job_id": key, "last_id": last_id, "events": found["events"]}, session=session
            )
            await jobs.update_one({"_id": key}, {"$set": {"events": []}}, session=session)

        await self._in_transaction(move)


def _log_document(held: Document, attempt: int, line_id: int, line: LogLine) -> Document:
    return {
        "job_id": held["_id"],
        "id": line_id,
        "attempt": attempt,
        "line_no": line.number,
        "level": line.level,
        "source": line.source,
        "line": line.text,
        "at": micros(line.at),
    }
