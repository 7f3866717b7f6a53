"""The collections and their indexes, which `haulage db upgrade` makes; versioned as a whole.

Uniqueness is an index, never a look-up. A partial index is as small as what it is about: what
waits, what runs, what has a key.
"""

from typing import Any, Final

from pymongo import ASCENDING, DESCENDING, IndexModel

_PENDING: Final = {"status": "pending"}
_RUNNING: Final = {"status": "running"}


def _there(name: str) -> dict[str, Any]:
    # A comparison, since an equality with any other text implies it: the index is used.
    return {name: {"$gt": ""}}


INDEXES: Final[dict[str, list[IndexModel]]] = {
    "jobs": [
        # The claim's order. The rest saves a look at documents that are passed over: also the
        # status, since the server does not take it from the index's own condition.
        IndexModel(
            [
                ("priority", DESCENDING),
                ("run_at", ASCENDING),
                ("_id", ASCENDING),
                ("queue", ASCENDING),
                ("pipeline", ASCENDING),
                ("status", ASCENDING),
            ],
            name="due",
            partialFilterExpression=_PENDING,
        ),
        # The same for each queue, for those who look at one.
        IndexModel(
            [
                ("queue", ASCENDING),
                ("priority", DESCENDING),
                ("run_at", ASCENDING),
                ("_id", ASCENDING),
            ],
            name="queue",
            partialFilterExpression=_PENDING,
        ),
        IndexModel(
            [("node_id", ASCENDING), ("started_at", ASCENDING)],
            name="running",
            partialFilterExpression=_RUNNING,
        ),
        IndexModel([("status", ASCENDING), ("_id", DESCENDING)], name="status"),
        # What retention walks: each status has an age of its own.
        IndexModel(
            [("status", ASCENDING), ("finished_at", ASCENDING)],
            name="ended",
            partialFilterExpression={"finished_at": {"$gt": 0}},
        ),
        IndexModel(
            [("dataset_id", ASCENDING)],
            name="dataset",
            partialFilterExpression=_there("dataset_id"),
        ),
        IndexModel(
            [("batch_id", ASCENDING)], name="batch", partialFilterExpression=_there("batch_id")
        ),
        IndexModel(
            [("submitted_by", ASCENDING), ("idempotency_key", ASCENDING)],
            name="idempotency",
            unique=True,
            partialFilterExpression={"idempotency_key": {"$gte": ""}},
        ),
        # Counted before each submission of a key: from the index alone, 10,000 in 10 ms.
        IndexModel(
            [("submitted_by", ASCENDING), ("status", ASCENDING), ("payload_bytes", ASCENDING)],
            name="waiting",
            partialFilterExpression={**_PENDING, **_there("submitted_by")},
        ),
    ],
    "job_payloads": [
        IndexModel([("job_id", ASCENDING), ("n", ASCENDING)], name="piece", unique=True),
        # Which datasets jobs name in their payloads: those are kept.
        IndexModel(
            [("dataset", ASCENDING)], name="dataset", partialFilterExpression=_there("dataset")
        ),
    ],
    "job_results": [
        IndexModel([("job_id", ASCENDING), ("n", ASCENDING)], name="piece", unique=True),
    ],
    "job_checkpoints": [
        IndexModel(
            [("job_id", ASCENDING), ("stage", ASCENDING), ("n", ASCENDING)],
            name="piece",
            unique=True,
        ),
    ],
    "job_attempts": [
        IndexModel([("job_id", ASCENDING), ("claim_no", ASCENDING)], name="claim", unique=True),
    ],
    "job_events": [
        IndexModel([("job_id", ASCENDING), ("last_id", ASCENDING)], name="job", unique=True),
    ],
    "job_logs": [
        IndexModel([("job_id", ASCENDING), ("id", ASCENDING)], name="job", unique=True),
    ],
    "usage": [
        IndexModel([("job_id", ASCENDING)], name="job"),
        # A call that was paid counts once for its claim; beside these each claim has one document
        # for the answers of a stage that it found kept.
        IndexModel(
            [("job_id", ASCENDING), ("claim_no", ASCENDING), ("key", ASCENDING)],
            name="call",
            unique=True,
            partialFilterExpression={"key": {"$gte": ""}},
        ),
        IndexModel(
            [
                ("job_id", ASCENDING),
                ("claim_no", ASCENDING),
                ("stage", ASCENDING),
                ("model", ASCENDING),
            ],
            name="kept",
            unique=True,
            partialFilterExpression={"key": None},
        ),
    ],
    "call_cache": [IndexModel([("created_at", ASCENDING)], name="created")],
    "datasets": [
        IndexModel([("sha256", ASCENDING), ("_id", DESCENDING)], name="sha256"),
        IndexModel(
            [("submitted_by", ASCENDING)],
            name="submitter",
            partialFilterExpression=_there("submitted_by"),
        ),
        IndexModel([("created_at", ASCENDING)], name="created"),
        IndexModel(
            [("is_whole", ASCENDING)], name="left", partialFilterExpression={"is_whole": False}
        ),
    ],
    "dataset_rows": [
        IndexModel([("dataset_id", ASCENDING), ("row_no", ASCENDING)], name="row", unique=True),
    ],
    "deleted_jobs": [
        IndexModel([("deleted_at", ASCENDING)], name="deleted"),
        IndexModel(
            [("is_left", ASCENDING)], name="left", partialFilterExpression={"is_left": True}
        ),
    ],
    "queues": [],
    "nodes": [],
    "signals": [],
    "schema": [],
    "api_keys": [IndexModel([("sha256", ASCENDING)], name="sha256", unique=True)],
    "webhooks": [],
    "webhook_deliveries": [
        IndexModel(
            [("webhook_id", ASCENDING), ("next_at", ASCENDING)],
            name="due",
            partialFilterExpression=_PENDING,
        ),
        IndexModel(
            [("webhook_id", ASCENDING), ("created_at", DESCENDING), ("_id", DESCENDING)],
            name="webhook",
        ),
        IndexModel([("job_id", ASCENDING)], name="job"),
    ],
}

# What a job has beside its own document, by `job_id`.
BELONGINGS: Final = (
    "job_payloads",
    "job_results",
    "job_checkpoints",
    "job_attempts",
    "job_events",
    "job_logs",
    "usage",
    "webhook_deliveries",
)

# The document of the collection `schema` that tells which of these a database has.
SCHEMA_ID: Final = "schema"
# Raised whenever an index or the form of a document changes.
REVISION: Final = "mongo-0002"
