"""`haulage db grant-reader`: reports for a role, and nothing else."""

import asyncio
import dataclasses
from collections.abc import Iterator
from uuid import uuid4

import asyncpg
import pytest
from click.testing import CliRunner, Result
from support.postgres import PostgresServer
from support.sql import kept_session, rows, script, value
from support.waiting import eventually

from app.cli.database import database
from app.db.schema import metadata
from app.db.urls import DatabaseURL
from app.domain.errors import RoleError

REFUSED = (
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ReadOnlySQLTransactionError,
    # A view over several tables takes no rows from anybody.
    asyncpg.ObjectNotInPrerequisiteStateError,
)
PASSWORD = "reads-only"  # noqa: S105  of a server that goes with the tests


@pytest.fixture(autouse=True)
def _database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAULAGE_DATABASE_URL", database_url)


@pytest.fixture(params=["analyst", "an\"a'l;yst {x} Ü", "a$;\n$views$ b\\"])
def reader(request: pytest.FixtureRequest, database_url: str) -> Iterator[str]:
    """A role of this test alone, with a password and no rights yet."""
    name = f"{request.param} {uuid4().hex[:8]}"
    rows(database_url, f"create role {quoted(name)} login password '{PASSWORD}'")
    yield name
    rows(database_url, f"drop owned by {quoted(name)}")
    rows(database_url, f"drop role {quoted(name)}")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def url_of(reader: str, url: str) -> str:
    """The test's database, as this role."""
    parsed = DatabaseURL.parse(url)
    return dataclasses.replace(parsed, user=reader, password=PASSWORD).asyncpg_dsn


def run(*arguments: str) -> Result:
    return CliRunner().invoke(database, arguments)


def granted(reader: str, url: str, *arguments: str) -> str:
    done = run("grant-reader", reader, *arguments)
    assert done.exit_code == 0, done.output or done.exception
    assert reader in done.output
    return url_of(reader, url)


def limit(url: str, reader: str) -> int:
    """Sessions that the role may have at once, -1 for as many as it likes."""
    found: int = value(url, "select rolconnlimit from pg_roles where rolname = $1", reader)
    return found


def until_let_in(url: str) -> None:
    """Return once the server has a place for this session: one that ends keeps its own a little."""

    async def let_in() -> bool:
        try:
            connection = await asyncpg.connect(url)
        except asyncpg.TooManyConnectionsError:
            return False
        await connection.close()
        return True

    asyncio.run(eventually(let_in, "a place that was given up"))


def views(url: str) -> list[str]:
    found = rows(url, "select viewname from pg_views where schemaname = 'reporting'")
    return [row[0] for row in found]


def test_a_reader_runs_every_view(database_url: str, reader: str) -> None:
    theirs = granted(reader, database_url)

    assert views(database_url)
    for view in views(database_url):
        rows(theirs, f"select * from reporting.{view}")  # noqa: S608


def test_tables_and_functions_are_closed_to_a_reader(database_url: str, reader: str) -> None:
    theirs = granted(reader, database_url)

    names = [table.name for table in metadata.sorted_tables]
    for table in [*names, "alembic_version"]:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            rows(theirs, f"select from haulage.{table}")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        rows(theirs, "select haulage.enqueue('{}')")


@pytest.mark.parametrize(
    "statement",
    [
        "insert into reporting.jobs (id, pipeline) values (gen_random_uuid(), 'p')",
        "delete from reporting.jobs",
        "create view reporting.mine as select 1 as one",
        "create table haulage.mine (a int)",
    ],
)
def test_a_reader_writes_nothing_whatever_it_sets(
    database_url: str, reader: str, statement: str
) -> None:
    theirs = granted(reader, database_url)

    writing = theirs + ("&" if "?" in theirs else "?") + "default_transaction_read_only=off"
    assert value(theirs, "show default_transaction_read_only") == "on"
    assert value(writing, "show default_transaction_read_only") == "off"
    for url in (theirs, writing):
        with pytest.raises(REFUSED):
            rows(url, statement)


