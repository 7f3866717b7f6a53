"""Makes the collections and indexes of a MongoDB database, and compares them with what there is.

Nodes of another version may run meanwhile: what is new comes first, what is old goes last, and
neither holds up reads or writes for long. A second run changes nothing, nor do two at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pymongo
from pymongo.database import Database
from pymongo.errors import CollectionInvalid, OperationFailure

from app.db.mongo.connections import (
    DEFAULT_DATABASE,
    DURABLE,
    Document,
    taking,
    unavailable_errors,
)
from app.db.mongo.indexes import INDEXES, REVISION, SCHEMA_ID
from app.domain.errors import DatabaseUnavailableError

CONNECT_SECONDS: Final = 10.0
# Building an index reads every document of its collection.
UPGRADE_SECONDS: Final = 600.0

# What every collection has by itself.
_BY_ITSELF: Final = "_id_"
_NAMESPACE_EXISTS: Final = 48
_INDEX_NOT_FOUND: Final = 27
_COMPARED: Final = ("key", "unique", "partialFilterExpression")

_Indexes = dict[str, dict[str, Document]]


def found_revision(url: str) -> str | None:
    """The revision that the database has, None without any."""
    with _database(url, CONNECT_SECONDS) as database:
        found = database["schema"].find_one({"_id": SCHEMA_ID})
    return None if found is None else str(found["revision"])


def upgrade(url: str) -> None:
    """Make what is missing, remove indexes that are no longer ours to keep, note the revision.

    Raises:
        DatabaseUnavailableError: also where the server is no replica set.
    """
    with _database(url, UPGRADE_SECONDS) as database:
        if not database.command("hello").get("setName"):
            raise DatabaseUnavailableError(
                "the MongoDB server is no replica set, and only those have transactions: start it"
                " with --replSet NAME and call rs.initiate() once; one node suffices"
            )
        there = set(database.list_collection_names())
        for name in INDEXES.keys() - there:
            with _done_by_another(_NAMESPACE_EXISTS):
                database.create_collection(name)
        found = _found(database)
        for name, indexes in INDEXES.items():
            missing = [i for i in indexes if i.document["name"] not in found[name]]
            if missing:
                database[name].create_indexes(missing)
        for name, old in _superfluous(found):
            with _done_by_another(_INDEX_NOT_FOUND):
                database[name].drop_index(old)
        database["schema"].update_one(
            {"_id": SCHEMA_ID}, {"$set": {"revision": REVISION}}, upsert=True
        )


def differences(url: str) -> str | None:
    """What the database's indexes differ in from the program's, None where they agree."""
    with _database(url, CONNECT_SECONDS) as database:
        found = _found(database)
    wanted = {
        name: {index.document["name"]: _compared(index.document) for index in indexes}
        for name, indexes in INDEXES.items()
    }
    said = [
        f"{name}: index {index} {'differs' if index in found[name] else 'is missing'}"
        for name, indexes in wanted.items()
        for index, document in indexes.items()
        if found[name].get(index) != document
    ]
    said += [f"{name}: index {index} is not ours" for name, index in _superfluous(found)]
    return "\n".join(said) or None


@contextmanager
def _database(url: str, timeout_seconds: float) -> Iterator[Database[Document]]:
    with taking(url):
        opened = pymongo.MongoClient[Document](
            url,
            appname="haulage-upgrade",
            minPoolSize=0,
            serverSelectionTimeoutMS=CONNECT_SECONDS * 1_000,
            **DURABLE,
        )
    with unavailable_errors(), pymongo.timeout(timeout_seconds), opened as client:
        yield client.get_default_database(DEFAULT_DATABASE)


@contextmanager
def _done_by_another(code: int) -> Iterator[None]:
    """What the server refuses so has been done by another process, which was quicker."""
    try:
        yield
    except CollectionInvalid:
        pass
    except OperationFailure as error:
        if error.code != code:
            raise


def _found(database: Database[Document]) -> _Indexes:
    return {
        name: {
            index["name"]: _compared(index)
            for index in database[name].list_indexes()
            if index["name"] != _BY_ITSELF
        }
        for name in INDEXES
    }


def _superfluous(found: _Indexes) -> list[tuple[str, str]]:
    known = {name: {index.document["name"] for index in ours} for name, ours in INDEXES.items()}
    return [(name, index) for name, there in found.items() for index in there.keys() - known[name]]


def _compared(index: Any) -> Document:
    """What makes an index what it is; servers add a version and default options."""
    said = {name: index[name] for name in _COMPARED if index.get(name)}
    return {**said, "key": list(dict(index["key"]).items())}
