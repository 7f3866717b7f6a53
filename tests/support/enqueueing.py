"""Jobs by `haulage.enqueue`, and pipelines for them to name."""

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

import asyncpg
import pytest
from pydantic import ValidationError

from app.api.intake import Intake, declares
from app.api.schemas import EnqueueRequest
from app.db.interface import DBInterface
from app.db.postgres.announcing import announce_pipelines
from app.db.urls import DatabaseURL
from app.domain.errors import HaulageError
from app.domain.jobs import Limits, Registration

DEFAULT: Final = "plain"
REGISTRATIONS: Final = {
    "plain": Registration("plain", "nowhere:Plain"),
    "limited": Registration(
        "limited", "nowhere:Limited", max_attempts=3, limits=Limits(600.0, 20.5, 60.0, 2**30)
    ),
    "reading": Registration(
        "reading",
        "nowhere:Reading",
        limits=Limits(memory_limit_bytes=2**31),
        payload_schema={"type": "object", "properties": {"dataset": {}}},
    ),
}
_JSON: Final = ("payload", "metadata")


async def announce(
    url: str,
    registrations: Mapping[str, Registration] = REGISTRATIONS,
    default: str | None = DEFAULT,
    unasked: Collection[str] = (),
    seconds_ago: float = 0.0,
) -> None:
    """As a service does that can run these."""
    await announce_pipelines(
        DatabaseURL.parse(url),
        registrations.values(),
        seconds_ago,
        default=default,
        with_dataset=[name for name, each in registrations.items() if declares(each, "dataset")],
        unasked=unasked,
    )


async def enqueue(
    connection: "asyncpg.Connection[asyncpg.Record]", payload: Any, **options: Any
) -> str:
    """The id of a job, submitted by plain SQL with these arguments."""
    given = {"payload": payload, **options}
    arguments = [
        f"{name} => ${n}::text::jsonb" if name in _JSON else f"{name} => ${n}"
        for n, name in enumerate(given, 1)
    ]
    values = [
        json.dumps(value) if name in _JSON and value is not None else value
        for name, value in given.items()
    ]
    job_id: str = await connection.fetchval(
        f"select haulage.enqueue({', '.join(arguments)})::text",
        *values,
    )
    return job_id


async def refusal(
    connection: "asyncpg.Connection[asyncpg.Record]", payload: Any = None, **options: Any
) -> asyncpg.PostgresError:
    """Why a job is not taken."""
    with pytest.raises(asyncpg.PostgresError) as caught:
        await enqueue(connection, payload, **options)
    return caught.value


async def by_request(db: DBInterface, payload: Any, **options: Any) -> str:
    """The id of a job that the API stores for such a body; what it refuses is a ValueError."""
    key = options.pop("idempotency_key", None)
    try:
        request = EnqueueRequest(payload=payload, **options)
        submission = Intake(REGISTRATIONS, DEFAULT).submission(request, key=key)
        return await db.insert_pending_job(submission.payload, submission.options)
    except (ValidationError, HaulageError) as error:
        raise ValueError(str(error)) from error
