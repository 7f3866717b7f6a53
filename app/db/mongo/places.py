"""Queues and nodes as those see them in MongoDB who hold them up."""

from typing import Any, Final

from pymongo.asynchronous.cursor import AsyncCursor

from app.db.mongo.calls import key_of
from app.db.mongo.connections import Document
from app.db.mongo.instants import NOW, instant, instant_or_none, seconds
from app.db.mongo.nodes import ALIVE, MongoNodes
from app.domain.errors import NodeGoneError, NodeNotFoundError
from app.domain.jobs import WakeUp
from app.domain.json_values import check_storable
from app.domain.managing import MAX_COUNTED, NodeState, QueueState

_IS_DUE: Final = {"$lte": ["$run_at", NOW]}


class MongoPlaces(MongoNodes):
    """The part of `DBInterface` about queues and nodes."""

    async def list_queues(self, limit: int, after: str = "") -> list[QueueState]:
        """See DBInterface."""
        check_storable({"after": after})
        if limit < 1:
            return []  # to the server none means all
        async with self._bounded():
            paused = {q["_id"]: q["is_paused"] async for q in self._paused_after(after, limit)}
            waiting = await self._waiting_after(after, limit)
            busy = await self._busy_after(after)
            names = sorted(paused.keys() | waiting | busy.keys())[:limit]
            return [
                _queue(
                    name,
                    await self._waiting(name) if name in waiting else None,
                    busy.get(name, 0),
                    is_paused=paused.get(name, False),
                )
                for name in names
            ]

    def _paused_after(self, after: str, limit: int) -> AsyncCursor[Document]:
        found = self._collection("queues").find({"_id": {"$gt": after}})
        return found.sort([("_id", 1)]).limit(limit)

    async def _waiting_after(self, after: str, limit: int) -> set[str]:
        """The next queues after this one where something waits, one step of the index each."""
        names: set[str] = set()
        while len(names) < limit:
            found = await self._collection("jobs").find_one(
                {"status": "pending", "queue": {"$gt": after}},
                {"queue": 1},
                sort=[("queue", 1)],
                hint="queue",
            )
            if found is None:
                break
            after = found["queue"]
            names.add(after)
        return names

    async def _busy_after(self, after: str) -> dict[str, int]:
        """How many jobs run of each queue after this one."""
        groups = await self._collection("jobs").aggregate(
            [
                {"$match": {"status": "running", "queue": {"$gt": after}}},
                {"$group": {"_id": "$queue", "n": {"$sum": 1}}},
            ]
        )
        return {group["_id"]: group["n"] async for group in groups}

    async def _waiting(self, queue: str) -> Document | None:
        """What waits in a queue: the MAX_COUNTED that come first, and whether there are more."""
        groups = await self._collection("jobs").aggregate(
            [
                {"$match": {"status": "pending", "queue": queue}},
                {"$sort": {"priority": -1, "run_at": 1, "_id": 1}},
                {"$limit": MAX_COUNTED + 1},
                {
                    "$facet": {
                        "first": [{"$limit": MAX_COUNTED}, {"$group": _WAITING}],
                        "rest": [{"$skip": MAX_COUNTED}, {"$count": "n"}],
                    }
                },
                {"$set": {"now": NOW}},
            ]
        )
        [found] = [group async for group in groups]
        if not found["first"]:
            return None
        [first] = found["first"]
        return {**first, "now": found["now"], "is_exact": not found["rest"]}

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
            await self._collection("queues").update_one(
                {"_id": name}, {"$set": {"is_paused": False}}
            )
        self._request_wake_up(WakeUp.JOBS)

    async def list_nodes(
        self, limit: int, behind: tuple[bool, str] | None = None
    ) -> list[NodeState]:
        """See DBInterface."""
        if behind is None:
            return await self._nodes({}, limit)
        is_alive, key = behind[0], key_of(behind[1])
        after_it = [
            {"$lt": ["$is_alive", is_alive]},
            {"$and": [{"$eq": ["$is_alive", is_alive]}, {"$lt": ["$_id", key]}]},
        ]
        return await self._nodes({"$expr": {"$or": after_it}}, limit)

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
        found = await self._nodes({"_id": key}, 1)
        if not found:
            raise NodeNotFoundError(node_id)
        if not is_set.matched_count:
            raise NodeGoneError(node_id, found[0].state)
        return found[0]

    async def _nodes(self, which: Document, limit: int) -> list[NodeState]:
        """Nodes: those that live first, the newest of both kinds first."""
        if limit < 1:
            return []  # to the server none means all
        async with self._bounded():
            busy = await self._collection("jobs").aggregate(
                [
                    {"$match": {"status": "running"}},
                    {"$group": {"_id": "$node_id", "n": {"$sum": 1}}},
                ]
            )
            running = {group["_id"]: group["n"] async for group in busy}
            found = await self._collection("nodes").aggregate(
                [
                    {"$set": {"is_alive": ALIVE["$expr"], "now": NOW}},
                    {"$match": which},
                    {"$sort": {"is_alive": -1, "_id": -1}},
                    {"$limit": limit},
                ]
            )
            return [_node(node, running.get(node["_id"], 0)) async for node in found]


_WAITING: Final[Document] = {
    "_id": None,
    "n": {"$sum": 1},
    "scheduled": {"$sum": {"$cond": [_IS_DUE, 0, 1]}},
    "oldest": {"$min": {"$cond": [_IS_DUE, "$run_at", None]}},
}


def _queue(name: str, waiting: Document | None, running: int, *, is_paused: bool) -> QueueState:
    nothing = {"n": 0, "scheduled": 0, "oldest": None, "is_exact": True}
    waits: dict[str, Any] = waiting or nothing
    oldest = waits["oldest"]
    return QueueState(
        name=name,
        is_paused=is_paused,
        pending=waits["n"],
        scheduled=waits["scheduled"],
        running=running,
        oldest_pending_seconds=None if oldest is None else seconds(waits["now"] - oldest),
        is_exact=waits["is_exact"],
    )


def _node(found: Document, running: int) -> NodeState:
    is_lost = found["state"] != "stopped" and not found["is_alive"]
    return NodeState(
        id=found["_id"],
        name=found["name"],
        pid=found["pid"],
        version=found["version"],
        state="lost" if is_lost else found["state"],
        capacity=found["capacity"],
        running=running,
        lease_seconds=found["lease_seconds"],
        heartbeat_seconds=seconds(found["now"] - found["heartbeat_at"]),
        started_at=instant(found["created_at"]),
        stopped_at=instant_or_none(found["stopped_at"]),
    )
