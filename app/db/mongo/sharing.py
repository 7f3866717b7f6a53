"""Paid calls in MongoDB: answers that are kept once for every job, and what each job paid."""

from typing import Final

from app.db.mongo.calls import MongoCalls, Session, key_of, unless_there
from app.db.mongo.connections import Document
from app.db.mongo.instants import NOW
from app.db.mongo.texts import normal_text, packed, unpacked
from app.domain.errors import LeaseLostError
from app.domain.jobs import Claim
from app.domain.json_values import check_size
from app.domain.sharing import MAX_CALL_ANSWER_BYTES, CallUsage, FailedCalls, PaidCall

# Sums of money are sums of whole millionths: floats would not add up.
_MILLIONTHS: Final = 1_000_000


class MongoSharing(MongoCalls):
    """The part of `DBInterface` about paid calls."""

    async def load_call(self, key: str) -> str | None:
        """See DBInterface."""
        async with self._bounded():
            found = await self._collection("call_cache").find_one({"_id": key})
        return None if found is None else (await unpacked([found])).decode()

    async def save_call(self, claim: Claim, call: PaidCall) -> None:
        """See DBInterface."""
        check_size(call.answer, f"answer of a call of {call.stage!r}", MAX_CALL_ANSWER_BYTES)
        [answer] = await packed(await normal_text(call.answer))
        kept = unless_there({**answer, "model": call.model}, {"created_at": NOW})

        async def save(session: Session) -> bool:
            try:
                held = await self._hold(claim, session)
            except LeaseLostError:
                held = None
            # The first answer stays, whoever holds the job now: others may have built on it, and
            # the next attempt asks the same.
            await self._collection("call_cache").update_one(
                {"_id": call.key}, kept, upsert=True, session=session
            )
            if held is None:
                return False
            await self._collection("usage").update_one(
                {"job_id": held["_id"], "claim_no": claim.claim_no, "key": call.key},
                {
                    "$setOnInsert": {
                        "first": held["writes"],
                        "stage": call.stage,
                        "model": call.model,
                        "calls": 1,
                        "cached_calls": 0,
                        "prompt_tokens": call.prompt_tokens,
                        "completion_tokens": call.completion_tokens,
                        "cost": round(call.cost * _MILLIONTHS),
                    }
                },
                upsert=True,
                session=session,
            )
            return True

        if not await self._in_transaction(save):
            raise LeaseLostError(claim.job_id, claim.claim_no)

    async def count_cached_calls(self, claim: Claim, stage: str, model: str, total: int) -> None:
        """See DBInterface."""
        await self._count(claim, stage, model, {"cached_calls": total})

    async def count_failed_calls(
        self, claim: Claim, stage: str, model: str, total: FailedCalls
    ) -> None:
        """See DBInterface."""
        figures = {
            "calls": total.calls,
            "prompt_tokens": total.prompt_tokens,
            "completion_tokens": total.completion_tokens,
            "cost": round(total.cost * _MILLIONTHS),
        }
        await self._count(claim, stage, model, figures)

    async def list_usage(self, job_id: str) -> list[CallUsage]:
        """See DBInterface."""
        names = ("calls", "cached_calls", "prompt_tokens", "completion_tokens", "cost")
        async with self._bounded():
            found = await self._collection("usage").aggregate(
                [
                    {"$match": {"job_id": key_of(job_id)}},
                    {
                        "$group": {
                            "_id": {"stage": "$stage", "model": "$model"},
                            "first": {"$min": "$first"},
                            **{name: {"$sum": f"${name}"} for name in names},
                        }
                    },
                    {"$sort": {"first": 1}},
                ]
            )
            groups = [group async for group in found]
            if not await self._is_there(job_id):
                return []
        return [
            CallUsage(
                stage=group["_id"]["stage"],
                model=group["_id"]["model"],
                calls=group["calls"],
                cached_calls=group["cached_calls"],
                prompt_tokens=group["prompt_tokens"],
                completion_tokens=group["completion_tokens"],
                cost=group["cost"] / _MILLIONTHS,
            )
            for group in groups
        ]

    async def _count(self, claim: Claim, stage: str, model: str, figures: Document) -> None:
        """Note totals that only grow: repeating one, or writing an older one late, adds nothing."""

        async def count(session: Session) -> None:
            held = await self._hold(claim, session)
            await self._collection("usage").update_one(
                {
                    "job_id": held["_id"],
                    "claim_no": claim.claim_no,
                    "stage": stage,
                    "model": model,
                    "key": None,
                },
                {"$max": figures, "$setOnInsert": {"first": held["writes"]}},
                upsert=True,
                session=session,
            )

        await self._in_transaction(count)
