"""How clients are made and how their failures read; shared by the adapter and its watcher."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final

import pymongo
from pymongo import AsyncMongoClient
from pymongo.errors import (
    ConnectionFailure,
    ExecutionTimeout,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    WTimeoutError,
)

from app.domain.errors import DatabaseUnavailableError

DEFAULT_DATABASE: Final = "haulage"
# What the names of all our clients begin with.
APPLICATION_PREFIX: Final = "haulage"
CONNECT_TIMEOUT_SECONDS: Final = 10.0
COMMAND_TIMEOUT_SECONDS: Final = 30.0
PING_TIMEOUT_SECONDS: Final = 3.0
CLOSE_SECONDS: Final = 0.1

Document = dict[str, Any]
Client = AsyncMongoClient[Document]

# A call that was told so may do better when it is made again.
_PASSING_LABELS: Final = (
    "TransientTransactionError",
    "UnknownTransactionCommitResult",
    "RetryableWriteError",
)
# Server errors that pass: a password that is being changed, a conflict that outlived its retries, a
# time limit, an interruption, a server that steps down or stops. And one that is no replica set: it
# has neither transactions nor change streams, and is told apart by its message.
_NO_REPLICA_SET: Final = 20
_PASSING_CODES: Final = frozenset(
    {18, _NO_REPLICA_SET, 24, 50, 89, 91, 112, 189, 202, 237, 262, 11600, 11602}
)

_cancels_before: ContextVar[int] = ContextVar("haulage_cancels_before", default=0)


def create_client(
    url: str, application_name: str, max_connections: int, timeout_seconds: float
) -> Client:
    """A client that is not yet connected and opens connections as they are needed.

    What the URL says about durability is overruled: everything that was answered is on the disks of
    a majority, and nothing is read that could be rolled back.
    """
    return AsyncMongoClient(
        url,
        appname=application_name,
        maxPoolSize=max_connections,
        connectTimeoutMS=CONNECT_TIMEOUT_SECONDS * 1_000,
        serverSelectionTimeoutMS=timeout_seconds * 1_000,
        w="majority",
        journal=True,
        readConcernLevel="majority",
        readPreference="primary",
        retryWrites=True,
        retryReads=True,
    )


async def close_quietly(client: Client) -> None:
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
    if isinstance(error, OperationFailure) and error.code in _PASSING_CODES:
        return True
    return error.timeout or any(map(error.has_error_label, _PASSING_LABELS))


@contextmanager
def noticing_cancels() -> Iterator[None]:
    """Have `check_cancelled` tell of cancels that come from here on.

    Up to Python 3.11 a cancel is lost that reaches `asyncio.wait_for` in the moment when what it
    waits for is done, and the driver awaits every write so.
    """
    task = asyncio.current_task()
    token = _cancels_before.set(0 if task is None else task.cancelling())
    try:
        yield
    finally:
        _cancels_before.reset(token)


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
