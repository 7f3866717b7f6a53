"""Claiming in MongoDB: the one place where a job gets an owner.

A claim is one update of one document, so a job has one claimer whatever happens around it. A batch
is a walk along the index of what waits, an update of what was found there and is still pending, and
a look at what became of it: others that came in between took theirs, and the walk begins again.

An update waits for the end of a transaction that has changed its document, and whoever began that
may have stopped. So the server gives it a moment only; then jobs are claimed one by one, each in a
transaction, which meets a held document as a conflict and does not wait: that one is passed over.
"""

from collections.abc import Sequence
from typing import Final

from bson import MinKey
from pymongo import ReturnDocument
from pymongo.errors import (
    AutoReconnect,
    ExecutionTimeout,
    OperationFailure,
    WriteConcernError,
    WriteError,
)
from pymongo.read_concern import ReadConcern

from app.db.ids import new_id
from app.db.mongo.calls import MongoCalls, key_of, literal
from app.db.mongo.connections import WRITE_CONFLICT, Document
from app.db.mongo.documents import NEW_ATTEMPT, RUNNING, running_of, with_event
from app.db.mongo.instants import NOW, instant
from app.db.mongo.nodes import ALIVE
from app.db.mongo.texts import unpacked
from app.domain.jobs import INLINE_PAYLOAD_BYTES, ClaimedJob, JobStatus, RunningJob

_ORDER: Final = [("priority", -1), ("run_at", 1), ("_id", 1)]
# Said, not left to the planner: a plan that it has kept from a short queue sorts a long one.
_INDEX: Final = "due"
# Our own transactions hold a job for milliseconds, also on a machine that is very busy.
HELD_SECONDS: Final = 0.5
# Beside those that are wanted: others may hold as many as two pages of a change of many.
_PASSED_OVER: Final = 400
# Twice: a primary that was lost in the middle of a claim has a successor soon.
_TRIES: Final = 2

_CLAIMED: Final[Document] = {
    "claim_no": 1,
    "pipeline": 1,
    "attempt": 1,
    "max_attempts": 1,
    "node_losses": 1,
    "timeout_seconds": 1,
    "start_timeout_seconds": 1,
    "stall_seconds": 1,
    "memory_limit_bytes": 1,
    "started_at": 1,
    "priority": 1,
    "run_at": 1,
}


class _HeldUpError(Exception):
    """The server has given up in the middle; `claimed` are those that it had come to."""

    def __init__(self, claimed: list[Document]) -> None:
        super().__init__(claimed)
        self.claimed = claimed


