"""How clients are made and how their failures read; shared by the adapter and its watcher."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final

import pymongo
from pymongo import AsyncMongoClient
from pymongo.errors import (
    BulkWriteError,
    ConnectionFailure,
    ExecutionTimeout,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    WTimeoutError,
)

from app.db.mongo_urls import MongoURL
from app.domain.errors import ConfigurationError, DatabaseUnavailableError

DEFAULT_DATABASE: Final = "haulage"
# What the names of all our clients begin with.
APPLICATION_PREFIX: Final = "haulage"
CONNECT_TIMEOUT_SECONDS: Final = 10.0
COMMAND_TIMEOUT_SECONDS: Final = 30.0
PING_TIMEOUT_SECONDS: Final = 3.0
# Saying good-bye. Without a bound the driver looks for a server that is away for half a minute.
CLOSE_SECONDS: Final = 0.1
CANCEL_AGAIN_SECONDS: Final = 1.0

# Whatever the URL says: everything that was answered is on the disks of a majority, and nothing is
# read that could be rolled back. Each is overruled that would contradict one of these.
DURABLE: Final[dict[str, Any]] = {
    "w": "majority",
    "wTimeoutMS": 0,
    "journal": True,
    "fsync": False,
    "readConcernLevel": "majority",
    "readPreference": "primary",
    "readPreferenceTags": "",
    "maxStalenessSeconds": -1,
    "retryWrites": True,
    "retryReads": True,
}

Document = dict[str, Any]
Client = AsyncMongoClient[Document]

# A call that was told so may do better when it is made again.
_PASSING_LABELS: Final = (
    "TransientTransactionError",
    "UnknownTransactionCommitResult",
    "RetryableWriteError",
)
# Server errors that pass: a password that is being changed, a conflict that outlived its retries, a
# time limit, an interruption, a server that steps down, stops or begins, a majority that is not
# there, a cursor, a snapshot or a transaction that went with it, a full disk. And one that is no
# replica set: it has neither transactions nor change streams, and is told apart by its message.
_NO_REPLICA_SET: Final = 20
TIME_LIMIT_EXCEEDED: Final = 50
WRITE_CONFLICT: Final = 112
_PASSING_CODES: Final = frozenset(
    {_NO_REPLICA_SET, TIME_LIMIT_EXCEEDED, WRITE_CONFLICT}
    | {18, 24, 43, 64, 89, 91, 100, 133, 134, 175, 189, 202, 225, 237, 239, 246, 251, 262, 290}
    | {317, 391, 11600, 11601, 11602, 14031}
)

_cancels_before: ContextVar[int] = ContextVar("haulage_cancels_before", default=0)


def create_client(
    url: str, application_name: str, max_connections: int, timeout_seconds: float
) -> Client:
    """A client that is not yet connected and opens connections as they are needed.

    Raises:
        ConfigurationError: the driver does not take the URL.
    """
    with taking(url):
        return AsyncMongoClient(
            url,
            appname=application_name,
            maxPoolSize=max_connections,
            minPoolSize=0,
            connectTimeoutMS=CONNECT_TIMEOUT_SECONDS * 1_000,
            serverSelectionTimeoutMS=timeout_seconds * 1_000,
            **DURABLE,
        )


@contextmanager
def taking(url: str) -> Iterator[None]:
    """Tell what a driver does not take of a URL as an error of the setting."""
    try:
        yield
    except (pymongo.errors.ConfigurationError, ValueError, TypeError) as error:
        if _is_of_names(error):
            raise DatabaseUnavailableError(describe(error)) from error
        shown = MongoURL(url).masked
        raise ConfigurationError("HAULAGE_DATABASE_URL", shown, str(error)) from error


async def close_client(client: Client) -> None:
    """Close within a moment, whatever the server does.

    The driver says farewell to its sessions first; by itself it would wait for a server that is
    away as long as any call does.
    """
    with suppress(OSError, TimeoutError, PyMongoError), pymongo.timeout(CLOSE_SECONDS):
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.close()
            return
    # Now there is nobody left to say farewell to.
    await client.close()


@contextmanager
def unavailable_errors() -> Iterator[None]:
    """Turn failures of connection and server into DatabaseUnavailableError, leave others alone."""
    try:
        yield
    except (OSError, TimeoutError) as error:
        raise DatabaseUnavailableError(describe(error)) from error
    except PyMongoError as error:
        if not _passes(error):
            raise
        raise DatabaseUnavailableError(describe(error)) from error


def _passes(error: PyMongoError) -> bool:
    if isinstance(error, ConnectionFailure | ExecutionTimeout | WTimeoutError | InvalidOperation):
        return True
    # Of a call, not of a URL: names that nobody answers for, a server that is too old.
    if isinstance(error, pymongo.errors.ConfigurationError):
        return True
    if isinstance(error, OperationFailure) and not _PASSING_CODES.isdisjoint(_codes(error)):
        return True
    return error.timeout or any(map(error.has_error_label, _PASSING_LABELS))


def _codes(error: OperationFailure) -> Iterator[int | None]:
    """What the server said was wrong: of a bulk write with each of its writes."""
    yield error.code
    if isinstance(error, BulkWriteError):
        for kind in ("writeErrors", "writeConcernErrors"):
            yield from (one.get("code") for one in error.details.get(kind, ()))


def _is_of_names(error: Exception) -> bool:
    """Whether the driver did not get the hosts of a mongodb+srv:// URL from the DNS."""
    return type(error.__cause__).__module__.partition(".")[0] == "dns"


@contextmanager
def noticing_cancels() -> Iterator[None]:
    """Have `check_cancelled` tell of cancels that come from here on, and have them come again.

    Up to Python 3.11 a cancel is lost that reaches `asyncio.wait_for` in the moment when what it
    waits for is done, and the driver awaits every write so. Where the server then is silent, nobody
    would ask for as long as a call may take.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    token = _cancels_before.set(before)
    again = None if task is None else _CancellingAgain(task, before)
    try:
        yield
    finally:
        if again is not None:
            again.stop()
        _cancels_before.reset(token)


class _CancellingAgain:
    """Cancels a task once more where it goes on for long after a cancel."""

    def __init__(self, task: asyncio.Task[Any], cancels_before: int) -> None:
        self._task = task
        self._before = cancels_before
        self._wait()

    def stop(self) -> None:
        self._timer.cancel()

    def _wait(self) -> None:
        loop = self._task.get_loop()
        self._timer = loop.call_later(CANCEL_AGAIN_SECONDS, self._look)

    def _look(self) -> None:
        if self._task.cancelling() > self._before:
            # The same wish, not a second one: whoever takes it back counts one.
            self._task.cancel()
            self._task.uncancel()
        self._wait()


def check_cancelled() -> None:
    """CancelledError where the task was cancelled and the driver went on all the same."""
    task = asyncio.current_task()
    if task is not None and task.cancelling() > _cancels_before.get():
        raise asyncio.CancelledError


def describe(error: BaseException) -> str:
    """One line that tells a person what is wrong with the database."""
    if isinstance(error, TimeoutError):
        said = "no answer in time"
    elif isinstance(error, OperationFailure) and error.code == _NO_REPLICA_SET:
        said = "no replica set: start the server with --replSet, one node suffices"
    else:
        # The driver appends its whole view of the servers.
        said = " ".join(str(error).partition(", full error:")[0].partition(", Topology")[0].split())
    return f"{type(error).__name__}: {said}"
