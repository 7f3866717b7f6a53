"""What URLs cannot change, and what a driver's failures are told as."""

import os
import subprocess
import sys

import pytest
from dns.exception import DNSException
from pymongo.errors import (
    BulkWriteError,
    DuplicateKeyError,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
)
from pymongo.errors import ConfigurationError as DriverConfigurationError
from support.service import ROOT

from app.db.mongo import upgrading
from app.db.mongo.adapter import MongoJobsDB
from app.db.mongo.connections import create_client, taking, unavailable_errors
from app.domain.errors import ConfigurationError, DatabaseUnavailableError

WEAK = (
    "w=0&wtimeoutMS=1",
    "w=1&journal=false&fsync=true",
    "readConcernLevel=local&retryWrites=false&retryReads=false",
    "readPreference=secondaryPreferred&readPreferenceTags=dc:far",
    "readPreference=nearest&maxStalenessSeconds=120",
    "minPoolSize=100&maxPoolSize=200",
)


@pytest.mark.parametrize("options", WEAK)
async def test_a_url_cannot_make_anything_less_durable(
    mongo_database_url: str, options: str
) -> None:
    mark = "&" if "?" in mongo_database_url else "?"
    url = f"{mongo_database_url}{mark}{options}"
    upgrading.upgrade(url)
    db = MongoJobsDB(url, notify=False)
    try:
        job_id = await db.insert_pending_job({"a": 1})
        assert await db.get_payload(job_id) == '{"a": 1}'
        await db.pause_queue("q")

        client = db._connected()
        assert client.write_concern.document == {
            "w": "majority",
            "j": True,
            "wtimeout": 0,
            "fsync": False,
        }
        assert client.read_concern.level == "majority"
        assert client.read_preference.mongos_mode == "primary"
        assert client.read_preference.max_staleness == -1
        assert client.options.retry_writes
        assert client.options.retry_reads
    finally:
        await db.close()


async def test_what_a_driver_does_not_take_is_an_error_of_the_setting() -> None:
    url = "mongodb://u:secret@127.0.0.1:1/x?heartbeatFrequencyMS=1"
    for take in (lambda: create_client(url, "test", 1, 1.0), lambda: upgrading.upgrade(url)):
        with pytest.raises(ConfigurationError) as caught:
            take()
        assert "HAULAGE_DATABASE_URL='mongodb://u:***@127.0.0.1:1/x" in str(caught.value)
        assert "heartbeatFrequencyMS cannot be less than" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mongodb://127.0.0.1:99999/x", "a port is a number"),
        ("mongodb://127.0.0.1:1/x?heartbeatFrequencyMS=1", "heartbeatFrequencyMS"),
    ],
)
def test_the_command_line_says_in_one_line_what_is_wrong_with_a_url(url: str, said: str) -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "app", "db", "current"],
        cwd=ROOT,
        env={**os.environ, "HAULAGE_DATABASE_URL": url},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert refused.returncode == 2, refused.stderr
    assert said in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_names_that_the_dns_does_not_know_may_be_known_later() -> None:
    with pytest.raises(DatabaseUnavailableError, match="no such name"), taking("mongodb+srv://a"):
        raise DriverConfigurationError("no such name") from DNSException("x")  # type: ignore[no-untyped-call]


NOT_ENOUGH_MEMBERS = {"code": 100, "errmsg": "x"}

PASSING: dict[str, PyMongoError] = {
    "a cursor that went": OperationFailure("x", 43),
    "a majority that is away": WriteConcernError("x", 64),
    "too few members": WriteConcernError("x", 100),
    "a plan that was killed": OperationFailure("x", 175),
    "a snapshot that is too old": OperationFailure("x", 239),
    "a snapshot from before an index": OperationFailure("x", 246),
    "a transaction that took too long": OperationFailure("x", 290),
    "an operation that was killed": OperationFailure("x", 11601),
    "a full disk": OperationFailure("x", 14031),
    "names that nobody answers for": DriverConfigurationError("x"),
    "one of many writes": BulkWriteError({"writeConcernErrors": [NOT_ENOUGH_MEMBERS]}),
    "one of many on a full disk": BulkWriteError({"writeErrors": [{"code": 14031}]}),
}
LASTING: dict[str, PyMongoError] = {
    "a role that is missing": OperationFailure("x", 13),
    "a mistake of ours": OperationFailure("x", 9),
    "a key that is there": DuplicateKeyError("x", 11000),
    "a key among many": BulkWriteError({"writeErrors": [{"code": 11000}]}),
}


@pytest.mark.parametrize("what", PASSING)
def test_a_failure_that_passes_is_told_as_such(what: str) -> None:
    with pytest.raises(DatabaseUnavailableError), unavailable_errors():
        raise PASSING[what]


@pytest.mark.parametrize("what", LASTING)
def test_a_failure_that_does_not_pass_stays_what_it_is(what: str) -> None:
    with pytest.raises(type(LASTING[what])), unavailable_errors():
        raise LASTING[what]
