"""Pipelines: what jobs may name, and the payloads that they take."""

from collections.abc import Mapping
from typing import Any

from fastapi.routing import APIRouter
from pydantic import BaseModel, Field

from app.domain.jobs import Registration


class PipelineDefaultsResponse(BaseModel):
    """What holds for jobs that say nothing themselves; null: the service's own default."""

    max_attempts: int = Field(description="1 where nobody says more.")
    timeout_seconds: float | None
    start_timeout_seconds: float | None
    stall_seconds: float | None
    memory_limit_bytes: int | None


class PipelineResponse(BaseModel):
    """A registered pipeline."""

    name: str
    is_default: bool = Field(description="Whether it takes jobs that name none.")
    description: str | None
    defaults: PipelineDefaultsResponse
    payload_schema: dict[str, Any] | None = Field(
        description="JSON schema of its payloads, as the pipeline declares it. It is told, not "
        "enforced: the pipeline itself checks what it gets."
    )


class PipelineListResponse(BaseModel):
    """All registered pipelines, by name."""

    items: list[PipelineResponse]


class PipelineRoutes:
    """`GET /pipelines`.

    Args:
        pipelines: by registered name; None where any name is accepted.
    """

    def __init__(
        self, pipelines: Mapping[str, Registration] | None, default_pipeline: str | None
    ) -> None:
        known = sorted((pipelines or {}).values(), key=lambda registration: registration.name)
        self._answer = PipelineListResponse(
            items=[_told(each, is_default=each.name == default_pipeline) for each in known]
        )

    def add_to(self, router: APIRouter) -> None:
        """Declare the route."""
        router.add_api_route(
            "/pipelines",
            self.list_pipelines,
            methods=["GET"],
            response_model=PipelineListResponse,
            summary="Pipelines and their payloads",
            tags=["pipelines"],
        )

    async def list_pipelines(self) -> PipelineListResponse:
        """What was registered when this process started."""
        return self._answer


def _told(registration: Registration, *, is_default: bool) -> PipelineResponse:
    limits = registration.limits
    return PipelineResponse(
        name=registration.name,
        is_default=is_default,
        description=registration.description,
        defaults=PipelineDefaultsResponse(
            max_attempts=registration.max_attempts or 1,
            timeout_seconds=limits.timeout_seconds,
            start_timeout_seconds=limits.start_timeout_seconds,
            stall_seconds=limits.stall_seconds,
            memory_limit_bytes=limits.memory_limit_bytes,
        ),
        payload_schema=None
        if registration.payload_schema is None
        else dict(registration.payload_schema),
    )
