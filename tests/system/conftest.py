"""Services as a user starts them: one per start method for tests that harm nobody, or one's own.

The store below them is a parameter: a test runs over each that has what the test needs, and names
it in its id.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pytest
from support.cluster import durable_cluster
from support.endings import ENDINGS
from support.hostile import HOSTILE
from support.mongo import MongoDatabase, MongoServer
from support.pipelines import PIPELINES
from support.postgres import PostgresServer
from support.processes import descendants, living
from support.service import Service, running, wait_until
from system.mongo_store import MongoStore
from system.servers import SERVERS, Server
from system.stores import STORES, PostgresStore, Store

from app.db.mongo import upgrading
from app.db.postgres.embedded import EmbeddedPostgres

# Quick to notice, quick to end; everything else is as a user gets it.
SETTINGS: dict[str, Any] = {
    "max_concurrent_jobs": 4,
    "watchdog_interval_seconds": 0.5,
    "kill_grace_seconds": 0.5,
    "shutdown_grace_seconds": 1,
    "pipelines": {**PIPELINES, **ENDINGS, **HOSTILE},
}

Start = Callable[..., AbstractContextManager[Service]]


START_METHODS = ("forkserver", "spawn")
KINDS: dict[str, type[Store]] = {kind.name: kind for kind in (PostgresStore, MongoStore)}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*capabilities): only over stores that have them")
    config.addinivalue_line("markers", "one_store: the store takes no part in what is tried")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.system)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # Some tests choose one themselves.
    marks = metafunc.definition.iter_markers("parametrize")
    is_chosen = any("start_method" in mark.args[0] for mark in marks)
    has_method = "start_method" in metafunc.fixturenames and not is_chosen
    stores = _stores(metafunc.definition)
    used = [name for name in ("store", "shared_store", "server") if name in metafunc.fixturenames]
    if used and has_method:
        # How workers are started has nothing to do with the store: once by spawn is enough.
        pairs = [(stores[0], method) for method in START_METHODS]
        pairs += [(store, START_METHODS[0]) for store in stores[1:]]
        metafunc.parametrize((*used, "start_method"), pairs, indirect=True)
    elif used:
        metafunc.parametrize(used, [(store,) for store in stores], indirect=True)
    elif has_method:
        metafunc.parametrize("start_method", START_METHODS, indirect=True)


def _stores(test: pytest.Item) -> list[str]:
    """Names of the stores that a test runs over."""
    needed = {capability for mark in test.iter_markers("needs") for capability in mark.args}
    able = [name for name in STORES if needed <= KINDS[name].capabilities]
    assert able, f"{test.name} needs what no store has: {needed}"
    return able[:1] if test.get_closest_marker("one_store") else able


@pytest.fixture(scope="session")
def start_method(request: pytest.FixtureRequest) -> str:
    method: str = request.param
    return method


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    """A fresh, empty store."""
    chosen: Store = request.getfixturevalue(f"{request.param}_store")
    return chosen


@pytest.fixture
def postgres_store(database_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(database_url)) as store:
        yield store


@pytest.fixture
def mongo_store(mongo_database_url: str, upgraded_mongo: MongoDatabase) -> Iterator[MongoStore]:
    with closing(MongoStore(mongo_database_url, upgraded_mongo.client)) as store:
        yield store


@pytest.fixture
def start(store: Store, tmp_path: Path) -> Start:
    """Starts a role on this test's store, with settings of its own on top of SETTINGS.

    Another `database_url` leads to it too, by way of something else.
    """

    numbers = itertools.count()

    def started(role: str = "serve", **settings: Any) -> AbstractContextManager[Service]:
        log = tmp_path / f"log-{next(numbers)}"
        way = settings.pop("database_url", store.url)
        return running(role, way, log, **{**SETTINGS, **settings})

    return started


@pytest.fixture(scope="session")
def shared_store(request: pytest.FixtureRequest, start_method: str) -> Store:
    """The store of `service`; one for each start method, since not all jobs may have ended."""
    chosen: Store = request.getfixturevalue(f"shared_{request.param}_store")
    return chosen


@pytest.fixture(scope="session")
def shared_postgres_store(
    postgres_server: PostgresServer, template_url: str, start_method: str
) -> Iterator[PostgresStore]:
    url = asyncio.run(postgres_server.create_database(template_url))
    with closing(PostgresStore(url)) as store:
        yield store
    asyncio.run(postgres_server.drop_database(url))


@pytest.fixture(scope="session")
def shared_mongo_store(mongo_server: MongoServer, start_method: str) -> Iterator[MongoStore]:
    with mongo_server.database() as database:
        upgrading.upgrade(database.url)
        with closing(MongoStore(database.url, database.client)) as store:
            yield store


@pytest.fixture(scope="session")
def shared_url(shared_store: Store) -> str:
    """The database of `service`."""
    return shared_store.url


@pytest.fixture(scope="session")
def service(
    shared_store: Store, start_method: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """A service for many tests, stopped at the end without leaving anything behind."""
    log = tmp_path_factory.mktemp(start_method) / "log"
    settings = {**SETTINGS, "start_method": start_method}
    with running("serve", shared_store.url, log, **settings) as service:
        yield service
        started = descendants(service.pid)
        assert service.stop() == 0, log.read_text()
    wait_until(lambda: not living(started), f"end of {started}")
    wait_until(lambda: not shared_store.left_sessions(), "end of our sessions")


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that tests may crash; each takes a database of its own there."""
    with SERVERS[request.param]() as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedPostgres]:
    """A durable server that tests may crash; each takes a database of its own there."""
    with durable_cluster() as server:
        yield server
