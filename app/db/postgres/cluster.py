"""One PostgreSQL cluster on disk: made once, served by at most one server, never half of either.

    folder/          pg18, named by the major version that its data is bound to
      data/          belongs to the server's account, the rest belongs to us
      data.new/      an unfinished `data`; the rename is what finishes it
      password       of the superuser, readable by its owner alone
      port           of the last server, asked for again so that addresses stay valid
      postgres.log   postgres.log.1 before it
      binaries/      a copy, where the account cannot reach the installed ones
      server.lock    held by every process of the server, and by initdb

The lock is handed down from us to `initdb` and to the server. Who can take it knows that nothing of
an earlier server lives any more: no backend with shared memory, no orphan of a killed starter.
Process ids cannot tell that, they are reused and zombies keep them.
"""

import logging
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT
from typing import Self

from app.db.postgres.account import Account
from app.db.postgres.binaries import Binaries
from app.db.postgres.locks import POLL_SECONDS, FileLock
from app.domain.errors import EmbeddedDatabaseError

HOST = "127.0.0.1"
SUPERUSER = "postgres"

_INITDB_SECONDS = 180
_START_SECONDS = 120
_STOP_SECONDS = 60
_NEW_PORTS = 5
_LOG_BYTES = 10 * 1024 * 1024
_PORT_TAKEN = "could not create any TCP/IP sockets"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Postmaster:
    """What a server's main process says about itself in `postmaster.pid`; it may be dead."""

    pid: int
    port: int
    is_ready: bool

    @classmethod
    def read(cls, data: Path) -> Self | None:
        """Return None where there is no such file or it is still being written."""
        try:
            lines = (data / "postmaster.pid").read_text().splitlines()
            return cls(pid=int(lines[0]), port=int(lines[3]), is_ready=lines[7].strip() == "ready")
        except (FileNotFoundError, IndexError, ValueError):
            return None

    @property
    def is_serving(self) -> bool:
        """Whether it says that it is ready and its port accepts connections."""
        if self.is_ready:
            with suppress(OSError), socket.create_connection((HOST, self.port), timeout=5):
                return True
        return False


