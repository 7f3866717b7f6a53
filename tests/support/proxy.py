"""A stretch of network between a client and the PostgreSQL server, with faults on demand."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final

from app.db.urls import DatabaseURL

REQUEST: Final = "request"
ANSWER: Final = "answer"


class Proxy:
    """Forwards bytes until told otherwise.

    Attributes:
        losses: messages that are still to be lost, each with its whole connection: REQUEST never
            reaches the server, ANSWER never comes back although the server has done its work.
        is_silent: nothing is forwarded any more, and nobody is told.
        is_refusing: new connections end at once.
        accepted: how many connections were made so far.
    """

    def __init__(self, target: DatabaseURL) -> None:
        self.losses: list[str] = []
        self.is_silent = False
        self.is_refusing = False
        self.accepted = 0
        self._target = target
        self._links: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._handlers: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The server's URL by way of this proxy."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return replace(self._target, hosts=(("127.0.0.1", port),)).asyncpg_dsn

    async def start(self) -> None:
        """Accept connections on a free port of the loopback address."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    def cut(self) -> None:
        """End every connection without a word."""
        for client, server in self._links:
            for writer in (client, server):
                writer.transport.abort()

    async def stop(self) -> None:
        """End every connection and listen no longer: connecting is refused from now on."""
        assert self._server is not None
        self._server.close()
        self.is_refusing = True
        self.cut()
        await asyncio.gather(*self._handlers)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)
        if self.is_refusing:
            writer.transport.abort()
            return
        self.accepted += 1
        [(host, port)] = self._target.hosts
        server_reader, server_writer = await asyncio.open_connection(host, port)
        link = (writer, server_writer)
        if self.is_refusing:  # since then
            writer.transport.abort()
            server_writer.transport.abort()
            return
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(reader, server_writer, link, REQUEST))
                group.create_task(self._forward(server_reader, writer, link, ANSWER))
        finally:
            self._links.discard(link)
            for end in link:
                end.transport.abort()

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        link: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        kind: str,
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                if self.losses and self.losses[0] == kind:
                    del self.losses[0]
                    break
                if not self.is_silent:
                    writer.write(data)
                    await writer.drain()
        for end in link:
            end.transport.abort()


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    """A proxy in front of the database at `url`."""
    proxy = Proxy(DatabaseURL.parse(url))
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
