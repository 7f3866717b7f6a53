"""An endpoint for webhooks on this machine: it keeps what it got and answers as it is told."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

OK = b"HTTP/1.1 204 No Content\r\n\r\n"


def answering(status: int, *headers: str, body: str = "") -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


@dataclass(frozen=True, slots=True)
class Got:
    """One request."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


@dataclass
class HookServer:
    """Answers of `script` in their order, then OK; None hangs up without a word."""

    port: int = 0
    got: list[Got] = field(default_factory=list)
    script: list[bytes | None] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    # Clear it to keep those who ask waiting.
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def next(self) -> Got:
        """The next request from here on."""
        await asyncio.wait_for(self.arrived.wait(), 20.0)
        self.arrived.clear()
        return self.got[-1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *lines = head.strip().split("\r\n")
            headers = {k.lower(): v for k, v in (one.split(": ", 1) for one in lines)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.got.append(Got(line, headers, body))
            self.arrived.set()
            await self.may_answer.wait()
            answer = self.script.pop(0) if self.script else OK
            if answer is not None:
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def hook_server() -> AsyncGenerator[HookServer, None]:
    """A server on a free port of 127.0.0.1."""
    hooks = HookServer()
    hooks.may_answer.set()
    server = await asyncio.start_server(hooks.serve, "127.0.0.1", 0)
    hooks.port = server.sockets[0].getsockname()[1]
    try:
        yield hooks
    finally:
        hooks.may_answer.set()
        server.close()
        await server.wait_closed()