class Cluster:
    """The files and the server of one folder; callers hold a lock of their own around changes."""

    def __init__(
        self,
        folder: Path,
        binaries: Binaries,
        account: Account,
        *,
        durable: bool,
        max_connections: int,
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._binaries = binaries
        self._account = account
        self._durable = durable
        self._max_connections = max_connections
        self._log = folder / "postgres.log"
        self._lock = FileLock(folder / "server.lock")

    @property
    def password(self) -> str:
        """The superuser's password."""
        return (self.folder / "password").read_text().strip()

    @property
    def port(self) -> int | None:
        """Where the server listens, or listened last; None before its first start."""
        with suppress(FileNotFoundError, ValueError):
            return int((self.folder / "port").read_text())
        return None

    @property
    def postmaster(self) -> Postmaster | None:
        """The server that answers now."""
        found = Postmaster.read(self.data)
        return found if found and found.is_serving else None

    def ensure_serving(self) -> None:
        """Find the server or start it, on the last port where that is free.

        Raises:
            EmbeddedDatabaseError: it cannot be made, started or waited for.
        """
        if server := self._find_server():
            self._remember(server.port)  # its starter may have died before it could
            return
        try:
            self._initialise()
            self._clear_stale_pid()
            self._launch()
        finally:
            self._lock.release()  # the server holds it by itself now

    def stop(self) -> None:
        """Close all connections, write everything down, wait until every server process is gone.

        Raises:
            EmbeddedDatabaseError: that took too long.
        """
        if server := self._find_server():
            # Fast shutdown. SIGTERM would wait for clients to leave by themselves.
            with suppress(ProcessLookupError):
                os.kill(server.pid, SIGINT)
            if not self._lock.wait_exclusive(_STOP_SECONDS):
                raise EmbeddedDatabaseError(
                    f"PostgreSQL did not stop in {_STOP_SECONDS} s: see {self._log}"
                )
        self._lock.release()

    def _find_server(self) -> Postmaster | None:
        """Return the server that answers, or None when none is left and we hold the lock."""
        deadline = time.monotonic() + _START_SECONDS
        while not self._lock.try_exclusive():
            if server := self.postmaster:
                return server
            # It is starting, or what a killed one left behind is still ending.
            if time.monotonic() > deadline:
                raise EmbeddedDatabaseError(
                    f"the processes of a server in {self.folder} neither answered nor ended "
                    f"in {_START_SECONDS} s: see {self._log}"
                )
            time.sleep(POLL_SECONDS)
        return None

    def _initialise(self) -> None:
        major = self._binaries.major
        with suppress(FileNotFoundError):
            found = (self.data / "PG_VERSION").read_text().strip()
            if found != str(major):
                raise EmbeddedDatabaseError(
                    f"{self.data} holds data of PostgreSQL {found}, not {major}: "
                    "move it away, or set HAULAGE_DATA_DIR to another folder"
                )
            return
        for other in self.folder.parent.glob("pg*/data/PG_VERSION"):
            _logger.warning("new cluster %s: the data in %s stays there", self.data, other.parent)

        unfinished = self.folder / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        self._account.give(unfinished)
        self._write_password()
        options = ["--encoding=UTF8", "--locale=C", "--data-checksums", "--auth=scram-sha-256"]
        if major >= 17:  # noqa: PLR2004 - the first version with a locale of its own
            options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        if not self._durable:
            options += ["--no-sync"]
        done = self._account.run(
            [
                self._programs / "initdb",
                f"--pgdata={unfinished}",
                f"--username={SUPERUSER}",
                f"--pwfile={self.folder / 'password'}",
                *options,
            ],
            timeout_seconds=_INITDB_SECONDS,
            pass_fds=[self._lock.fileno()],
        )
        if done.returncode != 0:
            raise EmbeddedDatabaseError(
                f"initdb ended with {done.returncode} in {self.folder}: {_end_of(done.stdout)}"
            )
        unfinished.rename(self.data)
        _sync(self.folder)  # or a power failure could undo the rename under committed rows

    def _write_password(self) -> None:
        path = self.folder / "password"
        with open(path, "w", opener=_private) as file:
            file.write(secrets.token_urlsafe(24) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._account.give(path)

    def _clear_stale_pid(self) -> None:
        """Remove the file of a server that is gone: PostgreSQL believes any process of that id."""
        postmaster = Postmaster.read(self.data)
        if postmaster and self._is_alive(postmaster.pid):
            raise EmbeddedDatabaseError(
                f"process {postmaster.pid} serves {self.data} but was not started by Haulage: "
                "stop it with pg_ctl"
            )
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _is_alive(self, pid: int) -> bool:
        """Whether a server without our lock, started by hand, uses the data folder."""
        if Path("/proc/self").exists():
            # A server works in its data folder; only its own account may look, a zombie has none.
            shown = self._account.run(["readlink", f"/proc/{pid}/cwd"], timeout_seconds=10).stdout
            return shown.strip() == str(self.data)
        shown = self._account.run(["ps", "-o", "comm=", "-p", str(pid)], timeout_seconds=10).stdout
        return shown.strip().endswith("postgres")

    def _launch(self) -> None:
        if self._log.exists() and self._log.stat().st_size > _LOG_BYTES:
            self._log.replace(self._log.with_suffix(".log.1"))
        said = ""
        for port in self._ports():
            with open(self._log, "ab", opener=_private) as log:
                begin = log.tell()
                done = self._account.run(
                    [
                        self._programs / "pg_ctl",
                        f"--pgdata={self.data}",
                        "--silent",
                        "--wait",
                        f"--timeout={_START_SECONDS}",
                        f"--options={self._options(port)}",
                        "start",
                    ],
                    timeout_seconds=_START_SECONDS + 10,
                    output=log,
                    pass_fds=[self._lock.fileno()],
                )
            if done.returncode == 0:
                self._remember(port)
                return
            said = self._log.read_bytes()[begin:].decode(errors="replace")
            if _PORT_TAKEN not in said:
                break
        raise EmbeddedDatabaseError(
            f"PostgreSQL did not start: {_end_of(said)} (more in {self._log})"
        )

    def _remember(self, port: int) -> None:
        if port != self.port:
            unfinished = self.folder / "port.new"
            unfinished.write_text(str(port))
            unfinished.replace(self.folder / "port")

    def _options(self, port: int) -> str:
        settings = {
            "port": port,
            "listen_addresses": HOST,
            "unix_socket_directories": "",  # their paths are limited to 107 bytes
            "max_connections": self._max_connections,
            "timezone": "UTC",
            "log_timezone": "UTC",
        }
        if not self._durable:
            settings |= {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
        return " ".join(f"-c {name}={value}" for name, value in settings.items())

    def _ports(self) -> Iterator[int]:
        if self.port and _is_free(self.port):
            yield self.port
        for _ in range(_NEW_PORTS):
            with socket.create_server((HOST, 0)) as probe:
                port: int = probe.getsockname()[1]
            yield port

    @property
    def _programs(self) -> Path:
        if not self._binaries.can_be_run_by(self._account):
            self._binaries = self._binaries.copy_below(self.folder / "binaries")
        return self._binaries.folder


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)


def _is_free(port: int) -> bool:
    # Like the server, create_server does not mind connections that are only lingering.
    with suppress(OSError), socket.create_server((HOST, port)):
        return True
    return False


def _end_of(text: str, lines: int = 5) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-lines:])


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