def test_a_long_statement_of_a_reader_is_ended(database_url: str, reader: str) -> None:
    theirs = granted(reader, database_url, "--timeout", "1")

    with pytest.raises(asyncpg.QueryCanceledError, match="statement timeout"):
        rows(theirs, "select count(*), pg_sleep(50) from reporting.jobs")
    assert value(theirs, "show idle_in_transaction_session_timeout") == "1s"
    assert value(theirs, "show max_parallel_workers_per_gather") == "0"
    # Granted again, other bounds hold; nothing is refused for having been there.
    assert value(granted(reader, database_url), "show statement_timeout") == "30s"


def test_a_session_more_than_allowed_is_refused_and_harms_no_other(
    database_url: str, reader: str
) -> None:
    theirs = granted(reader, database_url, "--connections", "2")

    with kept_session(theirs) as first, kept_session(theirs) as second:
        with pytest.raises(asyncpg.TooManyConnectionsError, match="too many connections for role"):
            value(theirs, "select 1")
        for session in (first, second):
            assert session("select * from reporting.jobs") == []
    # A place that was given up is there for the next.
    until_let_in(theirs)


def test_a_limit_stays_until_another_is_given_or_the_role_is_closed_out(
    database_url: str, reader: str
) -> None:
    rows(database_url, f"alter role {quoted(reader)} connection limit 7")
    granted(reader, database_url)
    assert limit(database_url, reader) == 7

    granted(reader, database_url, "--connections", "2")
    granted(reader, database_url)
    assert limit(database_url, reader) == 2
    granted(reader, database_url, "--connections", "3")
    assert limit(database_url, reader) == 3

    assert run("revoke-reader", reader).exit_code == 0
    assert limit(database_url, reader) == -1


def test_sessions_that_are_there_stay_when_the_limit_is_lowered(
    database_url: str, reader: str
) -> None:
    theirs = granted(reader, database_url)

    with kept_session(theirs) as first, kept_session(theirs) as second:
        granted(reader, database_url, "--connections", "1")
        for session in (first, second):
            assert session("select * from reporting.jobs") == []
        with pytest.raises(asyncpg.TooManyConnectionsError):
            value(theirs, "select 1")


