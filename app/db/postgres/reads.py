"""Searches over jobs, composed with SQLAlchemy: SQL text with bound values for asyncpg.

Imported by whoever searches, never by a worker. Every search looks at MAX_LOOKED_AT rows at most,
in the order of an index, whatever its filter says:

    looked   the newest rows before the cursor, narrowed by what an index can answer
    page     those of them that pass the filter; the walk stops when it is full
    edge     the last row looked at where the page is not full: there the next page begins

One statement, so that all three see the same rows.
"""

from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Select,
    Subquery,
    Text,
    Uuid,
    any_,
    bindparam,
    case,
    func,
    select,
    text,
    true,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import ARRAY, asyncpg

from app.db.ids import as_uuid
from app.db.schema import job_attempts, jobs
from app.domain.jobs import JobStatus
from app.domain.managing import MAX_COUNTED, MAX_LOOKED_AT, JobFilter

Composed = tuple[str, list[Any]]

# An id is made a little before its row, and by another clock.
_CLOCKS: Final = timedelta(hours=1)
_SHOWN_CHARACTERS: Final = 500
_DIALECT: Final = asyncpg.dialect()  # type: ignore[no-untyped-call]
_NONE: Final = UUID(int=0)
# In words of their own, never bound: the server has to see that a partial index will do.
_NOT_COMPLETED: Final = text("status <> 'completed'")
_RUNNING: Final = text("status = 'running'")
_SUMMARY: Final = (
    "status",
    "pipeline",
    "queue",
    "priority",
    "attempt",
    "max_attempts",
    "node_id",
    "batch_id",
    "submitted_by",
    "tags",
    "created_at",
    "run_at",
    "started_at",
    "finished_at",
    "cancel_requested_at",
)


def page(
    wanted: JobFilter, limit: int, before: UUID | None, *, without_wish: bool = False
) -> Composed:
    """At most `limit` jobs and one more, each beside the edge; one row without a job if none.

    Args:
        without_wish: pass over jobs that are to be cancelled already.
    """
    looked = _looked(wanted, before).subquery("looked")
    found = (
        select(looked)
        .where(*_conditions(wanted, looked, without_wish=without_wish))
        .order_by(looked.c.id.desc())
        .limit(limit + 1)
        .cte("page")
    )
    full = select(func.count()).select_from(found).scalar_subquery() > limit
    edge = select(case((full, None), else_=_last_looked_at(wanted, before)).label("id"))
    edge_row = edge.subquery("edge")
    latest = job_attempts.alias("latest")
    return _composed(
        select(
            edge_row.c.id.label("edge"),
            found.c.id.label("id"),
            *(found.c[name] for name in _SUMMARY),
            latest.c.progress_fraction,
            latest.c.progress_stage,
            latest.c.cause,
            latest.c.error_class,
            func.left(latest.c.error_message, _SHOWN_CHARACTERS).label("error_message"),
        )
        .select_from(edge_row)
        .outerjoin(found, true())
        .outerjoin(
            latest, (latest.c.job_id == found.c.id) & (latest.c.claim_no == found.c.claim_no)
        )
        .order_by(found.c.id.desc())
    )


def count(wanted: JobFilter, before: UUID | None, *, without_wish: bool = False) -> Composed:
    """One row: how many jobs there are up to MAX_COUNTED and one more, and the edge."""
    looked = _looked(wanted, before).subquery("looked")
    found = (
        select(looked.c.id)
        .where(*_conditions(wanted, looked, without_wish=without_wish))
        .limit(MAX_COUNTED + 1)
        .subquery("found")
    )
    counted = select(func.count().label("n")).select_from(found).subquery("counted")
    edge = case((counted.c.n > MAX_COUNTED, None), else_=_last_looked_at(wanted, before))
    return _composed(select(counted.c.n, edge.label("edge")))


def _looked(wanted: JobFilter, before: UUID | None) -> Select[Any]:
    columns = (jobs.c.id, jobs.c.claim_no, *(jobs.c[name] for name in _SUMMARY))
    return (
        select(*columns)
        .where(*_range(wanted, before))
        .order_by(jobs.c.id.desc())
        .limit(MAX_LOOKED_AT)
    )