class MongoClaiming(MongoCalls):
    """The part of `DBInterface` about claims and what runs."""

    async def claim_next_pending_job(
        self, node_id: str, pipelines: Sequence[str] | None = None
    ) -> ClaimedJob | None:
        """See DBInterface."""
        claimed = await self.claim_pending_jobs(node_id, 1, pipelines)
        return claimed[0] if claimed else None

    async def claim_pending_jobs(
        self, node_id: str, limit: int, pipelines: Sequence[str] | None = None
    ) -> list[ClaimedJob]:
        """See DBInterface."""
        node_id = key_of(node_id)
        async with self._bounded():
            claimer = await self._claimer(node_id)
            if claimer is None or limit < 1:
                return []
            due = await self._due(claimer, pipelines)
            claimed: list[Document] = []
            while len(claimed) < limit:
                try:
                    some = (
                        await self._claim_first(due, node_id)
                        if limit == 1
                        else await self._claim_some(due, node_id, limit - len(claimed))
                    )
                except _HeldUpError as met:
                    claimed += met.claimed
                    await self._end_abandoned()
                    claimed += await self._claim_free(due, node_id, limit - len(claimed))
                    break
                if some is None:
                    break
                if not some and await self._claimer(node_id) is None:
                    break  # nobody took them: the lease has ended meanwhile
                claimed += some
            claimed.sort(key=lambda job: (-job["priority"], job["run_at"], job["_id"]))
            payloads = await self._inline_payloads([job["_id"] for job in claimed])
        return [_claimed_job(job, payloads.get(job["_id"])) for job in claimed]

    async def count_running_jobs(self, node_id: str | None = None) -> int:
        """See DBInterface."""
        on_node = {} if node_id is None else {"node_id": key_of(node_id)}
        async with self._bounded():
            return await self._collection("jobs").count_documents({"status": "running", **on_node})

    async def list_running_jobs(self, node_id: str) -> list[RunningJob]:
        """See DBInterface."""
        async with self._bounded():
            found = self._collection("jobs").find(
                {"status": "running", "node_id": key_of(node_id)}, RUNNING
            )
            return [running_of(job) async for job in found]

    async def list_lost_jobs(self, limit: int) -> list[RunningJob]:
        """See DBInterface."""
        if limit < 1:
            return []  # to the server none means all
        async with self._bounded():
            # In this order: a node is there before any job that it runs.
            found = await self._collection("jobs").aggregate(
                [
                    {"$match": {"status": "running"}},
                    {"$sort": {"started_at": 1, "_id": 1}},
                    {
                        "$lookup": {
                            "from": "nodes",
                            "localField": "node_id",
                            "foreignField": "_id",
                            "pipeline": [{"$match": ALIVE}],
                            "as": "alive",
                        }
                    },
                    {"$match": {"alive": []}},
                    {"$limit": limit},
                    {"$project": RUNNING},
                ]
            )
            return [running_of(job) async for job in found]

    async def _claimer(self, node_id: str) -> Document | None:
        """The server's clock and the end of the node's lease, None where it may claim nothing."""
        return await self._collection("nodes").find_one(
            {"_id": node_id, "state": "active", **ALIVE},
            {"now": NOW, "lease_end": {"$add": ["$heartbeat_at", "$lease"]}},
        )

    async def _due(self, claimer: Document, pipelines: Sequence[str] | None) -> Document:
        """The filter of what may be claimed."""
        due: Document = {
            "status": "pending",
            # All of them, and said nevertheless: where the index's first field is not bound, the
            # server binds none, and reads what is not due and what is another's.
            "priority": {"$gte": MinKey()},
            "run_at": {"$lte": claimer["now"]},
            # A process may stop between two commands for longer than its lease.
            "$expr": {"$gt": [claimer["lease_end"], NOW]},
        }
        if pipelines is not None:
            due["pipeline"] = {"$in": list(pipelines)}
        paused = [q["_id"] async for q in self._collection("queues").find({"is_paused": True})]
        if paused:
            due["queue"] = {"$nin": paused}
        return due

    async def _claim_first(self, due: Document, node_id: str) -> list[Document] | None:
        token = new_id()
        try:
            async with self._limited_by_server(HELD_SECONDS) as limit:
                claimed = await self._collection("jobs").find_one_and_update(
                    due,
                    _opening(node_id, token),
                    sort=_ORDER,
                    hint=_INDEX,
                    projection=_CLAIMED,
                    return_document=ReturnDocument.AFTER,
                    **limit,
                )
        except ExecutionTimeout:
            raise _HeldUpError(await self._claimed_by(node_id, token)) from None
        return None if claimed is None else [claimed]

    async def _claim_some(self, due: Document, node_id: str, limit: int) -> list[Document] | None:
        """At most `limit` jobs, [] where others took all that was found, None where nothing is."""
        jobs = self._collection("jobs")
        found = await self._first(due, limit)
        if not found:
            return None
        # Names this very update: where its answer got lost, what it has claimed is found by it.
        token = new_id()
        for tries_left in reversed(range(_TRIES)):
            try:
                # Asked again whether they are due: meanwhile others may have had one of them, and
                # given it back for later.
                await self._update_many_jobs(
                    {"_id": {"$in": found}, **due}, _opening(node_id, token)
                )
                ours = jobs.find({"_id": {"$in": found}, **_made_by(node_id, token)}, _CLAIMED)
                return [job async for job in ours]
            except ExecutionTimeout:
                raise _HeldUpError(await self._claimed_by(node_id, token)) from None
            except AutoReconnect:
                if not tries_left:
                    raise
        raise AssertionError  # the last try returns or raises

    async def _first(self, due: Document, limit: int) -> list[str]:
        """The ids of the first that are due."""
        found = self._collection("jobs").find(indexed(due), {"_id": 1}, hint=_INDEX)
        return [job["_id"] async for job in found.sort(_ORDER).limit(limit)]

    async def _update_many_jobs(self, which: Document, update: list[Document]) -> None:
        """As the driver's `update_many`, which knows no limit but its own."""
        jobs = self._collection("jobs")
        async with self._limited_by_server(HELD_SECONDS) as limit:
            said = await self._database().command(
                "update",
                jobs.name,
                updates=[{"q": which, "u": update, "multi": True, "hint": {"_id": 1}}],
                writeConcern=jobs.write_concern.document,
                **limit,
            )
            for error in said.get("writeErrors", []):
                raise WriteError(error["errmsg"], error["code"], error)
            if error := said.get("writeConcernError"):
                raise WriteConcernError(error["errmsg"], error["code"], error)

    async def _claimed_by(self, node_id: str, token: str) -> list[Document]:
        """What an update had claimed before the server gave it up."""
        jobs, ours = self._collection("jobs"), _made_by(node_id, token)
        # A majority has this write when it is answered, and so whatever came before it.
        await jobs.update_many(ours, {"$inc": {"writes": 1}})
        return [job async for job in jobs.find(ours, _CLAIMED)]

    async def _claim_free(self, due: Document, node_id: str, limit: int) -> list[Document]:
        """At most `limit` jobs, one by one, but none that is in the hands of somebody else."""
        if not limit:
            return []
        jobs, claimed = self._collection("jobs"), list[Document]()
        async with self._connected().start_session() as session:
            for key in await self._first(due, limit + _PASSED_OVER):
                if len(claimed) == limit:
                    break
                try:
                    async with await session.start_transaction(ReadConcern("snapshot")):
                        job = await jobs.find_one_and_update(
                            {"_id": key, **due},
                            _opening(node_id, new_id()),
                            hint=[("_id", 1)],
                            projection=_CLAIMED,
                            return_document=ReturnDocument.AFTER,
                            session=session,
                        )
                except OperationFailure as error:
                    if error.code != WRITE_CONFLICT:
                        raise
                    continue
                if job is not None:
                    claimed.append(job)
        return claimed

    async def _inline_payloads(self, ids: Sequence[str]) -> dict[str, str]:
        """Payloads that may cross to a worker; each of them is one piece."""
        if not ids:
            return {}
        found = self._collection("job_payloads").find(
            {"job_id": {"$in": list(ids)}, "n": 0, "text_bytes": {"$lte": INLINE_PAYLOAD_BYTES}}
        )
        return {piece["job_id"]: (await unpacked([piece])).decode() async for piece in found}


