"""Nodes: who runs jobs, and letting one run out of them."""

from datetime import datetime
from typing import Annotated, Final, Literal

from fastapi import Query, Request, Response
from fastapi.routing import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from app.api.links import NEXT_PAGE, link_to_next, next_page
from app.api.openapi import headers, problems
from app.db.interface import DBInterface
from app.domain.managing import DEFAULT_PAGE, MAX_PAGE, NodeState

# The first word says in which part of the list the id is.
_LIVE: Final = "live"
_CURSOR: Final = rf"^({_LIVE}|ended)\.[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}$"


class NodeResponse(BaseModel):
    """One boot of one scheduler."""

    model_config = ConfigDict(
        from_attributes=True,
        json_schema_extra={
            "examples": [
                {
                    "id": "019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a12",
                    "name": "worker-1",
                    "pid": 4711,
                    "version": "0.1.0",
                    "state": "active",
                    "capacity": 4,
                    "running": 2,
                    "lease_seconds": 15.0,
                    "heartbeat_seconds": 1.2,
                    "started_at": "2026-11-30T09:00:00Z",
                    "stopped_at": None,
                }
            ]
        },
    )

    id: str
    name: str
    pid: int
    version: str
    state: Literal["active", "draining", "stopped", "lost"] = Field(
        description="`lost`: it has not renewed its lease in time; its jobs go to others."
    )
    capacity: int = Field(description="Jobs that it runs at once.")
    running: int
    lease_seconds: float
    heartbeat_seconds: float = Field(description="Since it was last heard of.")
    started_at: datetime
    stopped_at: datetime | None


class NodeListResponse(BaseModel):
    """A page of the nodes that are known; those that live come first, then the newest."""

    items: list[NodeResponse]
    next: str | None = Field(
        description="Where the next page is; null where nothing is left.",
        examples=["/nodes?cursor=live.019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a12"],
    )


class NodeRoutes:
    """Routes below `/nodes`."""

    def __init__(self, db: DBInterface) -> None:
        self._db = db

    def add_to(self, router: APIRouter) -> None:
        """Declare the routes."""
        add = router.add_api_route
        add(
            "/nodes",
            self.list_nodes,
            methods=["GET"],
            response_model=NodeListResponse,
            summary="Nodes and what they run",
            tags=["nodes"],
            responses={200: {"headers": headers(Link=NEXT_PAGE)}, **problems(422, 503)},
        )
        add(
            "/nodes/{node_id}/drain",
            self.drain_node,
            methods=["POST"],
            response_model=NodeResponse,
            summary="Let a node run out of jobs",
            tags=["nodes"],
            responses=problems(404, 409, 503),
        )
        add(
            "/nodes/{node_id}/resume",
            self.resume_node,
            methods=["POST"],
            response_model=NodeResponse,
            summary="Let a node claim jobs again",
            tags=["nodes"],
            responses=problems(404, 409, 503),
        )

    async def list_nodes(
        self,
        http: Request,
        response: Response,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = DEFAULT_PAGE,
        cursor: Annotated[
            str | None, Query(pattern=_CURSOR, description="Of the `next` of the page before.")
        ] = None,
    ) -> NodeListResponse:
        """Every start of a scheduler is a node of its own; ended ones go after a week.

        One that ends between two pages may be told twice, never left out.
        """
        behind = None if cursor is None else _place_of(cursor)
        found = await self._db.list_nodes(limit + 1, behind)
        more = next_page(http, cursor=_cursor_of(found[limit - 1])) if len(found) > limit else None
        link_to_next(response, more)
        nodes = [NodeResponse.model_validate(node) for node in found[:limit]]
        return NodeListResponse(items=nodes, next=more)

    async def drain_node(self, node_id: str) -> NodeResponse:
        """It claims nothing more and finishes what it runs. Twice is harmless.

        A node that loses its lease or is restarted comes back as another one, which claims.
        """
        return NodeResponse.model_validate(await self._db.hold_node(node_id))

    async def resume_node(self, node_id: str) -> NodeResponse:
        """It claims again, at once where jobs are due. Twice is harmless."""
        return NodeResponse.model_validate(await self._db.resume_node(node_id))


def _cursor_of(node: NodeState) -> str:
    return f"{_LIVE if node.is_alive else 'ended'}.{node.id}"


def _place_of(cursor: str) -> tuple[bool, str]:
    part, _, node_id = cursor.partition(".")
    return part == _LIVE, node_id
