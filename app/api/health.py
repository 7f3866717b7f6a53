"""Whether the process is alive and may get traffic."""

from collections.abc import Callable
from http import HTTPStatus

from fastapi.routing import APIRouter

from app.api.openapi import problems
from app.api.problems import Problem
from app.api.schemas import HealthResponse
from app.db.interface import DBInterface


class HealthRoutes:
    """Routes for load balancers and orchestrators.

    Args:
        is_ready: whether it has started and is not about to stop.
    """

    def __init__(self, db: DBInterface, is_ready: Callable[[], bool]) -> None:
        self._db = db
        self._is_ready = is_ready

    def add_to(self, router: APIRouter) -> None:
        """Declare the routes."""
        add = router.add_api_route
        add(
            "/livez",
            self.livez,
            methods=["GET"],
            response_model=HealthResponse,
            summary="Is the process alive",
            tags=["health"],
        )
        add(
            "/readyz",
            self.readyz,
            methods=["GET"],
            response_model=HealthResponse,
            summary="May traffic come here",
            tags=["health"],
            responses=problems(503),
        )

    async def livez(self) -> HealthResponse:
        """The event loop turns; the database is not asked."""
        return HealthResponse()

    async def readyz(self) -> HealthResponse:
        """The database answers and the process is not about to stop."""
        if not self._is_ready():
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "not-ready", "starting or stopping")
        await self._db.ping()
        return HealthResponse()
