"""A database with the newest schema for scripts that look at one, gone when they are done."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.db import migrate
from app.db.opening import DATABASE_NAME
from app.db.postgres.embedded import EmbeddedPostgres
from app.db.urls import DatabaseURL


@contextmanager
def migrated_database() -> Iterator[str]:
    """The URL of an empty database on a bundled server of its own."""
    with tempfile.TemporaryDirectory(prefix="haulage-docs-") as folder:
        Path(folder).chmod(0o755)  # as root the server runs under an account that has to get in
        with EmbeddedPostgres(Path(folder), durable=False) as server:
            server.ensure_database(DATABASE_NAME)
            url = server.url(DATABASE_NAME)
            migrate.upgrade(DatabaseURL.parse(url))
            yield url
