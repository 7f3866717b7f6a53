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
    assert url.text == text.strip()


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


def test_what_only_postgresql_can_do_is_refused_elsewhere() -> None:
    assert Database(DatabaseURL.parse("postgresql://a/b")).postgres_url.database == "b"
    with pytest.raises(ConfigurationError, match="PostgreSQL only"):
        _ = Database(MongoURL("mongodb://u:secret@a/b")).postgres_url
