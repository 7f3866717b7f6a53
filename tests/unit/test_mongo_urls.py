"""URLs of MongoDB: told from PostgreSQL's, and shown without what is secret."""

import pytest

from app.db.mongo_urls import MongoURL
from app.db.opening import Database, parse_url
from app.db.urls import DatabaseURL
from app.domain.errors import ConfigurationError


@pytest.mark.parametrize(
    "text", ["mongodb://a", "mongodb+srv://a.example/b", " MONGODB://u:p@a:1,b:2/c?w=1 "]
)
def test_a_url_of_mongodb_is_known_by_its_scheme(text: str) -> None:
    url = parse_url(text)

    assert isinstance(url, MongoURL)
    scheme, _, rest = text.strip().partition("://")
    assert url.text == f"{scheme.lower()}://{rest}"


def test_every_other_url_is_postgresql_s() -> None:
    assert isinstance(parse_url("postgresql://a/b"), DatabaseURL)
    with pytest.raises(ConfigurationError, match="not a PostgreSQL URL"):
        parse_url("mysql://a/b")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mongodb://a/b", "mongodb://a/b"),
        ("mongodb://u:secret@a,b/c?w=1", "mongodb://u:***@a,b/c?w=1"),
        ("mongodb://u:se@cret@a/c", "mongodb://u:***@a/c"),
        ("mongodb://u:se/cret@a/c", "mongodb://u:***@a/c"),
        (
            "mongodb://a/?tlsCertificateKeyFilePassword=secret&w=1",
            "mongodb://a/?tlsCertificateKeyFilePassword=***&w=1",
        ),
        (
            "mongodb://a/?authMechanismProperties=AWS_SESSION_TOKEN:secret",
            "mongodb://a/?authMechanismProperties=***",
        ),
    ],
)
def test_a_url_is_shown_without_its_secrets(text: str, shown: str) -> None:
    assert MongoURL(text).masked == shown
    assert "secret" not in f"{MongoURL(text)} {MongoURL(text)!r}"


@pytest.mark.parametrize("text", ["mongodb://", "mongodb://u:p@", "mongodb://[a", "mongodb://a#b"])
def test_a_url_that_leads_nowhere_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        MongoURL.parse(text)
    assert "HAULAGE_DATABASE_URL='mongodb://***'" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("mongodb://u:secret@ss@a/b", "write special characters of a password as %XX"),
        ("mongodb://u:secret%zz@a/b", "write special characters of a password as %XX"),
        ("mongodb://u:secret:x@a/b", "write special characters of a password as %XX"),
        ("mongodb://u:secret/x@a/b", "name each host as HOST or HOST:PORT"),
        ("mongodb://:secret@,/b", "name each host"),
        ("mongodb://a b/c", "name each host"),
        ("mongodb://a,,b/c", "name each host"),
        ("mongodb://a:x/c", "name each host"),
        ("mongodb://a:1:2/c", "name each host"),
        ("mongodb://a:0/c", "a port is a number from 1 to 65535"),
        ("mongodb://a,b:65536/c", "a port is a number from 1 to 65535"),
        ("mongodb+srv://a,b/c", "one name without a port"),
        ("mongodb+srv://a:1/c", "one name without a port"),
        ("mongodb://a/b.c", "not the name of a database"),
        ("mongodb://a/b%20c", "not the name of a database"),
        ("mongodb://a/" + "b" * 64, "not the name of a database"),
        ("mongodb://u:secret@a/admin", "authSource=admin"),
    ],
)
def test_a_url_that_the_driver_would_not_take_is_refused_with_a_remedy(
    text: str, remedy: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        MongoURL.parse(text)
    assert remedy in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "mongodb://a",
        "mongodb://a,b:65535/c",
        "mongodb://[::1]:27017,127.0.0.1/c",
        "mongodb://%2Ftmp%2Fm.sock/c",
        "mongodb://u:p%40ss@a/" + "b" * 63,
        "mongodb://u@a/?authSource=admin",
        "mongodb+srv://a.example/c?w=1",
    ],
)
def test_what_the_driver_takes_is_taken(text: str) -> None:
    assert MongoURL.parse(text).text == text


def test_what_only_postgresql_can_do_is_refused_elsewhere() -> None:
    assert Database(DatabaseURL.parse("postgresql://a/b")).postgres_url.database == "b"
    with pytest.raises(ConfigurationError, match="PostgreSQL only"):
        _ = Database(MongoURL("mongodb://u:secret@a/b")).postgres_url
