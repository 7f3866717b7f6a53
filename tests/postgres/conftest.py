"""Sessions of this test's database, seen from one of its own."""

from collections.abc import AsyncGenerator

import asyncpg
import pytest
from support.proxy import Proxy, proxied
from support.sessions import Ear

from app.telemetry import Event, Telemetry


@pytest.fixture
async def observer(
    database_url: str,
) -> AsyncGenerator["asyncpg.Connection[asyncpg.Record]", None]:
    """A session that is none of Haulage's."""
    connection = await asyncpg.connect(database_url, server_settings={"application_name": "test"})
    yield connection
    await connection.close()


@pytest.fixture
async def ear(observer: "asyncpg.Connection[asyncpg.Record]") -> Ear:
    """What the observer hears of wake-ups for jobs."""
    listening = Ear(observer)
    await listening.listen()
    return listening


@pytest.fixture
async def proxy(database_url: str) -> AsyncGenerator[Proxy, None]:
    """A network in between that can fail."""
    async with proxied(database_url) as between:
        yield between


@pytest.fixture
def events() -> list[Event]:
    """What the code under test has emitted."""
    return []


@pytest.fixture
def telemetry(events: list[Event]) -> Telemetry:
    return Telemetry([events.append])
