"""The indexes of a MongoDB database: made, compared, mended, and refused where they are ahead."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support import mongo
from support.mongo import Mongod, MongoDatabase, MongoServer
from support.service import ROOT

from app.db import schemas
from app.db.mongo import upgrading
from app.db.mongo.indexes import INDEXES, REVISION
from app.db.mongo_urls import MongoURL
from app.domain.errors import ConfigurationError, DatabaseUnavailableError, SchemaMismatchError


@pytest.fixture
def database(mongo_server: MongoServer, empty_mongo_url: str) -> Any:
    with mongo.client(empty_mongo_url) as opened:
        yield opened.get_default_database()


def haulage(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        cwd=ROOT,
        env={**os.environ, "HAULAGE_DATABASE_URL": url},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_new_database_gets_all_that_the_program_needs(
    empty_mongo_url: str, database: Any
) -> None:
    url = MongoURL.parse(empty_mongo_url)
    assert schemas.state(url).found is None
    assert "job_logs: index job is missing" in (schemas.differences(url) or "")

    change = schemas.upgrade(url)

    assert (change.from_revision, change.to_revision) == (None, REVISION)
    assert schemas.state(url).is_current
    assert schemas.differences(url) is None
    assert set(database.list_collection_names()) == set(INDEXES)
    # A second one changes nothing.
    assert schemas.upgrade(url).from_revision == REVISION
    assert schemas.differences(url) is None


def test_upgrades_at_once_leave_one_schema(empty_mongo_url: str) -> None:
    with ThreadPoolExecutor(3) as executor:
        list(executor.map(upgrading.upgrade, [empty_mongo_url] * 3))

    assert upgrading.differences(empty_mongo_url) is None


def test_what_is_missing_is_made_again_and_what_is_not_ours_goes(
    empty_mongo_url: str, database: Any
) -> None:
    upgrading.upgrade(empty_mongo_url)
    database["jobs"].drop_index("due")
    database["jobs"].create_index([("old", 1)], name="old")
    database["nodes"].insert_one({"_id": "kept"})
    assert upgrading.differences(empty_mongo_url) == (
        "jobs: index due is missing\njobs: index old is not ours"
    )

    upgrading.upgrade(empty_mongo_url)

    assert upgrading.differences(empty_mongo_url) is None
    assert database["nodes"].find_one() == {"_id": "kept"}


def test_an_index_that_is_another_one_is_told(empty_mongo_url: str, database: Any) -> None:
    upgrading.upgrade(empty_mongo_url)
    database["api_keys"].drop_index("sha256")
    database["api_keys"].create_index([("sha256", 1)], name="sha256")

    assert upgrading.differences(empty_mongo_url) == "api_keys: index sha256 differs"


def test_a_database_that_is_ahead_is_refused(empty_mongo_url: str, database: Any) -> None:
    url = MongoURL.parse(empty_mongo_url)
    schemas.upgrade(url)
    database["schema"].update_one({"_id": "schema"}, {"$set": {"revision": "mongo-9999"}})

    with pytest.raises(SchemaMismatchError, match="update this program"):
        schemas.upgrade(url)
    with pytest.raises(SchemaMismatchError, match="update this program"):
        schemas.state(url).require_current()


def test_a_revision_that_is_not_the_newest_is_refused(empty_mongo_url: str) -> None:
    with pytest.raises(ConfigurationError, match="newest"):
        schemas.upgrade(MongoURL.parse(empty_mongo_url), "0001")


def test_a_server_without_a_replica_set_is_refused_with_the_remedy(
    mongo_server: MongoServer, tmp_path: Any
) -> None:
    with Mongod(tmp_path, replica_set=None) as alone:
        alone.wait_until_it_answers()
        with pytest.raises(DatabaseUnavailableError, match=r"rs\.initiate"):
            upgrading.upgrade(f"mongodb://{alone.address}/x?directConnection=true")


def test_the_command_line_looks_after_the_schema(empty_mongo_url: str) -> None:
    assert haulage(empty_mongo_url, "db", "check").returncode == 1
    made = haulage(empty_mongo_url, "db", "upgrade")
    assert made.stdout == f"upgraded from nothing to {REVISION}\n"
    assert haulage(empty_mongo_url, "db", "upgrade").stdout == f"already at {REVISION}\n"
    shown = haulage(empty_mongo_url, "db", "current").stdout
    assert shown == f"database: {REVISION}\nprogram:  {REVISION}\n"
    assert haulage(empty_mongo_url, "db", "check").returncode == 0


@pytest.mark.parametrize(
    "command",
    [
        ["psql"],
        ["sql"],
        ["stats"],
        ["downgrade", "base", "--yes"],
        ["grant-reader", "somebody"],
        ["revoke-reader", "somebody"],
    ],
)
def test_what_only_sql_can_do_says_so(upgraded_mongo: MongoDatabase, command: list[str]) -> None:
    refused = haulage(upgraded_mongo.url, "db", *command)

    assert refused.returncode == 2
    assert "this works on PostgreSQL only" in refused.stderr
