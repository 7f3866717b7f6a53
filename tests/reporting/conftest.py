"""An adapter to work with and a session to read views in, on one fresh database."""

from collections.abc import AsyncGenerator

import asyncpg
import pytest

from app.db.postgres.adapter import PostgresJobsDB


@pytest.fixture
async def db(database_url: str) -> AsyncGenerator[PostgresJobsDB, None]:
    adapter = PostgresJobsDB(database_url, default_pipeline="by-default", notify=False)
    yield adapter
    await adapter.close()


@pytest.fixture
async def session(
    database_url: str,
) -> AsyncGenerator["asyncpg.Connection[asyncpg.Record]", None]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()