def _last_looked_at(wanted: JobFilter, before: UUID | None) -> ColumnElement[Any]:
    """The id of the row at which the walk ended, null where it came to the end."""
    return (
        select(jobs.c.id)
        .where(*_range(wanted, before))
        .order_by(jobs.c.id.desc())
        .offset(MAX_LOOKED_AT - 1)
        .limit(1)
        .scalar_subquery()
    )


def _range(wanted: JobFilter, before: UUID | None) -> list[ColumnElement[bool]]:
    """What an index can answer in the order of ids, or with few rows."""
    range_: list[Any] = []
    if before is not None:
        range_.append(jobs.c.id < before)
    # Ids begin with the time of their making, so the walk begins and ends there.
    if wanted.created_before is not None:
        range_.append(jobs.c.id < _id_at(wanted.created_before, _CLOCKS))
    if wanted.created_after is not None:
        range_.append(jobs.c.id >= _id_at(wanted.created_after, -_CLOCKS))
    if wanted.ids is not None:
        keys = [key for key in map(as_uuid, wanted.ids) if key is not None]
        range_.append(jobs.c.id == any_(bindparam(None, keys, type_=ARRAY(Uuid))))
    if wanted.batch is not None:
        range_.append(jobs.c.batch_id == (as_uuid(wanted.batch) or _NONE))
    if wanted.statuses == (JobStatus.RUNNING,):
        range_.append(_RUNNING)
        if wanted.node is not None:
            range_.append(jobs.c.node_id == (as_uuid(wanted.node) or _NONE))
    elif wanted.error is not None or (
        wanted.statuses and JobStatus.COMPLETED not in wanted.statuses
    ):
        range_.append(_NOT_COMPLETED)  # the latest attempt of a completed job has no error
    return range_


def _conditions(
    wanted: JobFilter, looked: Subquery, *, without_wish: bool
) -> list[ColumnElement[bool]]:
    """The whole filter."""
    row = looked.c
    conditions: list[ColumnElement[bool]] = [
        row[name] == value
        for name in ("pipeline", "queue", "submitted_by")
        if (value := getattr(wanted, name)) is not None
    ]
    if wanted.statuses:
        conditions.append(row.status.in_([status.value for status in wanted.statuses]))
    if wanted.tags:
        conditions.append(type_coerce(row.tags, ARRAY(Text)).contains(list(wanted.tags)))
    if wanted.node is not None:
        conditions.append(row.node_id == (as_uuid(wanted.node) or _NONE))
    if wanted.created_after is not None:
        conditions.append(row.created_at >= wanted.created_after)
    if wanted.created_before is not None:
        conditions.append(row.created_at < wanted.created_before)
    if wanted.error is not None:
        conditions.append(_error_of(looked).icontains(wanted.error, autoescape=True))
    if without_wish:
        conditions.append(row.cancel_requested_at.is_(None))
    return conditions


def _error_of(looked: Subquery) -> ColumnElement[str]:
    """Class and message of the latest attempt's error, null without one.

    By row and key: a join might read all attempts.
    """
    attempt = job_attempts.alias("attempt")
    return (
        select(attempt.c.error_class + ": " + func.coalesce(attempt.c.error_message, ""))
        .where(attempt.c.job_id == looked.c.id, attempt.c.claim_no == looked.c.claim_no)
        .scalar_subquery()
    )


def _id_at(instant: datetime, margin: timedelta) -> UUID:
    """The least id that is made at `instant`, give or take."""
    seconds = instant.timestamp() + margin.total_seconds()
    milliseconds = min(max(int(seconds * 1_000), 0), 2**48 - 1)
    return UUID(int=milliseconds << 80)


def _composed(statement: Select[Any]) -> Composed:
    compiled = statement.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
    return str(compiled), [compiled.params[name] for name in compiled.positiontup or ()]
