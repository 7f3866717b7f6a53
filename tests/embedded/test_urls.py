"""Database URLs: what each driver is given, what is refused, what is never shown."""

from dataclasses import replace
from typing import Any

import asyncpg
import pytest
from asyncpg.connect_utils import _parse_connect_arguments  # type: ignore[attr-defined]
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from app.db.postgres.embedded import EmbeddedPostgres
from app.db.urls import DatabaseURL
from app.domain.errors import ConfigurationError

PG, ALCHEMY = "postgresql://", "postgresql+asyncpg://"

# given, for asyncpg, for SQLAlchemy
TABLE = [
    ("postgresql://me:pw@db:5433/app", "me:pw@db:5433/app", "me:pw@db:5433/app"),
    ("postgres://me:pw@db/app", "me:pw@db:5432/app", "me:pw@db:5432/app"),
    ("postgresql+asyncpg://me:pw@db/app", "me:pw@db:5432/app", "me:pw@db:5432/app"),
    (" POSTGRES://db/app\n", "db:5432/app", "db:5432/app"),
    ("postgresql://me@db", "me@db:5432", "me@db:5432"),
    ("postgresql://me@db/", "me@db:5432", "me@db:5432"),
    ("postgresql://", "", ""),
    ("postgresql:///app", "/app", "/app"),
    ("postgres://me:p%40s%2Fs@db/app", "me:p%40s%2Fs@db:5432/app", "me:p%40s%2Fs@db:5432/app"),
    ("postgres://me:p@ss:w@db/app", "me:p%40ss%3Aw@db:5432/app", "me:p%40ss%3Aw@db:5432/app"),
    ("postgres://a%40b:%20%C3%A9@db/a%2Fb", "a%40b:%20%C3%A9@db:5432/a%2Fb", None),
    ("postgresql://me@[::1]:6000/app", "me@[::1]:6000/app", "me@[::1]:6000/app"),
    ("postgresql://[fe80::1]/app", "[fe80::1]:5432/app", "[fe80::1]:5432/app"),
    (
        "postgresql://db/app?sslmode=require",
        "db:5432/app?sslmode=require",
        "db:5432/app?ssl=require",
    ),
    (
        "postgresql+asyncpg://db/app?ssl=disable",
        "db:5432/app?sslmode=disable",
        "db:5432/app?ssl=disable",
    ),
    (
        "postgres://db/app?application_name=my+app&sslmode=verify-full&sslrootcert=/ca.pem",
        "db:5432/app?sslmode=verify-full&application_name=my%20app&sslrootcert=/ca.pem",
        "db:5432/app?ssl=verify-full",
    ),
    ("postgresql://me@a:1,b/app", "me@a:1,b:5432/app", "me@/app?host=a,b&port=1,5432"),
    ("postgresql:///app?host=a,b&port=7", "a:7,b:7/app", "/app?host=a,b&port=7,7"),
    (
        "postgresql+asyncpg:///app?host=a:1&host=b:2",
        "a:1,b:2/app",
        "/app?host=a,b&port=1,2",
    ),
    (
        "postgresql://me@/app?host=/run/postgresql",
        "me@%2Frun%2Fpostgresql:5432/app",
        "me@/app?host=/run/postgresql&port=5432",
    ),
    ("postgresql://db?user=me&password=p%26w&dbname=app", "me:p%26w@db:5432/app", None),
]


@pytest.mark.parametrize(("given", "for_asyncpg", "for_sqlalchemy"), TABLE)
def test_every_driver_gets_its_own_form(
    given: str, for_asyncpg: str, for_sqlalchemy: str | None
) -> None:
    url = DatabaseURL.parse(given)
    assert url.asyncpg_dsn == PG + for_asyncpg
    assert url.sqlalchemy_url == ALCHEMY + (for_sqlalchemy or for_asyncpg)
    assert DatabaseURL.parse(url.asyncpg_dsn) == url
    if not url.options:
        assert DatabaseURL.parse(url.sqlalchemy_url) == url


