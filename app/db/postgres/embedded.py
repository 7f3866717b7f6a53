"""A PostgreSQL server for those who have none: started by the first user, stopped by the last.

Any number of processes share one server through two locks on files below the data folder:

    start.lock     held alone around every start and stop
    clients.lock   shared by every user for its life; who can turn it exclusive was the last

The kernel drops both with their holder, so a killed process is never counted as a user. The server
listens on loopback TCP only, asks for a random password, and never runs as root. Nothing here may
be called from a running event loop: use a thread.
"""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

import asyncpg

from app.db.postgres.account import Account
from app.db.postgres.binaries import Binaries, find_binaries
from app.db.postgres.cluster import HOST, SUPERUSER, Cluster
from app.db.postgres.locks import FileLock
from app.domain.errors import EmbeddedDatabaseError

# Longer than the longest start: who waits for it should then find the server.
_START_LOCK_SECONDS = 360
_ROOTS_DATA_DIR = Path("/var/lib/haulage")


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What is known about the server without starting it.

    Attributes:
        pid: of the server's main process, None when it is not running; `port` likewise.
        version: of the programs, such as "18.6".
    """

    is_running: bool
    pid: int | None
    port: int | None
    version: str
    data_folder: Path


def default_data_dir() -> Path:
    """Return /var/lib/haulage for root, else the user's own folder for application data."""
    if os.geteuid() == 0:
        return _ROOTS_DATA_DIR
    given = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".local/share") / "haulage"