def test_a_limit_stays_while_the_role_reads_of_another_database(
    postgres_server: PostgresServer,
    template_url: str,
    database_url: str,
    reader: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other_url = asyncio.run(postgres_server.create_database(template_url))
    try:
        granted(reader, database_url, "--connections", "2")
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("HAULAGE_DATABASE_URL", other_url)
            granted(reader, other_url)
            assert run("revoke-reader", reader).exit_code == 0
        assert limit(database_url, reader) == 2

        assert run("revoke-reader", reader).exit_code == 0
        assert limit(database_url, reader) == -1
    finally:
        asyncio.run(postgres_server.drop_database(other_url))


@pytest.mark.parametrize("connections", ["0", "-1", "262144", "many"])
def test_a_limit_that_no_server_has_is_refused(
    database_url: str, reader: str, connections: str
) -> None:
    done = run("grant-reader", reader, "--connections", connections)

    assert done.exit_code == 2
    assert "--connections" in done.output
    assert limit(database_url, reader) == -1


def test_a_reader_reads_views_of_later_versions_too(database_url: str, reader: str) -> None:
    theirs = granted(reader, database_url)
    rows(database_url, "create view reporting.later as select 1 as one")

    assert value(theirs, "select one from reporting.later") == 1


def test_later_views_are_read_too_where_somebody_else_has_granted(
    database_url: str, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = f"keeper {uuid4().hex[:8]}"
    rows(database_url, f"create role {quoted(keeper)} superuser login password '{PASSWORD}'")
    monkeypatch.setenv("HAULAGE_DATABASE_URL", url_of(keeper, database_url))
    try:
        theirs = granted(reader, database_url)
        rows(database_url, "create view reporting.later as select 1 as one")

        assert value(theirs, "select one from reporting.later") == 1
        assert run("revoke-reader", reader).exit_code == 0
        assert rows(database_url, "select from pg_default_acl") == []
    finally:
        rows(database_url, f"drop owned by {quoted(keeper)}")
        rows(database_url, f"drop role {quoted(keeper)}")


def test_a_role_is_closed_out_again_and_can_be_dropped(database_url: str, reader: str) -> None:
    theirs = granted(reader, database_url)

    done = run("revoke-reader", reader)

    assert done.exit_code == 0, done.output
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        rows(theirs, "select from reporting.jobs")
    assert value(theirs, "show default_transaction_read_only") == "off"
    assert value(theirs, "show statement_timeout") == "0"
    assert value(theirs, "show max_parallel_workers_per_gather") != "0"
    rows(database_url, f"drop role {quoted(reader)}")
    rows(database_url, f"create role {quoted(reader)}")


def test_a_role_that_may_read_more_by_now_is_closed_out_too(database_url: str, reader: str) -> None:
    granted(reader, database_url)
    rows(database_url, f"grant usage on schema haulage to {quoted(reader)}")

    done = run("revoke-reader", reader)

    assert done.exit_code == 0, done.exception
    assert value(database_url, "select has_schema_privilege($1, 'reporting', 'usage')", reader) is (
        False
    )


def test_what_is_printed_does_the_same_without_a_database(
    database_url: str, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = dataclasses.replace(DatabaseURL.parse(database_url), hosts=(("127.0.0.1", 1),))
    monkeypatch.setenv("HAULAGE_DATABASE_URL", away.asyncpg_dsn)
    printed = run("grant-reader", reader, "--sql", "--timeout", "7", "--connections", "1")
    back = run("revoke-reader", reader, "--sql")
    assert (printed.exit_code, back.exit_code) == (0, 0)

    script(database_url, printed.stdout)
    theirs = url_of(reader, database_url)
    assert rows(theirs, "select * from reporting.jobs") == []
    assert value(theirs, "show statement_timeout") == "7s"
    assert limit(database_url, reader) == 1
    script(database_url, back.stdout)
    assert limit(database_url, reader) == -1
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        rows(theirs, "select from reporting.jobs")


def test_a_role_that_is_missing_is_refused_with_what_makes_it(database_url: str) -> None:
    done = run("grant-reader", "nobody")

    assert isinstance(done.exception, RoleError)
    assert "create role \"nobody\" login password '...'" in str(done.exception)


@pytest.mark.parametrize("name", ["public", "", "x" * 64])
def test_a_name_that_no_role_has_is_refused(name: str) -> None:
    for arguments in (("grant-reader", name), ("grant-reader", name, "--sql")):
        assert isinstance(run(*arguments).exception, RoleError)


@pytest.mark.parametrize(
    "right",
    [
        "alter role {} superuser",
        "grant pg_read_all_data to {}",
        "grant usage on schema haulage to {}",
        # It may do what the other role may, once it takes that one's place.
        "alter role {0} noinherit; grant pg_read_all_data to {0}",
    ],
)
def test_a_role_that_could_read_tables_all_the_same_is_refused(
    database_url: str, reader: str, right: str
) -> None:
    script(database_url, right.format(quoted(reader)))

    done = run("grant-reader", reader)

    assert isinstance(done.exception, RoleError)
    assert "haulage" in str(done.exception)
    # Nothing of it was done.
    assert rows(database_url, "select from pg_default_acl") == []


def test_who_may_not_grant_is_told_of_the_statements(
    database_url: str, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows(database_url, f"grant usage on schema haulage to {quoted(reader)}")
    rows(database_url, f"grant select on haulage.alembic_version to {quoted(reader)}")
    monkeypatch.setenv("HAULAGE_DATABASE_URL", url_of(reader, database_url))

    done = run("grant-reader", reader)

    assert isinstance(done.exception, RoleError)
    assert "--sql" in str(done.exception)
