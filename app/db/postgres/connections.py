"""How connections are made and how their failures read; shared by the pool and the listener."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import asyncpg

from app.domain.errors import DatabaseUnavailableError

CONNECT_TIMEOUT_SECONDS: Final = 10.0
COMMAND_TIMEOUT_SECONDS: Final = 30.0
PING_TIMEOUT_SECONDS: Final = 3.0
# At shutdown: a connection that does not end by then is ended by force.
CLOSE_SECONDS: Final = 0.5

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


def server_settings(application_name: str) -> dict[str, str]:
    """Session settings of every connection of ours."""
    return {
        "application_name": application_name,
        "timezone": "UTC",
        # Short statements by primary key: compiling them costs more than running them.
        "jit": "off",
        # No transaction of ours spans a wait; a client that vanished in one must not hold rows.
        "idle_in_transaction_session_timeout": "60s",
        # Nor may a statement go on whose caller gave up long ago.
        "statement_timeout": "60s",
    }


@asynccontextmanager
async def unavailable_errors() -> AsyncGenerator[None, None]:
    """Turn failures of connection and server into DatabaseUnavailableError, leave others alone."""
    try:
        yield
    except _UNAVAILABLE as error:
        raise DatabaseUnavailableError(f"{type(error).__name__}: {error}") from error


async def connect(dsn: str, application_name: str) -> "asyncpg.Connection[asyncpg.Record]":
    """One connection of its own, outside any pool."""
    return await asyncpg.connect(
        dsn,
        timeout=CONNECT_TIMEOUT_SECONDS,
        command_timeout=COMMAND_TIMEOUT_SECONDS,
        server_settings=server_settings(application_name),
    )


def create_pool(
    dsn: str, application_name: str, max_connections: int
) -> "asyncpg.Pool[asyncpg.Record]":
    """A pool that is not yet connected and opens connections as they are needed."""
    return asyncpg.create_pool(
        dsn,
        min_size=0,
        max_size=max_connections,
        connection_class=PlainConnection,
        timeout=CONNECT_TIMEOUT_SECONDS,
        command_timeout=COMMAND_TIMEOUT_SECONDS,
        max_inactive_connection_lifetime=300.0,
        server_settings=server_settings(application_name),
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
