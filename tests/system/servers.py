"""Servers of the stores that tests may kill and freeze: what they have answered is on the disk."""

import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Final, Protocol
from urllib.parse import urlsplit, urlunsplit

from pymongo import ReadPreference
from support import mongo
from support.cluster import crash, durable_cluster
from support.mongo import Mongod
from support.processes import frozen, frozen_family
from system.mongo_store import MongoStore
from system.stores import PostgresStore, Store

from app.db.postgres.embedded import EmbeddedPostgres


class Server(Protocol):
    """A running server; tests leave it running."""

    def new_store(self) -> AbstractContextManager[Store]:
        """A database of a test's own, whose schema the first service makes."""

    def crash(self) -> None:
        """End it without a word to anybody, and with nothing written down."""

    def start(self) -> None:
        """Start it again after a crash, and wait until it takes writes."""

    def frozen(self) -> AbstractContextManager[None]:
        """Nobody gets an answer, and nobody is told."""


class DurablePostgres:
    """The bundled PostgreSQL as users have it."""

    def __init__(self, cluster: EmbeddedPostgres) -> None:
        self._cluster = cluster

    @contextmanager
    def new_store(self) -> Iterator[Store]:
        name = f"test_{uuid.uuid4().hex}"
        self._cluster.ensure_database(name)
        with closing(PostgresStore(self._cluster.url(name))) as store:
            yield store

    def crash(self) -> None:
        crash(self._cluster)

    def start(self) -> None:
        self._cluster.start()

    def frozen(self) -> AbstractContextManager[None]:
        pid = self._cluster.status().pid
        assert pid is not None
        return frozen_family(pid)


class DurableMongo:
    """A replica set of one."""

    def __init__(self, url: str, server: Mongod) -> None:
        self._url = url
        self._server = server

    @contextmanager
    def new_store(self) -> Iterator[Store]:
        url = urlunsplit(urlsplit(self._url)._replace(path=f"/test_{uuid.uuid4().hex}"))
        with mongo.client(url) as client, closing(MongoStore(url, client)) as store:
            yield store

    def crash(self) -> None:
        self._server.stop(signal.SIGKILL)

    def start(self) -> None:
        self._server.start()
        self._server.wait_until_it_answers()
        # It elects itself a moment later.
        with mongo.client(self._url) as client:
            client.admin.command("ping", read_preference=ReadPreference.PRIMARY)

    def frozen(self) -> AbstractContextManager[None]:
        assert self._server.process is not None
        return frozen(self._server.process.pid)


@contextmanager
def durable_postgres() -> Iterator[Server]:
    with durable_cluster() as cluster:
        yield DurablePostgres(cluster)


@contextmanager
def durable_mongo() -> Iterator[Server]:
    with mongo.replica_set(1) as (url, [server]):
        yield DurableMongo(url, server)


SERVERS: Final[dict[str, Callable[[], AbstractContextManager[Server]]]] = {
    "postgres": durable_postgres,
    "mongo": durable_mongo,
}
