"""Letting go of what is done with, in MongoDB: small batches, the oldest first.

One process at a time has its turn: each changes the same document in its transaction, and whoever
meets another one there is told that nothing was removed. Jobs in somebody else's hands are passed
over; of anything else fewer are removed then, and the next turn comes soon.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from pymongo import ReturnDocument
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

from app.db.mongo.calls import Session, made_by
from app.db.mongo.connections import WRITE_CONFLICT, Document
from app.db.mongo.datasets import MongoDatasets
from app.db.mongo.instants import NOW, span
from app.db.mongo.managing import MongoManaging
from app.domain.jobs import JobStatus

_TURN: Final = "retention"
_TURNS: Final = {"$ifNull": ["$turns", 0]}
_NO_MORE: Final[Document] = {}

# Removes at most so many things in a transaction, told the server's clock; says how many.
_Work = Callable[[Session, int, int], Awaitable[int]]


class MongoRetention(MongoManaging, MongoDatasets):
    """The part of `DBInterface` about retention."""

    async def prune_jobs(self, status: JobStatus, age_seconds: float, limit: int) -> int:
        """See DBInterface."""
        await self._clear_away()
        with self._within():
            # To the server a limit of none means all.
            gone = await self._prune_jobs(status, age_seconds, limit, _NO_MORE) if limit > 0 else []
        if gone:
            await self._clear_away(gone)
        return len(gone)

    async def _prune_jobs(
        self, status: JobStatus, age_seconds: float, limit: int, among: Document
    ) -> list[str]:
        """Those that were removed; where somebody holds one of them the others are, by halves."""
        keys: list[str] = []
        gone: list[str] = []

        async def prune(session: Session, now: int, limit: int) -> int:
            old = {"status": status.value, "finished_at": _before(now, age_seconds), **among}
            keys[:] = await self._oldest("jobs", old, "finished_at", limit, session)
            gone[:] = await self._delete_jobs(keys, session)
            return len(gone)

        if await self._try_turn(limit, prune) is not None:
            return gone
        if len(keys) <= 1:
            return []
        half = len(keys) // 2
        first, second = ({"_id": {"$in": part}} for part in (keys[:half], keys[half:]))
        return [
            *await self._prune_jobs(status, age_seconds, limit, first),
            *await self._prune_jobs(status, age_seconds, limit, second),
        ]

    async def prune_datasets(self, age_seconds: float, limit: int) -> int:
        """See DBInterface."""
        gone: list[str] = []
        await self._clear_what_was_left()

        async def prune(session: Session, now: int, limit: int) -> int:
            found = await self._collection("datasets").aggregate(
                [
                    {"$match": {"is_whole": True, "created_at": _before(now, age_seconds)}},
                    {"$sort": {"created_at": 1}},
                    *_named_in("jobs", "dataset_id"),
                    *_named_in("job_payloads", "dataset"),
                    {"$limit": limit},
                    {"$project": {"_id": 1}},
                ],
                session=session,
            )
            gone[:] = [dataset["_id"] async for dataset in found]
            # A job that names one of them from now on conflicts with this.
            await self._collection("datasets").update_many(
                {"_id": {"$in": gone}}, {"$set": {"is_whole": False}}, session=session
            )
            return len(gone)

        pruned = await self._in_turn(limit, prune)
        if pruned:
            for key in gone:
                await self._remove(key)
        return pruned

    async def prune_calls(self, age_seconds: float, limit: int) -> int:
        """See DBInterface."""
        return await self._prune("call_cache", "created_at", age_seconds, limit)

    async def prune_tombstones(self, age_seconds: float, limit: int) -> int:
        """See DBInterface."""
        done = {"is_left": {"$ne": True}}
        return await self._prune("deleted_jobs", "deleted_at", age_seconds, limit, done)

    async def prune_nodes(self, age_seconds: float, limit: int) -> int:
        """See DBInterface."""

        async def prune(session: Session, now: int, limit: int) -> int:
            is_stopped = {"$eq": ["$state", "stopped"]}
            end = {"$cond": [is_stopped, "$stopped_at", {"$add": ["$heartbeat_at", "$lease"]}]}
            found = await self._collection("nodes").aggregate(
                [
                    {"$match": {"$expr": {"$lt": [end, now - span(age_seconds)]}}},
                    {
                        "$lookup": {
                            "from": "jobs",
                            "localField": "_id",
                            "foreignField": "node_id",
                            "pipeline": [
                                {"$match": {"status": "running"}},
                                {"$limit": 1},
                                {"$project": {"_id": 1}},
                            ],
                            "as": "jobs",
                        }
                    },
                    {"$match": {"jobs": []}},
                    {"$limit": limit},
                    {"$project": {"_id": 1}},
                ],
                session=session,
            )
            keys = [node["_id"] async for node in found]
            return await self._delete("nodes", keys, session)

        return await self._in_turn(limit, prune)

    async def _prune(
        self,
        collection: str,
        field: str,
        age_seconds: float,
        limit: int,
        more: Document = _NO_MORE,
    ) -> int:
        async def prune(session: Session, now: int, limit: int) -> int:
            old = {field: _before(now, age_seconds), **more}
            keys = await self._oldest(collection, old, field, limit, session)
            return await self._delete(collection, keys, session)

        return await self._in_turn(limit, prune)

    async def _oldest(
        self, collection: str, wanted: Document, field: str, limit: int, session: Session
    ) -> list[str]:
        found = self._collection(collection).find(wanted, {"_id": 1}, session=session)
        return [one["_id"] async for one in found.sort([(field, 1)]).limit(limit)]

    async def _delete(self, collection: str, keys: list[str], session: Session) -> int:
        gone = await self._collection(collection).delete_many(
            {"_id": {"$in": keys}}, session=session
        )
        return gone.deleted_count

    async def _in_turn(self, limit: int, work: _Work) -> int:
        """What `work` has removed; 0 where somebody else has the turn.

        A conflict says that somebody holds one of the things, or that they are more than the server
        can take at once: either way there are others, so it goes on with fewer.
        """
        with self._within():
            while limit > 0:
                done = await self._try_turn(limit, work)
                if done is not None:
                    return done
                limit //= 2
        return 0

    async def _try_turn(self, limit: int, work: _Work) -> int | None:
        """As `_in_turn`, None after a conflict about one of the things."""
        is_ours = False
        client = self._connected()
        async with self._transaction_places, client.start_session() as session:
            try:
                await session.start_transaction(ReadConcern("snapshot"))
                turn = await self._collection("schema").find_one_and_update(
                    {"_id": _TURN},
                    [{"$set": {"taken_at": NOW, "turns": {"$add": [_TURNS, 1]}}}],
                    upsert=True,
                    return_document=ReturnDocument.AFTER,
                    session=session,
                )
                is_ours = True
                done = await work(session, int(made_by(turn)["taken_at"]), limit)
                await session.commit_transaction()
            except OperationFailure as error:
                # Leaving the session ends what is left of the transaction.
                if error.code != WRITE_CONFLICT:
                    raise
                return None if is_ours else 0
        return done


def _before(now: int, age_seconds: float) -> Document:
    # Above 0, since the index of ends holds instants alone; ages may reach behind 1970.
    return {"$gt": 0, "$lt": now - span(age_seconds)}


def _named_in(collection: str, field: str) -> list[Document]:
    """Stages that leave those out that some document of the collection names."""
    return [
        {
            "$lookup": {
                "from": collection,
                "localField": "_id",
                "foreignField": field,
                "pipeline": [{"$limit": 1}, {"$project": {"_id": 1}}],
                "as": "named",
            }
        },
        {"$match": {"named": []}},
    ]