@pytest.mark.parametrize("given", [row[0] for row in TABLE if "sslrootcert" not in row[0]])
def test_both_drivers_understand_the_same_address(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSSLMODE"):
        monkeypatch.delenv(name, raising=False)
    url = DatabaseURL.parse(given)
    given_url = make_url(url.sqlalchemy_url)
    _, arguments = given_url.get_dialect()().create_connect_args(given_url)
    assert _understood(**{**arguments, **url.connect_args}) == _understood(dsn=url.asyncpg_dsn)


@pytest.mark.parametrize(
    ("given", "shown", "remedy"),
    [
        ("mongodb://me:secret@db/app", "'mongodb://***'", "not a PostgreSQL URL"),
        ("mysql+asyncpg://me:secret@db", "'mysql+asyncpg://***'", "begin with postgresql://"),
        ("me:secret@db/app", "'***'", "not a PostgreSQL URL"),
        ("", "'***'", "not a PostgreSQL URL"),
        ("postgres://me:secret#1@db/app", "'postgres://***'", "# as %23"),
        ("postgres://me:secret/1@db/app", "'postgres://***'", "as %XX"),
        ("postgres://me:secret[1@db/app", "'postgres://***'", "as %XX"),
        ("postgres://me:secret", "'postgres://***'", "as %XX"),
        ("postgres://db/app?sslmode=on&password=secret", "'postgres://***'", "must be one of"),
        ("postgres://a,b,c/app?port=1,2", "'postgres://***'", "one port, or one for each host"),
        ("postgres://db/a?channel_binding=require", "'postgres://***'", "take out channel_binding"),
    ],
)
def test_what_is_no_url_of_ours_is_refused_without_showing_the_password(
    given: str, shown: str, remedy: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        DatabaseURL.parse(given, setting="SOME_URL")
    message = str(caught.value)
    assert message.startswith(f"SOME_URL={shown}: ")
    assert remedy in message
    assert "secret" not in message
    assert caught.value.__cause__ is None


def test_no_password_is_shown_when_a_url_is_printed() -> None:
    url = DatabaseURL.parse("postgres://me:secret1@db/app?sslpassword=secret2&work_mem=8MB")
    expected = "postgresql://me:***@db:5432/app?sslpassword=***&work_mem=8MB"
    assert str(url) == url.masked == expected
    assert "secret" not in f"{url!r} {url}"


async def test_both_drivers_connect_with_a_special_password_and_a_name(
    server: EmbeddedPostgres,
) -> None:
    special = "@:/?#[]%+ é'\"\\"
    admin = await asyncpg.connect(server.url("postgres"))
    await admin.execute("DROP ROLE IF EXISTS someone")
    literal = await admin.fetchval("SELECT quote_literal($1::text)", special)
    await admin.execute(f"CREATE ROLE someone LOGIN PASSWORD {literal}")
    await admin.close()
    base = DatabaseURL.parse(server.url("postgres"))
    url = replace(base, user="someone", password=special, options={"application_name": "a name"})
    show = "SELECT current_user || ' ' || current_setting('application_name')"

    connection = await asyncpg.connect(url.asyncpg_dsn)
    assert await connection.fetchval(show) == "someone a name"
    await connection.close()
    engine = create_async_engine(
        url.sqlalchemy_url, connect_args=url.connect_args, poolclass=NullPool
    )
    async with engine.connect() as session:
        assert await session.scalar(text(show)) == "someone a name"
    await engine.dispose()


def _understood(**given: Any) -> tuple[Any, ...]:
    """What asyncpg would do with these arguments of `connect`."""
    names = (
        "dsn host port user password passfile database command_timeout statement_cache_size "
        "max_cached_statement_lifetime max_cacheable_statement_size ssl direct_tls "
        "server_settings target_session_attrs krbsrvname gsslib service servicefile"
    )
    arguments = {**dict.fromkeys(names.split()), "statement_cache_size": 1, **given}
    arguments |= {"max_cached_statement_lifetime": 1, "max_cacheable_statement_size": 1}
    addresses, parameters, _ = _parse_connect_arguments(**arguments)
    ssl = parameters.ssl and (parameters.ssl.verify_mode, parameters.ssl.check_hostname)
    shown = (parameters.user, parameters.password, parameters.database, parameters.server_settings)
    return addresses, *shown, ssl, parameters.sslmode