def _opening(node_id: str, token: str) -> list[Document]:
    """The update that makes a pending job this node's and opens its attempt.

    claim_no is the fencing number: it only grows, whatever becomes of the job.
    """
    attempt = {"$add": ["$attempt", 1]}
    opened = {
        **{name: literal(value) for name, value in NEW_ATTEMPT.items()},
        "claim_no": "$claim_no",
        "attempt": "$attempt",
        "node_id": node_id,
        "started_at": "$started_at",
        "token": token,
    }
    return [
        {
            "$set": {
                "status": JobStatus.RUNNING.value,
                "claim_no": {"$add": ["$claim_no", 1]},
                "attempt": attempt,
                "node_id": node_id,
                "started_at": NOW,
                "finished_at": None,
                **with_event(JobStatus.RUNNING.value, attempt),
            }
        },
        # As an expression it takes the place of the attempt before; `$set` would merge the two.
        {"$set": {"latest": {"$mergeObjects": [opened]}}},
    ]


def indexed(due: Document) -> Document:
    """What the claim's index alone can tell, and so all that a look needs; the update asks more."""
    return {name: wanted for name, wanted in due.items() if name != "$expr"}


def _made_by(node_id: str, token: str) -> Document:
    """The filter of what one update has claimed."""
    return {"status": "running", "node_id": node_id, "latest.token": token}


def _claimed_job(job: Document, payload: str | None) -> ClaimedJob:
    return ClaimedJob(
        id=job["_id"],
        claim_no=job["claim_no"],
        pipeline=job["pipeline"],
        attempt=job["attempt"],
        max_attempts=job["max_attempts"],
        node_losses=job["node_losses"],
        timeout_seconds=job["timeout_seconds"],
        start_timeout_seconds=job["start_timeout_seconds"],
        stall_seconds=job["stall_seconds"],
        memory_limit_bytes=job["memory_limit_bytes"],
        claimed_at=instant(job["started_at"]),
        payload=payload,
    )
