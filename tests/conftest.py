"""One server of each kind per session, a fresh database per test, and nothing left behind."""

import asyncio
import multiprocessing
import os
from collections.abc import AsyncGenerator, Generator, Iterator

import pytest
from support import mongo
from support.mongo import MongoDatabase, MongoServer
from support.postgres import SETTING, PostgresServer, PostgresSource, choose_source

from app.db import migrate
from app.db.mongo import upgrading
from app.db.urls import DatabaseURL

_SETTINGS = (SETTING, mongo.SETTING)
_SOURCE = pytest.StashKey[PostgresSource]()


def pytest_configure(config: pytest.Config) -> None:
    # Settings of the person who runs the tests must not steer them.
    for name in list(os.environ):
        if name == "DATABASE_URL" or (name.startswith("HAULAGE_") and name not in _SETTINGS):
            del os.environ[name]
    config.stash[_SOURCE] = choose_source()


def pytest_report_header(config: pytest.Config) -> list[str]:
    return [
        f"PostgreSQL for tests: {config.stash[_SOURCE].label}",
        f"MongoDB for tests: {mongo.source()}",
    ]


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with request.config.stash[_SOURCE].running() as server:
        yield server


@pytest.fixture(scope="session")
def template_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database with the newest schema, to be cloned; nobody stays connected to it."""
    url = asyncio.run(postgres_server.create_database())
    migrate.upgrade(DatabaseURL.parse(url))
    yield url
    asyncio.run(postgres_server.drop_database(url))


@pytest.fixture
async def database_url(
    postgres_server: PostgresServer, template_url: str
) -> AsyncGenerator[str, None]:
    """A fresh database with the newest schema."""
    url = await postgres_server.create_database(template_url)
    yield url
    await postgres_server.drop_database(url)


@pytest.fixture
async def empty_database_url(postgres_server: PostgresServer) -> AsyncGenerator[str, None]:
    """A fresh database without any schema."""
    url = await postgres_server.create_database()
    yield url
    await postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def mongo_server() -> Iterator[MongoServer]:
    with mongo.running() as server:
        yield server


@pytest.fixture(scope="session")
def upgraded_mongo(mongo_server: MongoServer) -> Iterator[MongoDatabase]:
    """A database with the newest indexes, which take a second and a half to make."""
    with mongo_server.database() as database:
        upgrading.upgrade(database.url)
        yield database


@pytest.fixture
def mongo_database_url(upgraded_mongo: MongoDatabase) -> Iterator[str]:
    """A database with the newest indexes and nothing else in it."""
    yield upgraded_mongo.url
    upgraded_mongo.empty()


@pytest.fixture
def empty_mongo_url(mongo_server: MongoServer) -> Iterator[str]:
    """A database that does not exist yet."""
    with mongo_server.database() as database:
        yield database.url


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Generator[None, None, None]:
    """No test may leave a child process of multiprocessing behind."""
    yield
    left = multiprocessing.active_children()
    assert not left, f"worker processes left behind: {left}"
