"""Request and response models of lists, bulk changes and clones."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Self
from uuid import UUID

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from app.api.schemas import EnqueueRequest, Name, Tag
from app.domain.jobs import Job, JobOptions, JobStatus
from app.domain.managing import (
    DEFAULT_PAGE,
    MAX_BULK,
    MAX_ERROR_CHARACTERS,
    MAX_PAGE,
    BulkChange,
    JobFilter,
    JobSummary,
)

MAX_FILTER_TAGS: Final = 10


class JobQuery(BaseModel):
    """Which jobs are meant; all that is given has to fit. Unknown names are refused."""

    model_config = ConfigDict(extra="forbid")

    status: list[JobStatus] = Field(default_factory=list, max_length=5, description="Any of these.")
    pipeline: Name | None = None
    queue: Name | None = None
    tag: list[Tag] = Field(
        default_factory=list, max_length=MAX_FILTER_TAGS, description="All of these."
    )
    node: UUID | None = Field(default=None, description="Node of the latest attempt.")
    batch: UUID | None = None
    created_after: AwareDatetime | None = Field(
        default=None, description="From this instant on, with its offset from UTC."
    )
    created_before: AwareDatetime | None = Field(default=None, description="Before this instant.")
    error: (
        Annotated[str, StringConstraints(min_length=1, max_length=MAX_ERROR_CHARACTERS)] | None
    ) = Field(default=None, description="Part of the latest error's class or message, in any case.")
    submitted_by: Annotated[str, StringConstraints(max_length=255)] | None = None

    @field_validator("created_after", "created_before")
    @classmethod
    def _in_utc(cls, instant: datetime | None) -> datetime | None:
        try:
            return instant and instant.astimezone(UTC)
        except OverflowError:
            raise ValueError("outside the years 1 to 9999 in UTC") from None

    def wanted(self) -> JobFilter:
        """The filter, in the domain's terms."""
        return JobFilter(
            statuses=tuple(dict.fromkeys(self.status)),
            pipeline=self.pipeline,
            queue=self.queue,
            tags=tuple(self.tag),
            node=None if self.node is None else str(self.node),
            batch=None if self.batch is None else str(self.batch),
            created_after=self.created_after,
            created_before=self.created_before,
            error=self.error,
            submitted_by=self.submitted_by,
        )


class ListQuery(JobQuery):
    """A page of jobs."""

    limit: int = Field(default=DEFAULT_PAGE, ge=1, le=MAX_PAGE)
    cursor: Annotated[str, StringConstraints(max_length=100)] | None = Field(
        default=None, description="Of the `next` of the page before; opaque."
    )
    count: bool = Field(default=False, description="Count the jobs too, up to 10,000.")


class JobSummaryResponse(BaseModel):
    """A job in a list; `GET /jobs/{id}` tells more."""

    model_config = ConfigDict(
        from_attributes=True,
        json_schema_extra={
            "examples": [
                {
                    "id": "019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a11",
                    "status": "failed",
                    "pipeline": "thematic",
                    "queue": "default",
                    "priority": 0,
                    "attempt": 1,
                    "max_attempts": 1,
                    "node_id": "019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a12",
                    "batch_id": None,
                    "submitted_by": "",
                    "tags": ["survey-7"],
                    "created_at": "2026-11-30T09:00:00Z",
                    "run_at": "2026-11-30T09:00:00Z",
                    "started_at": "2026-11-30T09:00:01Z",
                    "finished_at": "2026-11-30T09:02:11Z",
                    "cancel_requested_at": None,
                    "progress_fraction": 0.35,
                    "progress_stage": "name",
                    "cause": "exception",
                    "error_class": "LLMError",
                    "error_message": "the model does not answer",
                }
            ]
        },
    )

    id: str
    status: JobStatus
    pipeline: str
    queue: str
    priority: int
    attempt: int = Field(description="Attempts that count so far.")
    max_attempts: int
    node_id: str | None
    batch_id: str | None
    submitted_by: str
    tags: list[str]
    created_at: datetime
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    progress_fraction: float | None = Field(description="Of the latest attempt, 0 to 1.")
    progress_stage: str | None
    cause: str | None = Field(description="Why the latest attempt ended as it did.")
    error_class: str | None
    error_message: str | None = Field(description="Its first 500 characters.")

    @classmethod
    def of(cls, job: JobSummary) -> Self:
        """The job as lists tell it."""
        return cls.model_validate(job)


