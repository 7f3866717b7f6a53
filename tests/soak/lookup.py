"""The conductor's own look into the database while that is being harmed."""

import asyncio
import contextlib
from typing import Any, Final

import asyncpg

PATIENCE_SECONDS: Final = 3.0


class Lookup:
    """One connection that is made again whenever it is lost; no answer is an empty one."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._turn = asyncio.Lock()

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        """The rows; [] while the database does not answer."""
        async with self._turn:
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    if self._connection is None or self._connection.is_closed():
                        self._connection = await asyncpg.connect(
                            self._url, server_settings={"application_name": "soak"}
                        )
                    return await self._connection.fetch(statement, *arguments)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                self._drop()
                return []

    async def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            with contextlib.suppress(OSError, TimeoutError, asyncpg.InterfaceError):
                await self._connection.close(timeout=PATIENCE_SECONDS)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
        self._connection = None
