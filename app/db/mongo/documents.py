"""Between documents and the domain's values.

A job's document holds the state of its latest attempt under `latest` and the newest of its events
under `events`, so that a claim, a report and a wish are each one update of one document: atomic,
and in the order of the events' ids, which the document counts.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from app.db.mongo.connections import Document
from app.db.mongo.instants import NOW, instant, instant_or_none
from app.db.mongo.texts import text_of
from app.domain.following import STATUS_KIND, StoredEvent
from app.domain.jobs import (
    Attempt,
    AttemptOutcome,
    Cause,
    ErrorInfo,
    Job,
    JobOptions,
    JobStatus,
    Limits,
    Progress,
    RunningJob,
)

# Once a job's document has so many events, whoever wrote the last one moves them beside it.
MAX_HELD_EVENTS: Final = 40

# What can change of all that `get_job` tells; beside these the latest attempt and the last event.
_CHANGING: Final = (
    "status",
    "queue",
    "priority",
    "attempt",
    "max_attempts",
    "claim_no",
    "node_id",
    "run_at",
    "started_at",
    "finished_at",
    "cancel_requested_at",
    "last_event_id",
)
_CHANGING_LATEST: Final = ("pid", "progress_fraction", "progress_stage", "progress_message")

# All that a claim opens with, beside what it says itself; nothing is ever missing.
NEW_ATTEMPT: Final[Document] = {
    "pid": None,
    "ended_at": None,
    "outcome": None,
    "cause": None,
    "exit_code": None,
    "signal": None,
    "error_class": None,
    "error_message": None,
    "traceback": None,
    "peak_memory_bytes": None,
    "cpu_seconds": None,
    "progress_fraction": None,
    "progress_stage": None,
    "progress_message": None,
    "last_line_no": 0,
}


def with_event(stage: Any, attempt: Any, *, condition: Any = True, **more: Any) -> Document:
    """Fields of a `$set` that append an event: its id is the next one of the job.

    All are expressions, evaluated against the document as it was before.

    Args:
        condition: whether there is an event at all.
        more: `kind`, `fraction` and `message`, where they are not those of a change of status.
    """
    event = {
        "id": {"$add": ["$last_event_id", 1]},
        "kind": STATUS_KIND,
        "attempt": attempt,
        "stage": stage,
        "fraction": None,
        "message": None,
        "at": NOW,
        **more,
    }
    return {
        "last_event_id": {"$cond": [condition, event["id"], "$last_event_id"]},
        "events": {
            "$cond": [condition, {"$concatArrays": ["$events", [event]]}, "$events"],
        },
    }


def new_job(options: JobOptions, default_pipeline: str) -> Document:
    """The values of a new job's document; whatever is not said is None and never missing."""
    # A missing key is in no index; all other fields are there.
    key = options.idempotency_key
    return {
        "status": JobStatus.PENDING.value,
        "pipeline": options.pipeline or default_pipeline,
        "queue": options.queue,
        "priority": options.priority,
        "attempt": 0,
        "max_attempts": options.max_attempts or 1,
        "node_losses": 0,
        "claim_no": 0,
        "node_id": None,
        "started_at": None,
        "finished_at": None,
        "cancel_requested_at": None,
        "timeout_seconds": options.limits.timeout_seconds,
        "start_timeout_seconds": options.limits.start_timeout_seconds,
        "stall_seconds": options.limits.stall_seconds,
        "memory_limit_bytes": options.limits.memory_limit_bytes,
        "tags": list(options.tags),
        "metadata": text_of(dict(options.metadata)),
        "submitted_by": options.submitted_by or "",
        **({} if key is None else {"idempotency_key": key}),
        "payload_hash": options.fingerprint,
        "dataset_id": None if options.dataset_id is None else str(UUID(options.dataset_id)),
        "latest": None,
        "last_line_id": 0,
        "writes": 0,
    }


def new_job_instants(run_at: Any) -> Document:
    """What the server's clock decides of a new job; the submission begins its story."""
    event = {
        "id": 1,
        "kind": STATUS_KIND,
        "attempt": 0,
        "stage": JobStatus.PENDING.value,
        "fraction": None,
        "message": None,
        "at": NOW,
    }
    return {"created_at": NOW, "run_at": run_at, "last_event_id": 1, "events": [event]}


