"""Whether the process is alive, has started, and may get traffic."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from fastapi.routing import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from app.api.openapi import problems
from app.api.problems import RETRY_AFTER_SECONDS, Problem
from app.db.interface import DBInterface
from app.domain.health import VitalSigns

# A pass of a loop starts workers one after the other, each within 10 s; none takes this long.
STUCK_SECONDS: Final = 300.0


class AliveResponse(BaseModel):
    """The process is well."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "ok"}]})

    status: str = "ok"


class ReadyResponse(BaseModel):
    """The process may get traffic."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "status": "ok",
                    "database": "ok",
                    "schema": "0004",
                    "scheduler": "running",
                    "wake_ups": "listening",
                }
            ]
        }
    )

    status: str = "ok"
    database: str = "ok"
    schema_: str | None = Field(alias="schema", description="Revision of the database's schema.")
    scheduler: str = Field(description='"running", or "none" in a process that serves HTTP alone.')
    wake_ups: str | None = Field(
        description='"listening", or "polling" while new jobs wait for the next poll; null without '
        "a scheduler."
    )


class HealthRoutes:
    """Routes for load balancers and orchestrators; they need no key.

    Args:
        has_started: whether it has once been ready for work.
        is_ready: whether it has started and is not about to stop.
        vital_signs: of the scheduler beside it, None without one.
        wanted_revision: of the schema, None where any will do.
    """

    def __init__(
        self,
        db: DBInterface,
        *,
        has_started: Callable[[], bool],
        is_ready: Callable[[], bool],
        vital_signs: Callable[[], VitalSigns] | None,
        wanted_revision: str | None,
    ) -> None:
        self._db = db
        self._has_started = has_started
        self._is_ready = is_ready
        self._vital_signs = vital_signs
        self._wanted_revision = wanted_revision

    def add_to(self, router: APIRouter) -> None:
        """Declare the routes."""
        routes: tuple[tuple[str, Callable[[], Awaitable[BaseModel]], type[BaseModel], str], ...]
        routes = (
            ("/livez", self.livez, AliveResponse, "Is the process alive"),
            ("/startupz", self.startupz, AliveResponse, "Has the process started"),
            ("/readyz", self.readyz, ReadyResponse, "May traffic come here"),
        )
        for path, handler, model, summary in routes:
            router.add_api_route(
                path,
                handler,
                methods=["GET"],
                response_model=model,
                summary=summary,
                tags=["health"],
                responses=problems(503),
            )

    async def livez(self) -> AliveResponse:
        """The event loop turns and the scheduler's loops get on; the database is not asked."""
        signs = self._vital_signs and self._vital_signs()
        if signs and signs.dead_loops:
            raise _unavailable("stuck", f"loops have ended: {', '.join(signs.dead_loops)}")
        if signs and signs.slowest_pass_seconds > STUCK_SECONDS:
            told = f"a loop has not come round for {signs.slowest_pass_seconds:.0f} s"
            raise _unavailable("stuck", told)
        return AliveResponse()

    async def startupz(self) -> AliveResponse:
        """The process has come up, and stays so whatever comes later."""
        if not self._has_started():
            raise _unavailable("not-ready", "starting")
        return AliveResponse()

    async def readyz(self) -> ReadyResponse:
        """The database answers with the right schema, and the process is not about to stop."""
        signs = self._vital_signs and self._vital_signs()
        if not self._is_ready() or (signs and signs.is_draining):
            raise _unavailable("not-ready", "starting or stopping")
        await self._db.ping()
        revision = await self._db.schema_revision()
        if self._wanted_revision not in {None, revision}:
            told = f"the schema is at {revision}, this program needs {self._wanted_revision}"
            raise _unavailable("wrong-schema", told)
        if signs is None:
            return ReadyResponse(schema=revision, scheduler="none", wake_ups=None)
        wake_ups = "listening" if signs.is_listening else "polling"
        return ReadyResponse(schema=revision, scheduler="running", wake_ups=wake_ups)


def _unavailable(kind: str, detail: str) -> Problem:
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, kind, detail, headers=headers)