class EmbeddedPostgres:
    """One process's share in the server of a data folder.

    Used as a context manager it starts on entry and closes on exit. An instance belongs to one
    thread at a time. All methods raise EmbeddedDatabaseError, whose message has the remedy.
    """

    def __init__(self, data_dir: Path, *, durable: bool = True, max_connections: int = 200) -> None:
        """Touch nothing yet.

        Args:
            data_dir: clusters live below it, one for each major version of PostgreSQL.
            durable: False gives up every safety against power failure; for tests. It counts
                for the process that starts the server, like `max_connections`.
            max_connections: upper bound of simultaneous connections.
        """
        self._data_dir = data_dir.expanduser().resolve()
        self._durable = durable
        self._max_connections = max_connections

    def start(self) -> None:
        """Become a user of the server, starting it where it does not run.

        Called again it restarts a server that died, on the same port unless another program took
        it. After a failed start the caller is no user; a server still recovering goes on.
        """
        with self._changing():
            try:
                # Nobody has it exclusively outside the start lock, which is ours.
                self._clients.try_shared()
                self._cluster.ensure_serving()
            except BaseException:
                self._leave()
                raise

    def close(self) -> bool:
        """Stop being a user; True when this was the last one and stopped the server.

        The server stays up after `keep_running`. Calling it twice does no harm.
        """
        if not self._clients.is_held:
            return False
        with self._changing():
            return self._leave()

    def keep_running(self) -> None:
        """Let the server outlive its last user, also over restarts, until `stop`."""
        with self._changing():
            self._keep.touch(mode=0o600)

    def stop(self, *, force: bool = False) -> None:
        """Stop the server and forget `keep_running`; does nothing when it is not running.

        With other users around it refuses and changes nothing, unless `force` takes the server
        away from them.
        """
        if not self._folder.is_dir():
            return
        with self._changing():
            was_user = self._clients.is_held
            if not self._clients.try_exclusive() and not force:
                if was_user:
                    self._clients.try_shared()
                raise EmbeddedDatabaseError(
                    f"other processes use the server in {self._folder}: "
                    "end them first, or stop it all the same with --force"
                )
            try:
                self._keep.unlink(missing_ok=True)
                self._cluster.stop()
            finally:
                self._clients.release()

    def status(self) -> ServerStatus:
        """Look, start nothing, write nothing."""
        with self._explained():
            postmaster = self._cluster.postmaster
        return ServerStatus(
            is_running=postmaster is not None,
            pid=postmaster.pid if postmaster else None,
            port=postmaster.port if postmaster else None,
            version=self._binaries.version,
            data_folder=self._cluster.data,
        )

    def url(self, database: str = "haulage") -> str:
        """Return the superuser's address of a database, password included."""
        return f"postgresql://{SUPERUSER}:{self._password}@{HOST}:{self._port}/{database}"

    def ensure_database(self, name: str) -> None:
        """Create an empty database unless there is one; several processes may do so at once."""
        asyncio.run(_create_database(self.url("postgres"), name))

    def psql_command(self, database: str, *args: str) -> tuple[list[str], dict[str, str]]:
        """Return the command line and the environment of a psql session.

        The password travels in the environment, where other users of the machine cannot see it.
        """
        bundled = self._binaries.folder / "psql"
        psql = str(bundled) if bundled.exists() else shutil.which("psql")
        if psql is None:
            raise EmbeddedDatabaseError(f"no psql in {bundled.parent} or on PATH: install one")
        # The caller's own PGHOST, PGOPTIONS and the like are meant for another server.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
        where = [f"--host={HOST}", f"--port={self._port}", f"--username={SUPERUSER}"]
        command = [psql, *where, f"--dbname={database}", *args]
        return command, environment | {"PGPASSWORD": self._password}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @cached_property
    def _account(self) -> Account:
        return Account.for_server()

    @cached_property
    def _binaries(self) -> Binaries:
        return find_binaries(self._account)

    @cached_property
    def _folder(self) -> Path:
        return self._data_dir / f"pg{self._binaries.major}"

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster(
            self._folder,
            self._binaries,
            self._account,
            durable=self._durable,
            max_connections=self._max_connections,
        )

    @cached_property
    def _clients(self) -> FileLock:
        return FileLock(self._folder / "clients.lock")

    @property
    def _keep(self) -> Path:
        return self._folder / "keep"

    @property
    def _port(self) -> int:
        port = self._cluster.port
        if port is None:
            raise EmbeddedDatabaseError(f"no server was ever started in {self._folder}: start it")
        return port

    @property
    def _password(self) -> str:
        with self._explained():
            return self._cluster.password

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the start lock; every start and every stop happens inside."""
        with self._explained():
            self._make_folder()
            lock = FileLock(self._folder / "start.lock")
            if not lock.wait_exclusive(_START_LOCK_SECONDS):
                raise EmbeddedDatabaseError(
                    f"another process has been starting or stopping the server in {self._folder} "
                    f"for {_START_LOCK_SECONDS} s: look for one that hangs"
                )
            try:
                yield
            finally:
                lock.release()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise EmbeddedDatabaseError(
                f"{error.filename or self._folder}: {error.strerror or error}; mend that, "
                "or set HAULAGE_DATA_DIR to another folder of yours"
            ) from error

    def _make_folder(self) -> None:
        nearest = next(p for p in (self._folder, *self._folder.parents) if p.exists())
        self._require_way_to(nearest)
        is_switched = self._account.uid is not None
        if not self._data_dir.exists():
            self._data_dir.mkdir(parents=True, exist_ok=True)
            if is_switched:
                self._data_dir.chmod(0o755)
        self._folder.mkdir(exist_ok=True)
        # Closed to others; the server's account has to pass through to its own part.
        self._folder.chmod(0o711 if is_switched else 0o700)
        self._require_way_to(self._folder)

    def _require_way_to(self, folder: Path) -> None:
        if not self._account.can_enter(folder):
            raise EmbeddedDatabaseError(
                f"started by root, PostgreSQL runs as {self._account.name}, who cannot reach "
                f"{folder}: set HAULAGE_DATA_DIR to a folder such as {_ROOTS_DATA_DIR}"
            )

    def _leave(self) -> bool:
        is_last = self._clients.try_exclusive()
        try:
            if not is_last or self._keep.exists():
                return False
            self._cluster.stop()
            return True
        finally:
            self._clients.release()


async def _create_database(admin_url: str, name: str) -> None:
    connection = await asyncpg.connect(admin_url)
    try:
        query = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)"
        if await connection.fetchval(query, name):
            return
        quoted = '"' + name.replace('"', '""') + '"'
        # Two creators can pass the check above; which error the later one gets depends on when.
        with suppress(asyncpg.DuplicateDatabaseError, asyncpg.UniqueViolationError):
            await connection.execute(f"CREATE DATABASE {quoted} TEMPLATE template0")
    finally:
        await connection.close()