def job_of(found: Document) -> Job:
    """The job of its document."""
    latest = found["latest"] or {}
    return Job(
        id=found["_id"],
        status=JobStatus(found["status"]),
        pipeline=found["pipeline"],
        queue=found["queue"],
        priority=found["priority"],
        attempt=found["attempt"],
        max_attempts=found["max_attempts"],
        claim_no=found["claim_no"],
        node_losses=found["node_losses"],
        node_id=found["node_id"],
        pid=latest.get("pid"),
        limits=Limits(
            found["timeout_seconds"],
            found["start_timeout_seconds"],
            found["stall_seconds"],
            found["memory_limit_bytes"],
        ),
        tags=tuple(found["tags"]),
        metadata=json.loads(found["metadata"]),
        created_at=instant(found["created_at"]),
        run_at=instant(found["run_at"]),
        started_at=instant_or_none(found["started_at"]),
        finished_at=instant_or_none(found["finished_at"]),
        cancel_requested_at=instant_or_none(found["cancel_requested_at"]),
        progress=progress_of(latest),
        error=None
        if latest.get("error_class") is None
        else ErrorInfo(latest["error_class"], latest["error_message"] or "", latest["traceback"]),
        cause=None if latest.get("cause") is None else Cause(latest["cause"]),
        version=version_of(found),
        last_event_id=found["last_event_id"],
        batch_id=found["batch_id"],
        submitted_by=found["submitted_by"],
    )


def progress_of(latest: Document) -> Progress | None:
    """The progress of an attempt, None before it reported any."""
    fraction = latest.get("progress_fraction")
    if fraction is None:
        return None
    return Progress(fraction, latest["progress_stage"], latest["progress_message"])


def version_of(found: Document | None) -> str:
    """What changes with every visible change of a job, and with nothing else."""
    latest = {} if found is None else found["latest"] or {}
    seen = [
        *((found or {}).get(name) for name in _CHANGING),
        *(latest.get(name) for name in _CHANGING_LATEST),
    ]
    return hashlib.blake2b(repr(seen).encode(), digest_size=8).hexdigest()


def attempt_of(found: Document) -> Attempt:
    """An attempt of its document, whether it lies in the job's or beside it."""
    return Attempt(
        claim_no=found["claim_no"],
        attempt=found["attempt"],
        node_id=found["node_id"],
        pid=found["pid"],
        started_at=instant(found["started_at"]),
        ended_at=instant_or_none(found["ended_at"]),
        outcome=None if found["outcome"] is None else AttemptOutcome(found["outcome"]),
        cause=None if found["cause"] is None else Cause(found["cause"]),
        exit_code=found["exit_code"],
        signal=found["signal"],
        error_class=found["error_class"],
        error_message=found["error_message"],
        traceback=found["traceback"],
        peak_memory_bytes=found["peak_memory_bytes"],
        cpu_seconds=found["cpu_seconds"],
    )


def running_of(found: Document) -> RunningJob:
    """A running job as the watchdog sees it; its document has the server's `now` beside it."""
    return RunningJob(
        id=found["_id"],
        claim_no=found["claim_no"],
        node_id=found["node_id"],
        attempt=found["attempt"],
        max_attempts=found["max_attempts"],
        node_losses=found["node_losses"],
        run_seconds=(instant(found["now"]) - instant(found["started_at"])).total_seconds(),
        cancel_requested=found["cancel_requested_at"] is not None,
    )


# The fields that `running_of` reads.
RUNNING: Final[Document] = {
    "claim_no": 1,
    "node_id": 1,
    "attempt": 1,
    "max_attempts": 1,
    "node_losses": 1,
    "started_at": 1,
    "cancel_requested_at": 1,
    "now": NOW,
}


def events_of(found: Iterable[Document]) -> list[StoredEvent]:
    """Events as followers are told them."""
    return [
        StoredEvent(
            id=event["id"],
            kind=event["kind"],
            attempt=event["attempt"],
            stage=event["stage"] or "",
            fraction=event["fraction"],
            message=event["message"],
            created_at=instant(event["at"]),
        )
        for event in found
    ]
