"""What goes over the wire: request and response models with their examples."""

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from app.domain.jobs import (
    LEAST_MEMORY_LIMIT_BYTES,
    LEAST_STALL_SECONDS,
    MAX_ATTEMPTS,
    MAX_MEMORY_LIMIT_BYTES,
    MAX_START_TIMEOUT_SECONDS,
    MAX_TIMEOUT_SECONDS,
    Job,
    JobOptions,
    JobStatus,
    Limits,
    Milestone,
)

Name = Annotated[str, StringConstraints(min_length=1, max_length=255)]
Tag = Annotated[str, StringConstraints(min_length=1, max_length=100)]


class EnqueueRequest(BaseModel):
    """Work to do; `payload` alone is enough."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"payload": {"answers": ["Too long a wait", "Friendly staff", "Nothing"]}},
                {"pipeline": "demo-sleep", "payload": {"seconds": 5}, "priority": 10},
            ]
        },
    )

    payload: dict[str, Any] = Field(description="What the pipeline works on; at most 10 MiB.")
    pipeline: Name | None = Field(default=None, description="Registered name; else the default.")
    queue: Name = "default"
    priority: int = Field(default=0, ge=-32_768, le=32_767, description="Higher runs first.")
    run_at: AwareDatetime | None = Field(
        default=None, description="Earliest start, with its offset from UTC."
    )
    delay_seconds: float = Field(
        default=0.0, ge=0, le=31_536_000, description="Earliest start counted from now."
    )
    max_attempts: int | None = Field(
        default=None, ge=1, le=MAX_ATTEMPTS, description="Default: the pipeline's, else 1."
    )
    timeout_seconds: float | None = Field(
        default=None, gt=0, le=MAX_TIMEOUT_SECONDS, description="Run-time limit of one attempt."
    )
    start_timeout_seconds: float | None = Field(
        default=None,
        gt=0,
        le=MAX_START_TIMEOUT_SECONDS,
        description="Limit for loading the pipeline.",
    )
    stall_seconds: float | None = Field(
        default=None,
        ge=LEAST_STALL_SECONDS,
        le=MAX_TIMEOUT_SECONDS,
        description="Longest time without progress.",
    )
    memory_limit_bytes: int | None = Field(
        default=None,
        ge=LEAST_MEMORY_LIMIT_BYTES,
        le=MAX_MEMORY_LIMIT_BYTES,
        description="Of all processes of the job together.",
    )
    tags: list[Tag] = Field(default_factory=list, max_length=50)
    metadata: dict[str, Any] = Field(default_factory=dict)

    @field_validator("run_at")
    @classmethod
    def _in_utc(cls, run_at: datetime | None) -> datetime | None:
        try:
            return run_at and run_at.astimezone(UTC)
        except OverflowError:
            raise ValueError("outside the years 1 to 9999 in UTC") from None

    @model_validator(mode="after")
    def _one_start(self) -> "EnqueueRequest":
        if self.run_at is not None and self.delay_seconds:
            raise ValueError("give run_at or delay_seconds, not both")
        return self

    def options(self) -> JobOptions:
        """Everything but the payload."""
        return JobOptions(
            pipeline=self.pipeline,
            queue=self.queue,
            priority=self.priority,
            run_at=self.run_at,
            delay_seconds=self.delay_seconds,
            max_attempts=self.max_attempts,
            limits=Limits(
                self.timeout_seconds,
                self.start_timeout_seconds,
                self.stall_seconds,
                self.memory_limit_bytes,
            ),
            tags=tuple(self.tags),
            metadata=self.metadata,
        )


class EnqueueResponse(BaseModel):
    """The job was stored durably."""

    model_config = ConfigDict(
        json_schema_serialization_defaults_required=True,
        json_schema_extra={
            "examples": [{"id": "019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a11", "status": "pending"}]
        },
    )

    id: str
    status: JobStatus = JobStatus.PENDING


class JobStateResponse(BaseModel):
    """Where the job is after the request."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"id": "019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a11", "status": "cancelled"}]
        },
    )

    id: str
    status: JobStatus


