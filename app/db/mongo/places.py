"""Queues and nodes as those see them in MongoDB who hold them up."""

from typing import Any, Final

from app.db.mongo.calls import key_of
from app.db.mongo.connections import Document
from app.db.mongo.instants import NOW, instant, instant_or_none, seconds
from app.db.mongo.nodes import ALIVE, MongoNodes
from app.domain.errors import NodeGoneError, NodeNotFoundError
from app.domain.jobs import WakeUp
from app.domain.json_values import check_storable
from app.domain.managing import MAX_LISTED_NODES, MAX_LISTED_QUEUES, NodeState, QueueState

_IS_DUE: Final = {"$lte": ["$run_at", NOW]}


class MongoPlaces(MongoNodes):
    """The part of `DBInterface` about queues and nodes."""

    async def list_queues(self) -> list[QueueState]:
        """See DBInterface."""
        async with self._bounded():
            paused = {queue["_id"] async for queue in self._collection("queues").find()}
            waiting = await self._by("queue", "pending", _WAITING, {"now": NOW})
            busy = await self._by("queue", "running", {"n": {"$sum": 1}})
        names = sorted(paused | waiting.keys() | busy.keys())[:MAX_LISTED_QUEUES]
        return [
            _queue(name, waiting.get(name), busy.get(name), is_paused=name in paused)
            for name in names
        ]

    async def pause_queue(self, name: str) -> None:
        """See DBInterface."""
        check_storable(name)
        async with self._bounded():
            await self._collection("queues").update_one(
                {"_id": name}, {"$set": {"is_paused": True}}, upsert=True
            )

    async def resume_queue(self, name: str) -> None:
        """See DBInterface."""
        check_storable(name)
        async with self._bounded():
            await self._collection("queues").delete_one({"_id": name})
        self._request_wake_up(WakeUp.JOBS)

    async def list_nodes(self) -> list[NodeState]:
        """See DBInterface."""
        return await self._nodes({})

    async def hold_node(self, node_id: str) -> NodeState:
        """See DBInterface."""
        return await self._set_node(node_id, "draining")

    async def resume_node(self, node_id: str) -> NodeState:
        """See DBInterface."""
        node = await self._set_node(node_id, "active")
        self._request_wake_up(WakeUp.JOBS)
        return node

    async def _set_node(self, node_id: str, state: str) -> NodeState:
        key = key_of(node_id)
        async with self._bounded():
            is_set = await self._collection("nodes").update_one(
                {"_id": key, **ALIVE}, {"$set": {"state": state}}
            )
        found = await self._nodes({"_id": key})
        if not found:
            raise NodeNotFoundError(node_id)
        if not is_set.matched_count:
            raise NodeGoneError(node_id, found[0].state)
        return found[0]

    async def _nodes(self, which: Document) -> list[NodeState]:
        """Nodes: those that live first, the newest first."""
        async with self._bounded():
            running = await self._by("node_id", "running", {"n": {"$sum": 1}})
            found = await self._collection("nodes").aggregate(
                [
                    {"$match": which},
                    {"$set": {"is_alive": ALIVE["$expr"], "now": NOW}},
                    {"$sort": {"is_alive": -1, "created_at": -1, "_id": 1}},
                    {"$limit": MAX_LISTED_NODES},
                ]
            )
            return [_node(node, running.get(node["_id"])) async for node in found]

    async def _by(
        self, name: str, status: str, sums: Document, more: Document | None = None
    ) -> dict[str, Document]:
        """What `sums` come to over the jobs in a status, by the value of a field."""
        groups = await self._collection("jobs").aggregate(
            [
                {"$match": {"status": status}},
                {"$group": {"_id": f"${name}", **sums}},
                {"$set": more or {"_id": "$_id"}},
            ]
        )
        return {group["_id"]: group async for group in groups}


_WAITING: Final[Document] = {
    "n": {"$sum": 1},
    "scheduled": {"$sum": {"$cond": [_IS_DUE, 0, 1]}},
    "oldest": {"$min": {"$cond": [_IS_DUE, "$run_at", None]}},
}


def _queue(
    name: str, waiting: Document | None, busy: Document | None, *, is_paused: bool
) -> QueueState:
    waits: dict[str, Any] = waiting or {"n": 0, "scheduled": 0, "oldest": None}
    oldest = waits["oldest"]
    return QueueState(
        name=name,
        is_paused=is_paused,
        pending=waits["n"],
        scheduled=waits["scheduled"],
        running=busy["n"] if busy else 0,
        oldest_pending_seconds=None if oldest is None else seconds(waits["now"] - oldest),
    )


def _node(found: Document, running: Document | None) -> NodeState:
    is_lost = found["state"] != "stopped" and not found["is_alive"]
    return NodeState(
        id=found["_id"],
        name=found["name"],
        pid=found["pid"],
        version=found["version"],
        state="lost" if is_lost else found["state"],
        capacity=found["capacity"],
        running=running["n"] if running else 0,
        lease_seconds=found["lease_seconds"],
        heartbeat_seconds=seconds(found["now"] - found["heartbeat_at"]),
        started_at=instant(found["created_at"]),
        stopped_at=instant_or_none(found["stopped_at"]),
    )
