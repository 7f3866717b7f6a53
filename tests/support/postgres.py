"""The PostgreSQL server of a test session, and a database of its own for every test.

The first of these that there is: the server of HAULAGE_TEST_DATABASE_URL, a container where a
Docker engine answers, the embedded server in a temporary folder.
"""

import gc
import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import asyncpg

from app.db.postgres.embedded import EmbeddedPostgres
from app.db.urls import DatabaseURL

SETTING = "HAULAGE_TEST_DATABASE_URL"
IMAGE = "postgres:18"
ENGINE_SECONDS = 2


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A running server.

    Attributes:
        admin_url: of a superuser, or of a role that may create databases.
        clone_options: what `CREATE DATABASE ... TEMPLATE` says to be quick on this server.
    """

    admin_url: str
    clone_options: str = ""

    async def create_database(self, template: str | None = None) -> str:
        """Create a database, empty or like the one at the URL `template`; return its URL.

        Nobody may be connected to the template.
        """
        name = f"test_{uuid.uuid4().hex}"
        clause = f'TEMPLATE "{_name(template)}" {self.clone_options}' if template else ""
        await self._execute(f'CREATE DATABASE "{name}" {clause}')
        return replace(DatabaseURL.parse(self.admin_url), database=name).asyncpg_dsn

    async def drop_database(self, url: str) -> None:
        """Drop the database at `url`, and with it the connections that are left to it."""
        await self._execute(f'DROP DATABASE IF EXISTS "{_name(url)}" WITH (FORCE)')

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self.admin_url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


@dataclass(frozen=True, slots=True)
class PostgresSource:
    """Where the session's server comes from; `running` starts it and stops it afterwards."""

    label: str
    running: Callable[[], AbstractContextManager[PostgresServer]]


def choose_source() -> PostgresSource:
    """Decide without starting anything; takes at most a few seconds."""
    if given := os.environ.get(SETTING):
        url = DatabaseURL.parse(given, setting=SETTING)
        return PostgresSource(f"{SETTING} ({url.masked})", lambda: _given(url))
    if _docker_answers():
        return PostgresSource(f"container {IMAGE}", _container)
    return PostgresSource("embedded server", embedded)


@contextmanager
def embedded() -> Iterator[PostgresServer]:
    """Run the embedded server in a temporary folder, without any safety against power failure."""
    folder = Path(tempfile.mkdtemp(prefix="haulage-test-"))
    folder.chmod(0o755)  # as root the server runs under an account that has to get in
    try:
        with EmbeddedPostgres(folder, durable=False) as server:
            # Without fsync copying files is much quicker than writing them through the log.
            yield PostgresServer(server.url("postgres"), clone_options="STRATEGY file_copy")
    finally:
        shutil.rmtree(folder)


@contextmanager
def _given(url: DatabaseURL) -> Iterator[PostgresServer]:
    yield PostgresServer(url.asyncpg_dsn)


@contextmanager
def _container() -> Iterator[PostgresServer]:
    from testcontainers.community.postgres import PostgresContainer  # noqa: PLC0415 - slow

    container = PostgresContainer(IMAGE, driver=None).with_command("postgres -c fsync=off")
    with container:
        yield PostgresServer(container.get_connection_url())


def _docker_answers() -> bool:
    import docker  # type: ignore[import-untyped]  # noqa: PLC0415 - slow

    try:
        with closing(docker.from_env(timeout=ENGINE_SECONDS)) as client:
            return bool(client.ping())
    except docker.errors.DockerException:
        pass
    with warnings.catch_warnings():
        # A client that is refused leaves its socket to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    return False


def _name(url: str) -> str | None:
    return DatabaseURL.parse(url).database
