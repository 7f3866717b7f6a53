"""Nodes and their leases in MongoDB: one document a boot of a scheduler, by the server's clock."""

from typing import Final
from uuid import UUID

from app.db.mongo.calls import MongoCalls, key_of, unless_there
from app.db.mongo.connections import Document
from app.db.mongo.instants import NOW, span
from app.domain.jobs import NodeInfo

# A filter: the node has not ended. What has ended never comes back.
ALIVE: Final[Document] = {
    "$expr": {
        "$and": [
            {"$ne": ["$state", "stopped"]},
            {"$gt": [{"$add": ["$heartbeat_at", "$lease"]}, NOW]},
        ]
    }
}


class MongoNodes(MongoCalls):
    """The part of `DBInterface` about nodes and their leases."""

    async def register_node(self, node: NodeInfo) -> None:
        """See DBInterface."""
        made = {
            "name": node.name,
            "pid": node.pid,
            "version": node.version,
            "capacity": node.capacity,
            "lease": span(node.lease_seconds),
            "lease_seconds": node.lease_seconds,
            "state": "active",
            "stopped_at": None,
        }
        async with self._bounded():
            await self._collection("nodes").update_one(
                {"_id": str(UUID(node.id))},
                unless_there(made, {"created_at": NOW, "heartbeat_at": NOW}),
                upsert=True,
            )

    async def renew_node(self, node_id: str) -> bool:
        """See DBInterface."""
        async with self._bounded():
            renewed = await self._collection("nodes").update_one(
                {"_id": key_of(node_id), **ALIVE}, [{"$set": {"heartbeat_at": NOW}}]
            )
        return bool(renewed.matched_count)

    async def drain_node(self, node_id: str) -> None:
        """See DBInterface."""
        async with self._bounded():
            await self._collection("nodes").update_one(
                {"_id": key_of(node_id), "state": "active"}, {"$set": {"state": "draining"}}
            )

    async def deregister_node(self, node_id: str) -> None:
        """See DBInterface."""
        async with self._bounded():
            await self._collection("nodes").update_one(
                {"_id": key_of(node_id)}, [{"$set": {"state": "stopped", "stopped_at": NOW}}]
            )
