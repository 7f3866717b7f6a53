"""Clusters of a test's own, whose server it may stop, demote, freeze or starve of disk."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.processes import frozen
from support.service import process_exists, wait_until
from support.sql import value

from app.db.postgres.embedded import EmbeddedPostgres

FULL_BLOCK_BYTES = 1024 * 1024


@contextmanager
def durable_cluster(
    folder: Path | None = None, *, max_connections: int = 200
) -> Iterator[EmbeddedPostgres]:
    """A running server in a temporary folder, or in one of the caller's; it may be down at the end.

    Args:
        folder: belongs to the caller, who also removes it.
    """
    own = None if folder else Path(tempfile.mkdtemp(prefix="haulage-durable-"))
    home = folder or own
    assert home is not None
    home.chmod(0o755)  # as root the server runs under an account that has to get in
    server = EmbeddedPostgres(home, max_connections=max_connections)
    try:
        server.start()
        yield server
    finally:
        server.stop(force=True)
        if own is not None:
            shutil.rmtree(own)


def stop_fast(server: EmbeddedPostgres) -> None:
    """What `pg_ctl stop -m fast` does: every session is ended in order."""
    _end(server, signal.SIGINT)


def crash(server: EmbeddedPostgres) -> None:
    """What `pg_ctl stop -m immediate` does: no session is ended in order, nothing written down."""
    _end(server, signal.SIGQUIT)


@contextmanager
def frozen_server(server: EmbeddedPostgres) -> Iterator[None]:
    """Nobody gets a new session, and nobody is told; the sessions there are go on."""
    with frozen(_pid(server)):
        yield


@contextmanager
def demoted(server: EmbeddedPostgres) -> Iterator[None]:
    """The server as a standby that only answers reads; promoted again at the end."""
    stop_fast(server)
    signpost = server.status().data_folder / "standby.signal"
    signpost.touch()
    server.start()
    try:
        yield
    finally:
        assert value(server.url("postgres"), "select pg_promote(true, 30)")


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A file system of its own in memory, for a server that is to fill it."""
    folder = Path(tempfile.mkdtemp(prefix="haulage-disk-"))
    options = f"size={megabytes}m,mode=755"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "haulage", folder],
        capture_output=True,
        check=False,
    )
    try:
        if mounted.returncode != 0:
            pytest.skip(f"no file system may be mounted here: {mounted.stderr.decode().strip()}")
        yield folder
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", folder], check=True)
        folder.rmdir()


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Not a byte is left on the disk until the end."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        size = FULL_BLOCK_BYTES
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
    try:
        yield
    finally:
        ballast.unlink()


def _pid(server: EmbeddedPostgres) -> int:
    pid = server.status().pid
    assert pid is not None
    return pid


def _end(server: EmbeddedPostgres, number: signal.Signals) -> None:
    pid = _pid(server)
    os.kill(pid, number)
    wait_until(lambda: not process_exists(pid), "end of the server")
