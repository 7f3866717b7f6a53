"""Searches over jobs in MongoDB: filters as the stages of one pipeline.

Every search looks at MAX_LOOKED_AT documents at most, in the order of an index, whatever its filter
says:

    looked   the newest before the cursor, narrowed by what an index can answer
    page     those of them that pass the filter; the walk stops when it is full
    edge     the last one looked at where the page is not full: there the next page begins
"""

import re
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from app.db.mongo.calls import key_of, literal
from app.db.mongo.connections import Document
from app.db.mongo.instants import micros
from app.domain.jobs import JobStatus
from app.domain.managing import MAX_COUNTED, MAX_LOOKED_AT, JobFilter

# An id is made a little before its document, and by another clock.
_CLOCKS: Final = timedelta(hours=1)
_NOT_COMPLETED: Final = tuple(status for status in JobStatus if status != JobStatus.COMPLETED)


def page(
    wanted: JobFilter, limit: int, before: str | None, *, without_wish: bool = False
) -> list[Document]:
    """At most `limit` jobs and one more, without their events.

    Args:
        without_wish: pass over jobs that are to be cancelled already.
    """
    return [
        *_looked(wanted, before),
        {"$match": _conditions(wanted, without_wish=without_wish)},
        {"$limit": limit + 1},
        {"$project": {"events": 0, "metadata": 0}},
    ]


def count(wanted: JobFilter, before: str | None, *, without_wish: bool = False) -> list[Document]:
    """One document with `n`, MAX_COUNTED and one more at most; none where there are no jobs."""
    return [
        *_looked(wanted, before),
        {"$match": _conditions(wanted, without_wish=without_wish)},
        {"$limit": MAX_COUNTED + 1},
        {"$count": "n"},
    ]


def edge(wanted: JobFilter, before: str | None) -> list[Document]:
    """The document at which the walk ended, none where it came to the end."""
    return [
        {"$match": _range(wanted, before)},
        {"$sort": {"_id": -1}},
        {"$skip": MAX_LOOKED_AT - 1},
        {"$limit": 1},
        {"$project": {"_id": 1}},
    ]


def _looked(wanted: JobFilter, before: str | None) -> list[Document]:
    return [
        {"$match": _range(wanted, before)},
        {"$sort": {"_id": -1}},
        {"$limit": MAX_LOOKED_AT},
    ]


def _range(wanted: JobFilter, before: str | None) -> Document:
    """What an index can answer in the order of ids, or with few documents."""
    range_: list[Document] = []
    if before is not None:
        range_.append({"_id": {"$lt": before}})
    # Ids begin with the time of their making, so the walk begins and ends there.
    if wanted.created_before is not None:
        range_.append({"_id": {"$lt": _id_at(wanted.created_before, _CLOCKS)}})
    if wanted.created_after is not None:
        range_.append({"_id": {"$gte": _id_at(wanted.created_after, -_CLOCKS)}})
    if wanted.ids is not None:
        range_.append({"_id": {"$in": [key_of(job_id) for job_id in wanted.ids]}})
    if wanted.batch is not None:
        range_.append({"batch_id": key_of(wanted.batch)})
    statuses = wanted.statuses
    if not statuses and wanted.error is not None:
        statuses = _NOT_COMPLETED  # the latest attempt of a completed job has no error
    if statuses:
        range_.append({"status": {"$in": [status.value for status in statuses]}})
    return {"$and": range_} if range_ else {}


def _conditions(wanted: JobFilter, *, without_wish: bool) -> Document:
    """The rest of the filter."""
    conditions: Document = {
        name: value
        for name in ("pipeline", "queue", "submitted_by")
        if (value := getattr(wanted, name)) is not None
    }
    if wanted.tags:
        conditions["tags"] = {"$all": list(wanted.tags)}
    if wanted.node is not None:
        conditions["node_id"] = key_of(wanted.node)
    made: Document = {}
    if wanted.created_after is not None:
        made["$gte"] = micros(wanted.created_after)
    if wanted.created_before is not None:
        made["$lt"] = micros(wanted.created_before)
    if made:
        conditions["created_at"] = made
    if wanted.error is not None:
        conditions["$expr"] = _says(wanted.error)
    if without_wish:
        conditions["cancel_requested_at"] = None
    return conditions


def _says(text: str) -> dict[str, Any]:
    """Whether class and message of the latest attempt's error hold a text, in any case."""
    said = {"$concat": ["$latest.error_class", ": ", {"$ifNull": ["$latest.error_message", ""]}]}
    return {"$regexMatch": {"input": said, "regex": literal(re.escape(text)), "options": "i"}}


def _id_at(instant: datetime, margin: timedelta) -> str:
    """The least id that is made at `instant`, give or take."""
    seconds = instant.timestamp() + margin.total_seconds()
    milliseconds = min(max(int(seconds * 1_000), 0), 2**48 - 1)
    return str(UUID(int=milliseconds << 80))
