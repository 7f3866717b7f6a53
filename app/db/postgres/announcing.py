"""Tells the database once, at a service's start, what the service can run; it must never hold on.

`haulage.enqueue` has to know the names and defaults that requests over HTTP get from the service's
own memory. Services add to each other's; one that stops takes nothing back.
"""

import asyncio
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import asyncpg

from app.db.postgres.connections import connect, unavailable_errors
from app.db.postgres.statements import STATEMENTS
from app.db.urls import DatabaseURL
from app.domain.errors import RoleError
from app.domain.jobs import Registration


def announce_pipelines(
    url: DatabaseURL,
    registrations: Collection[Registration],
    *,
    default: str | None,
    with_dataset: Collection[str],
    unasked: Collection[str] = (),
) -> None:
    """Store what jobs may name and what they get where they say nothing.

    Args:
        default: name of the pipeline for jobs that name none; None leaves it as it is.
        with_dataset: names of those whose payloads name a dataset.
        unasked: names of those whose classes could not be asked for their defaults; what others
            told of them stays.

    Raises:
        DatabaseUnavailableError
        RoleError: we may not write it.
    """
    columns = zip(
        *(
            (
                each.name,
                each.max_attempts,
                each.limits.timeout_seconds,
                each.limits.start_timeout_seconds,
                each.limits.stall_seconds,
                each.limits.memory_limit_bytes,
                each.name in with_dataset,
            )
            for each in registrations
        ),
        strict=True,
    )
    # In a thread, so that callers inside a running event loop (uvicorn's factory) work too.
    with ThreadPoolExecutor(1, thread_name_prefix="haulage-announce") as executor:
        work = _announce(url, [list(column) for column in columns], default, list(unasked))
        executor.submit(asyncio.run, work).result()


async def _announce(
    url: DatabaseURL, columns: list[list[object]], default: str | None, unasked: list[str]
) -> None:
    async with unavailable_errors():
        connection = await connect(url.asyncpg_dsn, "haulage-announce")
        try:
            statement = STATEMENTS["announce_pipelines"].sql
            await connection.execute(statement, *columns, default, unasked)
        except asyncpg.InsufficientPrivilegeError as error:
            raise RoleError(f"{error}, of the schema haulage") from error
        finally:
            connection.terminate()
