"""A stretch of network between a client and the database server, with faults on demand."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from app.db.mongo_urls import MongoURL
from app.db.urls import DatabaseURL

REQUEST: Final = "request"
ANSWER: Final = "answer"

# Two messages of PostgreSQL's driver: a statement's name with its text, its execution by that name.
_PARSE: Final = re.compile(rb"P.{4}(__asyncpg_\w+__)\0([^\0]*)\0", re.DOTALL)
_BIND: Final = re.compile(rb"B.{4}\0(__asyncpg_\w+__)\0", re.DOTALL)
# The id of a session in a command of MongoDB's driver.
_SESSION: Final = re.compile(rb"lsid\0.{4}\x05id\0.{5}(.{16})", re.DOTALL)


class Conversation(Protocol):
    """What a client says over one connection."""

    def asks(self, data: bytes) -> list[bytes]:
        """The statements or commands that these bytes have the server do."""


class _Postgres:
    """Remembers the texts of statements by the names under which the driver prepared them."""

    def __init__(self) -> None:
        self._statements: dict[bytes, bytes] = {}

    def asks(self, data: bytes) -> list[bytes]:
        self._statements.update(_PARSE.findall(data))
        return [self._statements.get(name, b"") for name in _BIND.findall(data)]


class _Mongo:
    """Takes each request for one command, and a commit for all of its transaction.

    Args:
        transactions: what was asked in each session's transaction, whatever the connection.
    """

    def __init__(self, transactions: dict[bytes, bytes]) -> None:
        self._transactions = transactions

    def asks(self, data: bytes) -> list[bytes]:
        session = _SESSION.search(data)
        if session is None:
            return [data]
        before = b"" if b"startTransaction" in data else self._transactions.get(session[1], b"")
        self._transactions[session[1]] = before + data
        return [before + data if b"commitTransaction" in data else data]


@dataclass(eq=False, slots=True)
class _Link:
    """One connection from end to end.

    Attributes:
        is_doomed: the next answer is lost.
    """

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    conversation: Conversation
    is_doomed: bool = False

    def abort(self) -> None:
        for end in (self.client, self.server):
            end.transport.abort()


class Proxy:
    """Forwards bytes until told otherwise.

    Args:
        address: of the server.
        url_by_way_of: the server's URL by way of a port of the loopback address.

    Attributes:
        losses: messages that are still to be lost, each with its whole connection: REQUEST never
            reaches the server, ANSWER never comes back although the server has done its work.
        unanswered: what is to lose its answer next time, likewise: parts that are all in one
            statement or command.
        held_back: parts of what is not forwarded but kept, as in `unanswered`; once this is None
            again, its connection ends.
        is_holding: somebody has asked for that.
        is_silent: nothing is forwarded any more, and nobody is told.
        is_refusing: new connections end at once.
        accepted: how many connections were made so far.
    """

    def __init__(
        self,
        address: tuple[str, int],
        url_by_way_of: Callable[[int], str],
        conversation: Callable[[], Conversation],
    ) -> None:
        self.losses: list[str] = []
        self.unanswered: list[tuple[bytes, ...]] = []
        self.held_back: tuple[bytes, ...] | None = None
        self.is_holding = False
        self.is_silent = False
        self.is_refusing = False
        self.accepted = 0
        self._address = address
        self._url_by_way_of = url_by_way_of
        self._conversation = conversation
        self._links: set[_Link] = set()
        self._handlers: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The server's URL by way of this proxy."""
        assert self._server is not None
        return self._url_by_way_of(self._server.sockets[0].getsockname()[1])

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
        self.held_back = None
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
        server_reader, server_writer = await asyncio.open_connection(*self._address)
        link = _Link(writer, server_writer, self._conversation())
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
                if kind == REQUEST and self._look_into(data, link):
                    await self._hold()
                    break
                if not self.is_silent:
                    writer.write(data)
                    await writer.drain()
        link.abort()

    def _look_into(self, data: bytes, link: _Link) -> bool:
        """Whether the request is to be held back."""
        for asked in link.conversation.asks(data):
            if self.held_back is not None and _is_in(asked, self.held_back):
                return True
            for wanted in self.unanswered:
                if _is_in(asked, wanted):
                    self.unanswered.remove(wanted)
                    link.is_doomed = True
                    return False
        return False

    async def _hold(self) -> None:
        self.is_holding = True
        # Looked for: the test that lets go is in another thread.
        while self.held_back is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        self.is_holding = False


def _is_in(asked: bytes, parts: tuple[bytes, ...]) -> bool:
    return all(part in asked for part in parts)


def proxy_to(url: str) -> Proxy:
    """A proxy in front of the database at `url`, not yet started."""
    if MongoURL.matches(url):
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None

        def by_way_of(port: int) -> str:
            # Else the driver would ask the server for its address and go there.
            options = dict(parse_qsl(parts.query)) | {"directConnection": "true"}
            options.pop("replicaSet", None)
            there = parts._replace(netloc=f"127.0.0.1:{port}", query=urlencode(options))
            return urlunsplit(there)

        transactions: dict[bytes, bytes] = {}
        return Proxy((parts.hostname, parts.port), by_way_of, lambda: _Mongo(transactions))
    target = DatabaseURL.parse(url)
    [address] = target.hosts
    return Proxy(
        address, lambda port: replace(target, hosts=(("127.0.0.1", port),)).asyncpg_dsn, _Postgres
    )


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    """A proxy in front of the database at `url`."""
    proxy = proxy_to(url)
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
    proxy = proxy_to(url)
    try:
        asyncio.run_coroutine_threadsafe(proxy.start(), loop).result(10.0)
        yield proxy
        asyncio.run_coroutine_threadsafe(proxy.stop(), loop).result(10.0)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
