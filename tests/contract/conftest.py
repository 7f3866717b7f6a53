"""The store under test is a parameter: each test runs over every adapter and names it in its id."""

from collections.abc import AsyncGenerator

import pytest
from contract.mongo_store import MongoStore
from contract.stores import PostgresStore, Store

from app.db.interface import DBInterface

STORES = ("postgres", "mongo")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*capabilities): skipped over stores without them")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Store:
    """A fresh, empty store."""
    chosen: Store = request.getfixturevalue(f"{request.param}_store")
    needed = request.node.get_closest_marker("needs")
    if needed is not None and (missing := set(needed.args) - chosen.capabilities):
        pytest.skip(f"{chosen.name} has no {', '.join(sorted(missing))}")
    return chosen


@pytest.fixture
def db(store: Store) -> DBInterface:
    """The adapter that most tests talk to."""
    return store.connect()


@pytest.fixture
async def postgres_store(database_url: str) -> AsyncGenerator[PostgresStore, None]:
    store = PostgresStore(database_url)
    yield store
    await store.close()


@pytest.fixture
async def mongo_store(mongo_database_url: str) -> AsyncGenerator[MongoStore, None]:
    store = MongoStore(mongo_database_url)
    yield store
    await store.close()
