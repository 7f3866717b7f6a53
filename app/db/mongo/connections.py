"""How clients are made and how their failures read; shared by the adapter and its watcher."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
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
CONNECT_TIMEOUT_SECONDS: Final = 10.0
COMMAND_TIMEOUT_SECONDS: Final = 30.0
PING_TIMEOUT_SECONDS: Final = 3.0
# Saying good-bye. Without a bound the driver looks for a server that is away for half a minute.
CLOSE_SECONDS: Final = 0.5
CANCEL_AGAIN_SECONDS: Final = 1.0

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


async def close_client(client: Client) -> None:
    """Give its connections back; where the server is silent, without telling it."""
    with pymongo.timeout(CLOSE_SECONDS):
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
