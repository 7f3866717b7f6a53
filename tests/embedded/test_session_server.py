"""The test session's own server: which one it is, and databases cloned from a template."""

import asyncio

import asyncpg
import pytest
from embedded.observing import fetch
from support import postgres
from support.postgres import PostgresServer

from app.db.postgres.embedded import EmbeddedPostgres


async def test_a_clone_has_the_rows_of_its_template_and_goes_with_its_connections(
    server: EmbeddedPostgres,
) -> None:
    source = PostgresServer(server.url("postgres"), "STRATEGY file_copy")
    template = await source.create_database()
    await asyncio.to_thread(fetch, template, "CREATE TABLE kept AS SELECT 42 AS answer")
    clone = await source.create_database(template)
    assert clone != template
    connection = await asyncpg.connect(clone)
    assert await connection.fetchval("SELECT answer FROM kept") == 42

    await source.drop_database(clone)
    await source.drop_database(template)
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await asyncpg.connect(clone)
    connection.terminate()


def test_the_given_server_wins_and_its_password_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(postgres.SETTING, "postgres://me:secret@db.invalid/admin")
    source = postgres.choose_source()
    assert source.label == f"{postgres.SETTING} (postgresql://me:***@db.invalid:5432/admin)"
    with source.running() as given:
        assert given.admin_url == "postgresql://me:secret@db.invalid:5432/admin"


@pytest.mark.parametrize(
    ("answers", "label"), [(True, "container postgres:18"), (False, "embedded server")]
)
def test_a_container_is_chosen_only_where_the_engine_answers(
    monkeypatch: pytest.MonkeyPatch, *, answers: bool, label: str
) -> None:
    monkeypatch.delenv(postgres.SETTING, raising=False)
    monkeypatch.setattr(postgres, "_docker_answers", lambda: answers)
    assert postgres.choose_source().label == label


def test_no_engine_answers_where_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    assert postgres._docker_answers() is False
