"""Folders for embedded servers, and the promise that no test leaves a process in them."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from embedded.observing import eventually, processes_of

from app.db.postgres.embedded import EmbeddedPostgres


@contextmanager
def _open_folder() -> Iterator[Path]:
    """A temporary folder that the server's account can reach; pytest's own are closed to it."""
    folder = Path(tempfile.mkdtemp(prefix="haulage-embedded-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def empty_folder() -> Iterator[Path]:
    """A data folder without a cluster."""
    with _open_folder() as folder:
        yield folder
        _stop(folder)


@pytest.fixture(scope="session")
def _initialised() -> Iterator[Path]:
    with _open_folder() as folder:
        with EmbeddedPostgres(folder, durable=False):
            pass
        yield folder


@pytest.fixture
def folder(_initialised: Path) -> Iterator[Path]:
    """A data folder with a stopped cluster, the same one for all tests."""
    yield _initialised
    _stop(_initialised)


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedPostgres]:
    """A running server of which the test is the only user."""
    with EmbeddedPostgres(folder, durable=False) as server:
        yield server


@pytest.fixture
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can switch accounts")


def _stop(folder: Path) -> None:
    for cluster in folder.glob("pg*/data"):
        if (cluster / "PG_VERSION").read_text().strip().isdecimal():
            EmbeddedPostgres(folder).stop(force=True)
    eventually(lambda: not processes_of(folder))