class CountResponse(BaseModel):
    """How many jobs there are; at least so many where it is not exact."""

    count: int
    is_exact: bool


class JobListResponse(BaseModel):
    """A page of jobs, the newest first. It may be short, even empty, and yet have a next one."""

    items: list[JobSummaryResponse]
    next: str | None = Field(
        description="Where the next page is; null where nothing is left.",
        examples=["/jobs?status=failed&cursor=AZrQ8l8-fBqdDit8j28KEQ"],
    )
    total: CountResponse | None = Field(
        default=None, description="With `count=true`; nothing is counted beyond 10,000."
    )


class BulkRequest(JobQuery):
    """Which jobs to change: a filter with one condition at least, or their ids."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"status": ["failed"], "pipeline": "thematic"}]},
    )

    ids: list[UUID] | None = Field(default=None, min_length=1, max_length=MAX_BULK)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.ids is None and self.wanted() == JobFilter():
            raise ValueError("give ids, or at least one condition")
        return self

    def wanted(self) -> JobFilter:
        """The filter, in the domain's terms."""
        wanted = super().wanted()
        if self.ids is None:
            return wanted
        return replace(wanted, ids=tuple(dict.fromkeys(map(str, self.ids))))


class BulkResponse(BaseModel):
    """What became of them."""

    model_config = ConfigDict(
        from_attributes=True,
        json_schema_extra={"examples": [{"matched": 1200, "changed": 1000, "left": 200}]},
    )

    matched: int = Field(description="That could be changed when they were looked for.")
    changed: int
    left: int = Field(description="At least so many are left: the same request goes on with them.")

    @classmethod
    def of(cls, change: BulkChange) -> Self:
        """The counts."""
        return cls.model_validate(change)


class CloneRequest(EnqueueRequest):
    """What is to be different from the job that is cloned; everything else is taken over.

    Never taken over are `run_at` and, for another pipeline, attempts and limits.
    """

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {},
                {"payload_patch": {"granularity": "fine"}, "from_stage": "embed"},
            ]
        },
    )

    payload: dict[str, Any] = Field(
        default_factory=dict, description="Instead of that job's payload."
    )
    payload_patch: dict[str, Any] | None = Field(
        default=None, description="JSON merge patch (RFC 7396) on that job's payload."
    )
    from_stage: Name | None = Field(
        default=None,
        description="Start from that job's checkpoint of this stage, with pipelines that can.",
    )

    @model_validator(mode="after")
    def _one_payload(self) -> Self:
        if self.has_payload and self.payload_patch is not None:
            raise ValueError("give payload or payload_patch, not both")
        return self

    @property
    def has_payload(self) -> bool:
        """Whether it brings a payload of its own."""
        return "payload" in self.model_fields_set

    def options_like(self, job: Job) -> JobOptions:
        """Its options, and the job's where it says nothing."""
        mine = self.options()
        is_same_pipeline = mine.pipeline in {None, job.pipeline}
        own = {
            name: getattr(job, name)
            for name in ("queue", "priority", "tags", "metadata")
            if name not in self.model_fields_set
        }
        if is_same_pipeline:
            own["max_attempts"] = mine.max_attempts or job.max_attempts
            own["limits"] = mine.limits.or_else(job.limits)
        return replace(mine, pipeline=mine.pipeline or job.pipeline, **own)
