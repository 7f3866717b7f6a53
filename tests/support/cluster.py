"""A durable cluster of one's own, whose server a test may stop like a power failure."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.service import process_exists, wait_until

from app.db.postgres.embedded import EmbeddedPostgres


@contextmanager
def durable_cluster() -> Iterator[EmbeddedPostgres]:
    """A running server in a temporary folder; it may be down at the end."""
    folder = Path(tempfile.mkdtemp(prefix="haulage-durable-"))
    folder.chmod(0o755)  # as root the server runs under an account that has to get in
    server = EmbeddedPostgres(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop(force=True)
        shutil.rmtree(folder)


def crash(server: EmbeddedPostgres) -> None:
    """What `pg_ctl stop -m immediate` does: no session is ended in order, nothing written down."""
    pid = server.status().pid
    assert pid is not None
    os.kill(pid, signal.SIGQUIT)
    wait_until(lambda: not process_exists(pid), "end of the server")
