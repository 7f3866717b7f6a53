"""API keys in MongoDB; it never sees more of a key than its SHA-256 and its first letters."""

from collections.abc import Sequence

from pymongo import ReturnDocument

from app.db.ids import new_id
from app.db.mongo.calls import MongoCalls, Session, key_of, made_by, unless_there
from app.db.mongo.connections import Document
from app.db.mongo.instants import NOW, instant_or_none, now_plus
from app.domain.json_values import check_storable
from app.domain.keys import SHOWN_CHARACTERS, ApiKey, Pending, Scope, digest

_NOTED_SECONDS = 60.0


class MongoKeys(MongoCalls):
    """The part of `DBInterface` about API keys."""

    async def insert_key(
        self,
        name: str,
        key: str,
        scope: Scope,
        *,
        max_pending_jobs: int | None = None,
        max_pending_bytes: int | None = None,
    ) -> ApiKey:
        """See KeyStore."""
        check_storable({"name": name})
        made = {
            "name": name,
            "prefix": key[:SHOWN_CHARACTERS],
            "sha256": digest(key),
            "scopes": [scope.value],
            "max_pending_jobs": max_pending_jobs,
            "max_pending_bytes": max_pending_bytes,
            "last_used_at": None,
            "revoked_at": None,
        }
        async with self._bounded():
            stored = await self._collection("api_keys").find_one_and_update(
                {"_id": new_id()},
                unless_there(made, {"created_at": NOW}),
                upsert=True,
                return_document=ReturnDocument.AFTER,
            )
        return _key(made_by(stored))

    async def find_key(self, sha256: bytes) -> ApiKey | None:
        """See KeyStore."""
        async with self._bounded():
            found = await self._collection("api_keys").find_one(
                {"sha256": sha256, "revoked_at": None}
            )
        return None if found is None else _key(found)

    async def has_keys(self) -> bool:
        """See KeyStore."""
        async with self._bounded():
            return await self._collection("api_keys").find_one({}, {"_id": 1}) is not None

    async def list_keys(self) -> list[ApiKey]:
        """See KeyStore."""
        async with self._bounded():
            found = self._collection("api_keys").find().sort([("_id", 1)])
            return [_key(key) async for key in found]

    async def revoke_key(self, key_id: str) -> bool:
        """See KeyStore."""
        async with self._bounded():
            revoked = await self._collection("api_keys").update_one(
                {"_id": key_of(key_id), "revoked_at": None}, [{"$set": {"revoked_at": NOW}}]
            )
        return bool(revoked.matched_count)

    async def note_key_use(self, key_id: str) -> None:
        """See KeyStore."""
        # Null comes before every number.
        is_old = {"$lt": ["$last_used_at", now_plus(-_NOTED_SECONDS)]}
        async with self._bounded():
            await self._collection("api_keys").update_one(
                {"_id": key_of(key_id), "$expr": is_old}, [{"$set": {"last_used_at": NOW}}]
            )

    async def count_pending(self, submitter: str) -> Pending:
        """See KeyStore."""
        if not submitter:
            return Pending(0, 0)
        async with self._bounded():
            return await self._waiting_of(submitter)

    async def _waiting_of(self, submitter: str, session: Session | None = None) -> Pending:
        sums = {"jobs": {"$sum": 1}, "size_bytes": {"$sum": "$payload_bytes"}}
        groups = await self._collection("jobs").aggregate(
            [
                {"$match": {"submitted_by": submitter, "status": "pending"}},
                {"$group": {"_id": None, **sums}},
            ],
            session=session,
        )
        counted = [group async for group in groups]
        return Pending(counted[0]["jobs"], counted[0]["size_bytes"]) if counted else Pending(0, 0)

    async def count_keys_used(self, submitter: str, idempotency_keys: Sequence[str]) -> int:
        """See KeyStore."""
        async with self._bounded():
            return await self._collection("jobs").count_documents(
                {
                    "submitted_by": submitter,
                    "idempotency_key": {"$in": sorted(set(idempotency_keys))},
                }
            )

    async def count_datasets(self, submitter: str) -> int:
        """See KeyStore."""
        if not submitter:
            return 0
        async with self._bounded():
            return await self._collection("datasets").count_documents(
                {"submitted_by": submitter, "is_whole": True}
            )

    async def get_dataset_submitter(self, dataset_id: str) -> str | None:
        """See KeyStore."""
        return await self._submitter_of("datasets", {"_id": key_of(dataset_id), "is_whole": True})

    async def get_submitter(self, job_id: str) -> str | None:
        """See KeyStore."""
        return await self._submitter_of("jobs", {"_id": key_of(job_id)})

    async def _submitter_of(self, collection: str, which: Document) -> str | None:
        async with self._bounded():
            found = await self._collection(collection).find_one(which, {"submitted_by": 1})
        return None if found is None else str(found["submitted_by"])


def _key(found: Document) -> ApiKey:
    return ApiKey(
        id=found["_id"],
        name=found["name"],
        prefix=found["prefix"],
        scopes=found["scopes"],
        max_pending_jobs=found["max_pending_jobs"],
        max_pending_bytes=found["max_pending_bytes"],
        created_at=instant_or_none(found["created_at"]),
        last_used_at=instant_or_none(found["last_used_at"]),
        revoked_at=instant_or_none(found["revoked_at"]),
    )
