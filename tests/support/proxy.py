"""A stretch of network between a client and the PostgreSQL server, with faults on demand."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from app.db.urls import DatabaseURL

REQUEST: Final = "request"
ANSWER: Final = "answer"

# Two messages of the driver: a statement's name with its text, and its execution by that name.
_PARSE: Final = re.compile(rb"P.{4}(__asyncpg_\w+__)\0([^\0]*)\0", re.DOTALL)
_BIND: Final = re.compile(rb"B.{4}\0(__asyncpg_\w+__)\0", re.DOTALL)


@dataclass(eq=False, slots=True)
class _Link:
    """One connection from end to end.

    Attributes:
        statements: texts by the names under which the driver prepared them.
        is_doomed: the next answer is lost.
    """

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    statements: dict[bytes, bytes] = field(default_factory=dict)
    is_doomed: bool = False

    def abort(self) -> None:
        for end in (self.client, self.server):
            end.transport.abort()


class Proxy:
    """Forwards bytes until told otherwise.

    Attributes:
        losses: messages that are still to be lost, each with its whole connection: REQUEST never
            reaches the server, ANSWER never comes back although the server has done its work.
        unanswered: parts of statements whose next execution is to lose its answer, likewise.
        is_silent: nothing is forwarded any more, and nobody is told.
        is_refusing: new connections end at once.
        accepted: how many connections were made so far.
    """

    def __init__(self, target: DatabaseURL) -> None:
        self.losses: list[str] = []
        self.unanswered: list[bytes] = []
        self.is_silent = False
        self.is_refusing = False
        self.accepted = 0
        self._target = target
        self._links: set[_Link] = set()
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
        for link in self._links:
            link.abort()

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
        link = _Link(writer, server_writer)
        if self.is_refusing:  # since then
            link.abort()
            return
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(reader, server_writer, link, REQUEST))
                group.create_task(self._forward(server_reader, writer, link, ANSWER))
        finally:
            self._links.discard(link)
            link.abort()

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        link: _Link,
        kind: str,
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                if self.losses and self.losses[0] == kind:
                    del self.losses[0]
                    break
                if kind == ANSWER and link.is_doomed:
                    break
                if kind == REQUEST:
                    self._look_into(data, link)
                if not self.is_silent:
                    writer.write(data)
                    await writer.drain()
        link.abort()

    def _look_into(self, data: bytes, link: _Link) -> None:
        link.statements.update(_PARSE.findall(data))
        for name in _BIND.findall(data):
            for wanted in self.unanswered:
                if wanted in link.statements.get(name, b""):
                    self.unanswered.remove(wanted)
                    link.is_doomed = True
                    return


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    """A proxy in front of the database at `url`."""
    proxy = Proxy(DatabaseURL.parse(url))
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


@contextmanager
def proxied_beside(url: str) -> Iterator[Proxy]:
    """The same in a thread of its own, for tests without an event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    proxy = Proxy(DatabaseURL.parse(url))
    try:
        asyncio.run_coroutine_threadsafe(proxy.start(), loop).result(10.0)
        yield proxy
        asyncio.run_coroutine_threadsafe(proxy.stop(), loop).result(10.0)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