class ProgressResponse(BaseModel):
    """How far the job is."""

    fraction: float = Field(ge=0, le=1)
    stage: str | None
    message: str | None


class MilestoneResponse(BaseModel):
    """A stage that the job entered."""

    stage: str
    fraction: float
    message: str | None
    attempt: int
    at: datetime


class ErrorResponse(BaseModel):
    """Why the latest attempt did not complete."""

    cause: str | None
    error_class: str
    message: str
    traceback: str | None


class JobResponse(BaseModel):
    """A job, its latest attempt and the milestones so far."""

    id: str
    status: JobStatus
    pipeline: str
    queue: str
    priority: int
    attempt: int = Field(description="Attempts that count so far.")
    max_attempts: int
    progress: ProgressResponse | None
    milestones: list[MilestoneResponse]
    created_at: datetime
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: ErrorResponse | None
    node_id: str | None
    pid: int | None = Field(description="Process of the latest attempt.")
    cancel_requested_at: datetime | None
    batch_id: str | None = Field(description="Of the batch that it was submitted in.")
    submitted_by: str = Field(description="Id of the key; empty where none was needed.")
    timeout_seconds: float | None = Field(description="Null: the node's default holds.")
    start_timeout_seconds: float | None
    stall_seconds: float | None
    memory_limit_bytes: int | None
    tags: list[str]
    metadata: dict[str, Any]

    @classmethod
    def of(cls, job: Job, milestones: list[Milestone]) -> "JobResponse":
        """The job as the API tells it."""
        return cls(
            id=job.id,
            status=job.status,
            pipeline=job.pipeline,
            queue=job.queue,
            priority=job.priority,
            attempt=job.attempt,
            max_attempts=job.max_attempts,
            progress=None
            if job.progress is None
            else ProgressResponse(
                fraction=job.progress.fraction,
                stage=job.progress.stage,
                message=job.progress.message,
            ),
            milestones=[
                MilestoneResponse(
                    stage=milestone.stage,
                    fraction=milestone.fraction,
                    message=milestone.message,
                    attempt=milestone.attempt,
                    at=milestone.created_at,
                )
                for milestone in milestones
            ],
            created_at=job.created_at,
            run_at=job.run_at,
            started_at=job.started_at,
            finished_at=job.finished_at,
            error=None
            if job.error is None
            else ErrorResponse(
                cause=job.cause,
                error_class=job.error.error_class,
                message=job.error.message,
                traceback=job.error.traceback,
            ),
            node_id=job.node_id,
            pid=job.pid,
            cancel_requested_at=job.cancel_requested_at,
            batch_id=job.batch_id,
            submitted_by=job.submitted_by,
            timeout_seconds=job.limits.timeout_seconds,
            start_timeout_seconds=job.limits.start_timeout_seconds,
            stall_seconds=job.limits.stall_seconds,
            memory_limit_bytes=job.limits.memory_limit_bytes,
            tags=list(job.tags),
            metadata=dict(job.metadata),
        )


class ProblemPlace(BaseModel):
    """What is wrong where in the request."""

    pointer: str = Field(
        description="JSON pointer (RFC 6901) into the body; /query/... and /header/... name others."
    )
    detail: str


class ProblemResponse(BaseModel):
    """An error after RFC 9457."""

    type: str = Field(
        description="Stable for programs: urn:haulage:problem:<kind>; docs/api.md lists all kinds."
    )
    title: str
    status: int
    detail: str = Field(description="For people.")
    instance: str = Field(description="Path of the request.")
    errors: list[ProblemPlace] | None = Field(default=None, description="For bad input.")
    job_status: JobStatus | None = Field(
        default=None, description="Where the job's status stands in the way."
    )
    violated_policies: list[str] | None = Field(
        default=None, description="Where a cap is reached: which, as `RateLimit-Policy` names them."
    )
