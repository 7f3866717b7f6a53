"""A session of this test's database."""

from collections.abc import AsyncGenerator

import asyncpg
import pytest
from reporting.kept import Connection


@pytest.fixture
async def connection(database_url: str) -> AsyncGenerator[Connection, None]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()
