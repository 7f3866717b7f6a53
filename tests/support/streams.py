"""Clients of server-sent events: one that talks to the application itself, one over a socket."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message


@dataclass(frozen=True, slots=True)
class Told:
    """One event as a client understands it; `name` is "" for comments and "retry" for that."""

    name: str
    data: Any = None
    id: int | None = None


def told(block: str) -> Told:
    """The event of one block between empty lines."""
    fields: dict[str, str] = {}
    for line in block.split("\n"):
        if line.startswith(":"):
            return Told("")
        name, _, value = line.partition(": ")
        assert name in {"event", "data", "id", "retry"}, line
        assert name not in fields
        fields[name] = value
    if "retry" in fields:
        return Told("retry", int(fields["retry"]))
    event_id = int(fields["id"]) if "id" in fields else None
    return Told(fields["event"], json.loads(fields["data"]), event_id)


class Stream:
    """One request to the application in this process, read as it answers.

    Attributes:
        status: None before the answer has begun.
        is_reading: clear it and the client takes nothing any more.
    """

    def __init__(self, app: ASGIApp, path: str, headers: Mapping[str, str]) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.is_reading = asyncio.Event()
        self.is_reading.set()
        self.is_complete = False
        self._text = ""
        self._blocks: asyncio.Queue[str | None] = asyncio.Queue()
        self._has_left = asyncio.Event()
        self._is_asked = False
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "http_version": "1.1",
            "scheme": "http",
            "server": ("test", 80),
            "asgi": {"version": "3.0", "spec_version": "2.3"},
        }
        self.task = asyncio.ensure_future(self._run(app, scope))

    async def _run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._send)
        finally:
            self._blocks.put_nowait(None)

    async def _receive(self) -> Message:
        if not self._is_asked:
            self._is_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._has_left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self.is_reading.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        self.body += message["body"]
        self._text += message["body"].decode()
        *blocks, self._text = self._text.split("\n\n")
        for block in blocks:
            self._blocks.put_nowait(block)
        self.is_complete = not message.get("more_body", False)

    async def next(self) -> Told | None:
        """The next event that is no comment; None at the end."""
        while True:
            block = await asyncio.wait_for(self._blocks.get(), 20)
            if block is None:
                self._blocks.put_nowait(None)
                return None
            event = told(block)
            if event.name:
                return event

    async def rest(self) -> list[Told]:
        """All further events up to the end."""
        events = []
        while (event := await self.next()) is not None:
            events.append(event)
        return events

    async def until(self, name: str, **data: Any) -> list[Told]:
        """Events up to and with one of this name and with these data."""
        events = []
        while (event := await self.next()) is not None:
            events.append(event)
            if event.name == name and data.items() <= event.data.items():
                return events
        raise AssertionError(f"ended without {name} {data}: {events}")

    async def leave(self) -> None:
        """As if the client had closed its connection; returns when its request has ended."""
        self._has_left.set()
        self.is_reading.set()
        await asyncio.wait_for(asyncio.gather(self.task, return_exceptions=True), 20)


@asynccontextmanager
async def stream(app: ASGIApp, path: str, **headers: str) -> AsyncGenerator[Stream, None]:
    """A client that leaves at the block's end; underscores in header names become hyphens."""
    client = Stream(app, path, {name.replace("_", "-"): text for name, text in headers.items()})
    try:
        yield client
    finally:
        await client.leave()


class SocketStream:
    """The same over a socket of its own, for services in another process."""

    def __init__(
        self, url: str, path: str, *, buffer_bytes: int | None = None, **headers: str
    ) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        self.socket = socket.socket()
        if buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self.socket.settimeout(20)
        self.socket.connect((address.hostname, address.port))
        lines = "".join(f"{name.replace('_', '-')}: {text}\r\n" for name, text in headers.items())
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
        self._received = bytearray()
        self.is_at_end = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @property
    def received(self) -> bytes:
        """What has come so far."""
        return bytes(self._received)

    def read(self) -> None:
        """Take something more, or find the end."""
        with contextlib.suppress(ConnectionResetError):
            if chunk := self.socket.recv(65_536):
                self._received += chunk
                return
        self.is_at_end = True

    def until(self, text: bytes, timeout_seconds: float = 20.0) -> bytes:
        """Everything received once it contains `text`."""
        end = time.monotonic() + timeout_seconds
        seen = 0
        while (found := self._received.find(text, seen)) < 0:
            seen = max(0, len(self._received) - len(text))
            assert not self.is_at_end, self._received[-400:]
            assert time.monotonic() < end, self._received[-400:]
            self.read()
        assert found >= 0
        return self.received

    def rest(self) -> list[Told]:
        """All events of the answer up to its end."""
        while not self.is_at_end:
            self.read()
        return list(self._events())

    def _events(self) -> Iterator[Told]:
        head, _, body = self.received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        text = b""
        while body:
            size, _, body = body.partition(b"\r\n")
            text += body[: int(size, 16)]
            body = body[int(size, 16) + 2 :]
        for block in text.decode().split("\n\n")[:-1]:
            if (event := told(block)).name:
                yield event

    def abort(self) -> None:
        """Close it with a reset, as a client that crashes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()
