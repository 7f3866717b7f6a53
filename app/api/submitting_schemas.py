"""What goes over the wire when jobs are submitted together."""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from app.api.schemas import EnqueueRequest, Name
from app.domain.jobs import JobStatus
from app.domain.submissions import MAX_BATCH_ROWS, MAX_KEY_CHARACTERS, Batch

_ID = "019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a11"
_BATCH_ID = "019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a99"

Key = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_KEY_CHARACTERS, pattern="^[!-~]+$"),
]


class BatchRow(EnqueueRequest):
    """One job of a batch: as `POST /enqueue` takes it, with names for it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"payload": {"n": 1}}]})

    custom_id: Name | None = Field(
        default=None, description="The client's own name; comes back in the answer, is not kept."
    )
    idempotency_key: Key | None = Field(
        default=None, description="As the header of the same name, for this row alone."
    )


class BatchRowResponse(BaseModel):
    """The job of one row."""

    index: int = Field(ge=0, lt=MAX_BATCH_ROWS, description="Of the row, from 0.")
    custom_id: str | None = None
    id: str
    status: JobStatus = JobStatus.PENDING
    replayed: bool | None = Field(
        default=None, description="True where the row's idempotency key had been used."
    )


class BatchReceiptResponse(BaseModel):
    """Every row was stored durably."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "batch_id": _BATCH_ID,
                    "jobs": [
                        {"index": 0, "custom_id": "row-1", "id": _ID, "status": "pending"},
                    ],
                }
            ]
        },
    )

    batch_id: str | None = Field(
        description="Null where every row was known before, from different batches or none."
    )
    jobs: list[BatchRowResponse]


class BatchResponse(BaseModel):
    """Where the jobs of a batch are; deleted ones are left out."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": _BATCH_ID,
                    "done": False,
                    "total": 3,
                    "counts": {
                        "pending": 1,
                        "running": 1,
                        "completed": 1,
                        "failed": 0,
                        "cancelled": 0,
                    },
                    "created_at": "2026-11-30T10:00:00Z",
                }
            ]
        },
    )

    id: str
    done: bool = Field(description="Whether all have ended.")
    total: int
    counts: dict[JobStatus, int] = Field(description="Jobs by status.")
    created_at: datetime

    @classmethod
    def of(cls, batch: Batch) -> "BatchResponse":
        """The batch as the API tells it."""
        return cls(
            id=batch.id,
            done=batch.is_done,
            total=batch.total,
            counts=batch.counts,
            created_at=batch.created_at,
        )
