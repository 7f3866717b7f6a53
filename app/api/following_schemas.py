"""What followers of a job and readers of its history get over the wire."""

import logging
from datetime import datetime
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from app.domain.following import Checkpoint, StoredEvent, StoredLine
from app.domain.jobs import Attempt, AttemptOutcome, Cause, JobStatus

_JOB: Final = "019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a11"
_AT: Final = "2026-11-30T09:00:00.123456Z"


class LogLevel(StrEnum):
    """Levels to ask for; a line of any other one belongs to the next lower of these."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"

    @property
    def number(self) -> int:
        """As the standard library counts them; debug takes everything."""
        return _LEVELS[self]

    @classmethod
    def of(cls, number: int) -> "LogLevel":
        """The level that a line belongs to."""
        return next(level for level, least in reversed(_LEVELS.items()) if number >= least)


_LEVELS: Final = {
    LogLevel.DEBUG: 0,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
    LogLevel.CRITICAL: logging.CRITICAL,
}


class StatusEvent(BaseModel):
    """The job has another status: `event: status`."""

    status: JobStatus
    attempt: int
    message: str | None = Field(description="Why, where there was an error.")
    at: datetime

    @classmethod
    def of(cls, event: StoredEvent) -> "StatusEvent":
        """From what is stored."""
        return cls(
            status=JobStatus(event.stage),
            attempt=event.attempt,
            message=event.message,
            at=event.created_at,
        )


class EndEvent(BaseModel):
    """The job has ended and the stream with it: `event: end`."""

    id: str
    status: JobStatus | None = Field(description="Null where the job was deleted.")


class ClosingEvent(BaseModel):
    """The stream ends although the job goes on; connect again: `event: closing`."""

    reason: str = "stopping"


class AttemptResponse(BaseModel):
    """One claim of the job: who ran it, how it ended and what it used up."""

    claim_no: int = Field(description="Grows with every claim of the job.")
    attempt: int = Field(description="Its number among the attempts that count.")
    node_id: str
    pid: int | None
    started_at: datetime
    ended_at: datetime | None
    outcome: AttemptOutcome | None = Field(description="Null while it runs.")
    cause: Cause | None = Field(description="Null for an ordinary completion.")
    exit_code: int | None
    signal: int | None = Field(description="That ended its process.")
    error_class: str | None
    error_message: str | None
    traceback: str | None
    peak_memory_bytes: int | None
    cpu_seconds: float | None

    @classmethod
    def of(cls, attempt: Attempt) -> "AttemptResponse":
        """From what is stored."""
        return cls.model_validate(attempt, from_attributes=True)


class AttemptPage(BaseModel):
    """Claims of a job, oldest first."""

    items: list[AttemptResponse]
    next: str | None = Field(description="Path of the next page; null at the end.")


class LogLineResponse(BaseModel):
    """One line of a job's log."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": 4711,
                    "attempt": 1,
                    "number": 1,
                    "at": _AT,
                    "level": "info",
                    "source": "stdout",
                    "text": "read 3,012 answers",
                }
            ]
        }
    )

    id: int = Field(description="For `after`; grows within a job.")
    attempt: int
    number: int = Field(description="Counts the attempt's lines from 1.")
    at: datetime
    level: LogLevel
    source: str = Field(description="Logger, `stdout` or `stderr`.")
    text: str

    @classmethod
    def of(cls, line: StoredLine) -> "LogLineResponse":
        """From what is stored."""
        return cls(
            id=line.id,
            attempt=line.attempt,
            number=line.number,
            at=line.at,
            level=LogLevel.of(line.level),
            source=line.source,
            text=line.text,
        )


class LogPage(BaseModel):
    """Lines of a job's log, oldest first."""

    items: list[LogLineResponse]
    next: str | None = Field(
        description="Path of the next page; null without `after`, and where no more are left."
    )


class CheckpointResponse(BaseModel):
    """An intermediate result, without its data."""

    stage: str
    claim_no: int = Field(description="The claim that saved it.")
    stored_bytes: int = Field(description="As stored, that is compressed.")
    saved_at: datetime

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "CheckpointResponse":
        """From what is stored."""
        return cls.model_validate(checkpoint, from_attributes=True)


class CheckpointPage(BaseModel):
    """Intermediate results of a job, by stage."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "items": [
                        {"stage": "themes", "claim_no": 1, "stored_bytes": 81_920, "saved_at": _AT}
                    ],
                    "next": None,
                }
            ]
        }
    )

    items: list[CheckpointResponse]
    next: str | None = Field(description="Path of the next page; null at the end.")
