"""`haulage keys` on a real database."""

import pytest
from click.testing import CliRunner, Result
from support.sql import rows, value

from app.cli.keys import keys
from app.db.urls import DatabaseURL
from app.domain.errors import ConfigurationError
from app.domain.keys import digest, is_well_formed


@pytest.fixture(autouse=True)
def _database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAULAGE_DATABASE_URL", database_url)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(keys, arguments)


def created(*arguments: str) -> str:
    done = run("create", *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


def test_a_key_is_printed_once_and_only_its_digest_is_stored(database_url: str) -> None:
    key = created("ci", "--scope", "read", "--max-pending", "7", "--max-bytes", "1000")

    assert is_well_formed(key)
    [row] = rows(database_url, "select * from haulage.api_keys")
    assert row["sha256"] == digest(key)
    assert key[12:] not in str(dict(row))
    assert (row["name"], row["scopes"]) == ("ci", ["read"])
    assert (row["max_pending_jobs"], row["max_pending_bytes"]) == (7, 1000)
    listed = run("list").stdout
    assert key[:12] in listed
    assert key not in listed
    assert "ci" in listed
    assert "active" in listed


def test_submit_is_the_scope_that_needs_no_saying(database_url: str) -> None:
    created("x")
    assert value(database_url, "select scopes from haulage.api_keys") == ["submit"]


def test_an_unstored_key_leaves_no_row(database_url: str) -> None:
    assert is_well_formed(created("x", "--unstored"))
    assert value(database_url, "select count(*) from haulage.api_keys") == 0


@pytest.mark.parametrize("arguments", [("",), ("x" * 101,), ("a\x00",), ("x", "--scope", "root")])
def test_a_key_that_makes_no_sense_is_wrong_usage(
    arguments: tuple[str, ...], database_url: str
) -> None:
    assert run("create", *arguments).exit_code == 2
    assert value(database_url, "select count(*) from haulage.api_keys") == 0


def test_a_key_is_revoked_by_its_id_or_its_first_letters(database_url: str) -> None:
    first, _second = created("a"), created("b")
    ids = [row["id"] for row in rows(database_url, "select id::text from haulage.api_keys")]

    assert "revoked" in run("revoke", first[:12]).stdout
    assert run("revoke", first[:12]).exit_code == 1
    assert run("revoke", "nonsense").exit_code == 1
    assert run("revoke", ids[1]).exit_code == 0
    statement = "select count(*) from haulage.api_keys where revoked_at is null"
    assert value(database_url, statement) == 0


def test_an_address_beyond_loopback_needs_a_key_or_a_word(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.config import load_settings  # noqa: PLC0415
    from app.db.opening import Database  # noqa: PLC0415
    from app.main import _refuse_open_bind  # noqa: PLC0415

    database = Database(DatabaseURL.parse(database_url))

    def bind(host: str, **settings: object) -> None:
        _refuse_open_bind(load_settings({"host": host, **settings}), database)

    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        bind(host)
    for host in ("0.0.0.0", "::", "192.0.2.7", "db.example"):  # noqa: S104  refused
        with pytest.raises(ConfigurationError) as refused:
            bind(host)
        assert "haulage keys create" in refused.value.remedy
        assert "HAULAGE_ALLOW_UNAUTHENTICATED=true" in refused.value.remedy
        bind(host, allow_unauthenticated=True)
        bind(host, require_key=True)
    created("a", "--scope", "read")
    bind("0.0.0.0")  # noqa: S104  there is a key
    key = value(database_url, "select prefix from haulage.api_keys")
    assert run("revoke", key).exit_code == 0
    bind("0.0.0.0")  # noqa: S104  nobody can do anything there until a key is made
