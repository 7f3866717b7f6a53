"""Claiming in MongoDB: the one place where a job gets an owner.

A claim is one update of one document, so a job has one claimer whatever happens around it. A batch
is a walk along the index of what waits, an update of what was found there and is still pending, and
a look at what became of it: others that came in between took theirs, and the walk begins again.
"""

from collections.abc import Sequence
from typing import Final

from pymongo import ReturnDocument
from pymongo.errors import AutoReconnect

from app.db.ids import new_id
from app.db.mongo.calls import MongoCalls, literal
from app.db.mongo.connections import Document
from app.db.mongo.documents import NEW_ATTEMPT, RUNNING, running_of, with_event
from app.db.mongo.instants import NOW, instant
from app.db.mongo.nodes import ALIVE
from app.db.mongo.texts import unpacked
from app.domain.jobs import INLINE_PAYLOAD_BYTES, ClaimedJob, JobStatus, RunningJob

_ORDER: Final = [("priority", -1), ("run_at", 1), ("_id", 1)]
# Said, not left to the planner: a plan that it has kept from a short queue sorts a long one.
_INDEX: Final = "claim"
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
}


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
        async with self._bounded():
            claimer = await self._claimer(node_id)
            if claimer is None or limit < 1:
                return []
            due = await self._due(claimer, pipelines)
            claimed: list[Document] = []
            while len(claimed) < limit:
                some = (
                    await self._claim_first(due, node_id)
                    if limit == 1
                    else await self._claim_some(due, node_id, limit - len(claimed))
                )
                if some is None:
                    break
                claimed += some
            claimed.sort(key=lambda job: (-job["priority"], job["run_at"], job["_id"]))
            payloads = await self._inline_payloads([job["_id"] for job in claimed])
        return [_claimed_job(job, payloads.get(job["_id"])) for job in claimed]

    async def count_running_jobs(self, node_id: str | None = None) -> int:
        """See DBInterface."""
        on_node = {} if node_id is None else {"node_id": node_id}
        async with self._bounded():
            return await self._collection("jobs").count_documents({"status": "running", **on_node})

    async def list_running_jobs(self, node_id: str) -> list[RunningJob]:
        """See DBInterface."""
        async with self._bounded():
            found = self._collection("jobs").find(
                {"status": "running", "node_id": node_id}, RUNNING
            )
            return [running_of(job) async for job in found]

    async def list_lost_jobs(self, limit: int) -> list[RunningJob]:
        """See DBInterface."""
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
        """The filter of what may be claimed; its first condition is that of the claim's index."""
        due: Document = {
            "status": "pending",
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
        claimed = await self._collection("jobs").find_one_and_update(
            due,
            _opening(node_id, new_id()),
            sort=_ORDER,
            hint=_INDEX,
            projection={**_CLAIMED, "priority": 1, "run_at": 1},
            return_document=ReturnDocument.AFTER,
        )
        return None if claimed is None else [claimed]

    async def _claim_some(self, due: Document, node_id: str, limit: int) -> list[Document] | None:
        """At most `limit` jobs, [] where others took all that was found, None where nothing is."""
        jobs = self._collection("jobs")
        found = [
            job["_id"]
            async for job in jobs.find(due, {"_id": 1}, hint=_INDEX).sort(_ORDER).limit(limit)
        ]
        if not found:
            return None
        # Names this very update: where its answer got lost, what it has claimed is found by it.
        token = new_id()
        for tries_left in reversed(range(_TRIES)):
            try:
                await jobs.update_many(
                    {"_id": {"$in": found}, "status": "pending", "$expr": due["$expr"]},
                    _opening(node_id, token),
                )
                ours = jobs.find(
                    {"_id": {"$in": found}, "status": "running", "latest.token": token},
                    {**_CLAIMED, "priority": 1, "run_at": 1},
                )
                return [job async for job in ours]
            except AutoReconnect:
                if not tries_left:
                    raise
        raise AssertionError  # the last try returns or raises

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
