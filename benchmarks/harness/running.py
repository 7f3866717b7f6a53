"""A cluster and a service that belong to one benchmark, and what their processes use."""

import asyncio
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncpg

from app.db import migrate
from app.db.postgres.embedded import EmbeddedPostgres
from app.db.urls import DatabaseURL

ROOT = Path(__file__).resolve().parents[2]
DATABASE = "haulage"
READY_SECONDS = 60
PIPELINES = "burn=benchmarks.harness.pipelines:Burn"


@dataclass(frozen=True, slots=True)
class Database:
    """A migrated database in a durable cluster that belongs to this benchmark alone.

    Attributes:
        pid: of the server's main process; after `restart_at_once` of the former one.
    """

    url: str
    pid: int
    _server: EmbeddedPostgres
    _runner: asyncio.Runner
    _connection: "asyncpg.Connection[asyncpg.Record]"

    def run(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        """Rows of one statement, on the benchmark's own connection."""
        return self._runner.run(self._connection.fetch(statement, *arguments))

    def migrated(self, name: str) -> str:
        """The URL of one more database of this server, with the newest schema."""
        self.run(f"create database {name}")
        url = replace(DatabaseURL.parse(self.url), database=name)
        migrate.upgrade(url)
        return url.asyncpg_dsn

    def restart_at_once(self) -> None:
        """Stop the server like a power failure and start it; this object's session is gone."""
        pid = self._server.status().pid
        assert pid is not None
        os.kill(pid, signal.SIGQUIT)
        while self._server.status().is_running:
            time.sleep(0.01)
        self._server.start()

    def wait_until_zero(
        self, statement: str, *arguments: Any, timeout_seconds: float = 110.0
    ) -> None:
        """Return once the statement's only value is 0; AssertionError after the time-out."""
        end = time.monotonic() + timeout_seconds
        while self.run(statement, *arguments)[0][0]:
            assert time.monotonic() < end, f"not zero in {timeout_seconds} s: {statement}"
            time.sleep(0.02)


@contextmanager
def database() -> Iterator[Database]:
    """Start PostgreSQL in a temporary folder, as durable as a user's own."""
    folder = Path(tempfile.mkdtemp(prefix="haulage-bench-"))
    folder.chmod(0o755)  # as root the server runs under an account that has to get in
    try:
        with EmbeddedPostgres(folder) as server:
            server.ensure_database(DATABASE)
            url = server.url(DATABASE)
            migrate.upgrade(DatabaseURL.parse(url))
            pid = server.status().pid
            assert pid is not None
            with asyncio.Runner() as runner:
                connection = runner.run(asyncpg.connect(url, command_timeout=120))
                yield Database(url, pid, server, runner, connection)
                runner.run(connection.close())
    finally:
        shutil.rmtree(folder)


@dataclass(frozen=True, slots=True)
class Service:
    """A running process of Haulage."""

    pid: int
    url: str


@contextmanager
def service(database: Database, role: str = "serve", **settings: object) -> Iterator[Service]:
    """Run a role as a process of its own and stop it at the end.

    Args:
        settings: without their prefix, such as max_concurrent_jobs=4.
    """
    # Without compiled modules each job would pay for compiling them.
    unwanted = ("HAULAGE_", "PYTHONDONTWRITEBYTECODE")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
    given = {"pipelines": PIPELINES, "shutdown_grace_seconds": 0, "log_level": "INFO", **settings}
    environment |= {f"HAULAGE_{name.upper()}": _text(value) for name, value in given.items()}
    environment |= {"HAULAGE_DATABASE_URL": database.url, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "app", role, *([] if role == "worker" else ["--port", "0"])]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        if role == "worker":
            _wait_for(process.stderr.fileno(), rb"(manager.started)")
            url = ""
        else:
            url = _wait_for(process.stdout.fileno(), rb"ready at (\S+)")
        # Its log lines go nowhere, but they must go: a full pipe would stop it.
        with subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL):
            try:
                yield Service(process.pid, url)
            finally:
                process.terminate()
                process.wait(30)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()
        process.stderr.close()


def _wait_for(descriptor: int, wanted: bytes) -> str:
    seen = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        end = time.monotonic() + READY_SECONDS
        while selector.select(max(0.0, end - time.monotonic())):
            seen += (chunk := os.read(descriptor, 4096))
            if found := re.search(wanted, seen):
                return found[1].decode()
            if not chunk:
                break
    raise AssertionError(f"the service did not start: {seen.decode()}")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def cpu_seconds(root: int) -> float:
    """What a process, its descendants and their ended children have used so far."""
    used: dict[int, int] = {}
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # ended meanwhile
                continue
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = sum(map(int, fields[11:15]))
    tree = layer = {root}
    while layer:
        layer = {pid for pid, parent in parents.items() if parent in layer} - tree
        tree = tree | layer
    return sum(used.get(pid, 0) for pid in tree) / os.sysconf("SC_CLK_TCK")
