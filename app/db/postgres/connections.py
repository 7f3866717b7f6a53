"""How connections are made and how their failures read; shared by the pool and the listener."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from app.domain.errors import DatabaseUnavailableError

CONNECT_TIMEOUT_SECONDS: Final = 10.0
COMMAND_TIMEOUT_SECONDS: Final = 30.0
PING_TIMEOUT_SECONDS: Final = 3.0
# The server gives up a little before its caller does: its session stays usable, and nothing goes on
# for nobody (where a table is locked, abandoned statements would use up every connection).
STATEMENT_TIMEOUT_SHARE: Final = 0.9
# At shutdown: a connection that does not end by then is ended by force.
CLOSE_SECONDS: Final = 0.5

# Of several hosts the one that takes writes; a demoted server counts as away, so that /readyz says
# so too. The server tells at connecting: no round trip.
_WRITABLE: Final = SessionAttribute.read_write

# What may be over when the same call is made again.
_UNAVAILABLE: Final = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.exceptions.OperatorInterventionError,
    asyncpg.exceptions.InsufficientResourcesError,
    # Serialisation failures and deadlocks; a lock_timeout of the role.
    asyncpg.exceptions.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
    # A server that was demoted to a standby.
    asyncpg.ReadOnlySQLTransactionError,
    # A password that is being changed, a database that is being restored.
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)


class PlainConnection(asyncpg.Connection):
    """A connection that carries no session state, so returning it to the pool needs no reset."""

    def get_reset_query(self) -> str:
        """Nothing to reset: saves a round trip per borrowed connection."""
        return ""


def server_settings(
    application_name: str, command_timeout_seconds: float = COMMAND_TIMEOUT_SECONDS
) -> dict[str, str]:
    """Session settings of every connection of ours."""
    return {
        "application_name": application_name,
        "timezone": "UTC",
        # Short statements by primary key: compiling them costs more than running them.
        "jit": "off",
        # No transaction of ours spans a wait; a client that vanished in one must not hold rows.
        "idle_in_transaction_session_timeout": "60s",
        "statement_timeout": f"{command_timeout_seconds * STATEMENT_TIMEOUT_SHARE * 1_000:.0f}ms",
    }


@asynccontextmanager
async def unavailable_errors() -> AsyncGenerator[None, None]:
    """Turn failures of connection and server into DatabaseUnavailableError, leave others alone."""
    try:
        yield
    except _UNAVAILABLE as error:
        raise DatabaseUnavailableError(describe(error)) from error


def describe(error: BaseException) -> str:
    """One line that tells a person what is wrong with the database."""
    match error:
        case TimeoutError():
            said = "no answer in time"
        case asyncpg.TargetServerAttributeNotMatched():
            said = "the server is read-only, a standby perhaps"
        case _:
            # DETAIL and HINT come on lines of their own.
            said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}"


async def connect(
    dsn: str,
    application_name: str,
    command_timeout_seconds: float = COMMAND_TIMEOUT_SECONDS,
    **settings: str,
) -> "asyncpg.Connection[asyncpg.Record]":
    """One connection of its own, outside any pool; its session begins with these settings too."""
    return await asyncpg.connect(
        dsn,
        timeout=CONNECT_TIMEOUT_SECONDS,
        command_timeout=command_timeout_seconds,
        server_settings={**server_settings(application_name, command_timeout_seconds), **settings},
        target_session_attrs=_WRITABLE,
    )


def create_pool(
    dsn: str,
    application_name: str,
    max_connections: int,
    command_timeout_seconds: float = COMMAND_TIMEOUT_SECONDS,
) -> "asyncpg.Pool[asyncpg.Record]":
    """A pool that is not yet connected and opens connections as they are needed."""
    return asyncpg.create_pool(
        dsn,
        min_size=0,
        max_size=max_connections,
        connection_class=PlainConnection,
        timeout=CONNECT_TIMEOUT_SECONDS,
        command_timeout=command_timeout_seconds,
        max_inactive_connection_lifetime=300.0,
        server_settings=server_settings(application_name, command_timeout_seconds),
        target_session_attrs=_WRITABLE,
    )


async def close_quietly(
    closable: "asyncpg.Connection[asyncpg.Record] | asyncpg.Pool[asyncpg.Record]",
    timeout_seconds: float = CLOSE_SECONDS,
) -> None:
    """Close within the time-out, by force where the server does not play along."""
    try:
        async with asyncio.timeout(timeout_seconds):
            await closable.close()
    except (*_UNAVAILABLE, asyncpg.PostgresError):
        closable.terminate()
