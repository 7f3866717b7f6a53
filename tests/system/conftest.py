"""Services as a user starts them: one per start method for tests that harm nobody, or one's own."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from support.cluster import durable_cluster
from support.endings import ENDINGS
from support.hostile import HOSTILE
from support.pipelines import PIPELINES
from support.postgres import PostgresServer
from support.processes import descendants, living
from support.service import Service, running, wait_until
from support.sql import our_connections

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.system)


@pytest.fixture(scope="session", params=["forkserver", "spawn"])
def start_method(request: pytest.FixtureRequest) -> str:
    method: str = request.param
    return method


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Start:
    """Starts a role on this test's database, with settings of its own on top of SETTINGS.

    Another `database_url` leads to it too, by way of something else.
    """

    numbers = itertools.count()

    def started(role: str = "serve", **settings: Any) -> AbstractContextManager[Service]:
        log = tmp_path / f"log-{next(numbers)}"
        way = settings.pop("database_url", database_url)
        return running(role, way, log, **{**SETTINGS, **settings})

    return started


@pytest.fixture(scope="session")
def shared_url(
    postgres_server: PostgresServer, template_url: str, start_method: str
) -> Iterator[str]:
    """The database of `service`."""
    url = asyncio.run(postgres_server.create_database(template_url))
    yield url
    asyncio.run(postgres_server.drop_database(url))


@pytest.fixture(scope="session")
def service(
    shared_url: str, start_method: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """A service for many tests, stopped at the end without leaving anything behind."""
    log = tmp_path_factory.mktemp(start_method) / "log"
    with running("serve", shared_url, log, **SETTINGS, start_method=start_method) as service:
        yield service
        started = descendants(service.pid)
        assert service.stop() == 0, log.read_text()
    wait_until(lambda: not living(started), f"end of {started}")
    wait_until(lambda: not our_connections(shared_url), "end of our sessions")


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedPostgres]:
    """A durable server that tests may crash; each takes a database of its own there."""
    with durable_cluster() as server:
        yield server
