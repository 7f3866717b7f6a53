"""Jobs that an application submits inside its own transaction, on its own connection.

    job_id = await enqueue(connection, {"answers": answers}, pipeline="thematic")

`enqueue` takes connections of asyncpg, psycopg's AsyncConnection and SQLAlchemy's AsyncConnection
or AsyncSession; `enqueue_sync` takes psycopg's Connection and SQLAlchemy's Connection or Session.
Both call the SQL function `haulage.enqueue` and nothing else: they never begin, commit or roll
back, and import none of these libraries.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, TypedDict, Unpack

from app.domain.jobs import MAX_METADATA_BYTES, MAX_PAYLOAD_BYTES
from app.domain.json_values import dump_field

# JSON goes as text: a connection may have a codec of its own for jsonb.
_TYPES: Final = MappingProxyType(
    {
        "payload": "text::jsonb",
        "pipeline": "text",
        "queue": "text",
        "priority": "integer",
        "run_at": "timestamptz",
        "delay_seconds": "double precision",
        "max_attempts": "integer",
        "timeout_seconds": "double precision",
        "start_timeout_seconds": "double precision",
        "stall_seconds": "double precision",
        "memory_limit_bytes": "bigint",
        "tags": "text[]",
        "metadata": "text::jsonb",
        "idempotency_key": "text",
        "submitted_by": "text",
    }
)


class Options(TypedDict, total=False):
    """What may be said beside the payload; what is left out takes the default of POST /jobs.

    Attributes:
        pipeline: registered name.
        priority: higher is claimed first, -32768 to 32767.
        run_at: earliest start, with its offset from UTC.
        delay_seconds: earliest start counted from the beginning of the transaction.
        idempotency_key: a second call under it finds the first one's job.
        submitted_by: in whose name; keys of different submitters are different keys.
    """

    pipeline: str | None
    queue: str | None
    priority: int | None
    run_at: datetime | None
    delay_seconds: float | None
    max_attempts: int | None
    timeout_seconds: float | None
    start_timeout_seconds: float | None
    stall_seconds: float | None
    memory_limit_bytes: int | None
    tags: Sequence[str] | None
    metadata: Mapping[str, Any] | None
    idempotency_key: str | None
    submitted_by: str | None


async def enqueue(connection: Any, payload: Mapping[str, Any], **options: Unpack[Options]) -> str:
    """Submit a job with the caller's transaction and return its id.

    The job exists, and schedulers are woken, once that transaction commits. What the database
    refuses is the driver's own error, with the SQLSTATEs of docs/sql-enqueue.md.

    Raises:
        InvalidJsonError: with the pointer of the place that cannot be stored; nothing was sent.
        TooLargeError: likewise.
        ValueError: `run_at` has no offset.
        TypeError: an option has no such name, or this is no connection for it.
    """
    values = _values(payload, options)
    match _kind(connection):
        case "asyncpg":
            return str(await connection.fetchval(_numbered(values), *values.values()))
        case "asynchronous psycopg":
            async with connection.cursor(row_factory=_first_column) as cursor:
                await cursor.execute(_for_cursor(cursor, values), tuple(values.values()))
                return str(await cursor.fetchone())
        case "asynchronous sqlalchemy":
            if not hasattr(connection, "exec_driver_sql"):
                connection = await connection.connection()
            statement, arguments = _for_driver(connection, values)
            return str((await connection.exec_driver_sql(statement, arguments)).scalar_one())
        case _:
            raise _unfit(connection, "enqueue")


def enqueue_sync(connection: Any, payload: Mapping[str, Any], **options: Unpack[Options]) -> str:
    """As `enqueue`, for connections that block."""
    values = _values(payload, options)
    match _kind(connection):
        case "psycopg":
            with connection.cursor(row_factory=_first_column) as cursor:
                cursor.execute(_for_cursor(cursor, values), tuple(values.values()))
                return str(cursor.fetchone())
        case "sqlalchemy":
            if not hasattr(connection, "exec_driver_sql"):
                connection = connection.connection()
            statement, arguments = _for_driver(connection, values)
            return str(connection.exec_driver_sql(statement, arguments).scalar_one())
        case _:
            raise _unfit(connection, "enqueue_sync")


def _values(payload: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """What the function is called with, by the names of its arguments."""
    if unknown := sorted(options.keys() - _TYPES.keys()):
        raise TypeError(f"a job has no option {', '.join(unknown)}")
    values = {"payload": payload, **options}
    values["payload"] = dump_field(dict(payload), "payload", MAX_PAYLOAD_BYTES)
    if values.get("metadata") is not None:
        values["metadata"] = dump_field(dict(values["metadata"]), "metadata", MAX_METADATA_BYTES)
    if values.get("tags") is not None:
        values["tags"] = list(values["tags"])
    if values.get("run_at") is not None and values["run_at"].utcoffset() is None:
        raise ValueError("run_at needs its offset from UTC")
    return values


def _call(names: Sequence[str], placeholder: Callable[[int], str]) -> str:
    arguments = (f"{name} => {placeholder(n)}::{_TYPES[name]}" for n, name in enumerate(names, 1))
    return f"select haulage.enqueue({', '.join(arguments)})::text"


def _numbered(values: Mapping[str, Any]) -> str:
    return _call(list(values), "${}".format)


def _marked(values: Mapping[str, Any]) -> str:
    return _call(list(values), lambda _: "%s")


def _for_cursor(cursor: Any, values: Mapping[str, Any]) -> str:
    """The call for a cursor of psycopg: raw ones take the server's own placeholders."""
    is_raw = any("Raw" in kind.__name__ for kind in type(cursor).__mro__)
    return _numbered(values) if is_raw else _marked(values)


def _for_driver(connection: Any, values: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """The call as the driver below SQLAlchemy spells it."""
    style = connection.dialect.paramstyle
    spell = {"numeric_dollar": _numbered, "pyformat": _marked, "format": _marked}.get(style)
    if connection.dialect.name != "postgresql" or spell is None:
        raise TypeError(f"{connection.dialect.driver} is no driver of PostgreSQL known here")
    return spell(values), tuple(values.values())


def _kind(connection: Any) -> str:
    """The library of a connection or session, also where its class was derived; "" for others."""
    modules = [kind.__module__ for kind in type(connection).__mro__]
    libraries = {module.partition(".")[0] for module in modules}
    # Pools and engines have other methods: what they run is in no transaction of the caller's.
    if "asyncpg" in libraries and hasattr(connection, "is_in_transaction"):
        return "asyncpg"
    if "psycopg" in libraries and hasattr(connection, "cursor"):
        is_asynchronous = inspect.iscoroutinefunction(type(connection).execute)
        return "asynchronous psycopg" if is_asynchronous else "psycopg"
    is_session = hasattr(connection, "flush")
    if "sqlalchemy" in libraries and (is_session or hasattr(connection, "exec_driver_sql")):
        is_asynchronous = any(module.startswith("sqlalchemy.ext.asyncio") for module in modules)
        return "asynchronous sqlalchemy" if is_asynchronous else "sqlalchemy"
    return ""


def _first_column(_cursor: Any) -> Callable[[Sequence[Any]], Any]:
    """Whatever shape the caller's connection gives to its rows, ours are one value."""
    return lambda values: values[0]


def _unfit(connection: Any, name: str) -> TypeError:
    kind = type(connection)
    return TypeError(f"{name} takes no {kind.__module__}.{kind.__qualname__}: give it a connection")
