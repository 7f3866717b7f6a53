"""Requests that a shutdown overtakes."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from api.conftest import client_of, web_server
from starlette.responses import StreamingResponse

from app.api.server import WebServer


class Hanging:
    """Two routes that do not come to their end by themselves."""

    def __init__(self, web: WebServer) -> None:
        self.is_reached = asyncio.Event()
        self.was_cancelled = False
        web.app.add_api_route("/waits", self.wait)
        web.app.add_api_route("/streams", self.stream, response_class=StreamingResponse)

    async def wait(self) -> None:
        self.is_reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise

    async def stream(self) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield b"first"
            await self.wait()

        return StreamingResponse(parts())


@pytest.fixture
def web(database_url: str) -> WebServer:
    return web_server(database_url)


@pytest.fixture
def hanging(web: WebServer) -> Hanging:
    return Hanging(web)


async def test_a_request_that_waits_at_the_end_is_told_so(web: WebServer, hanging: Hanging) -> None:
    async with client_of(web) as client:
        waiting = asyncio.ensure_future(client.get("/waits"))
        await hanging.is_reached.wait()
        web.end_requests()
        response = await waiting

    assert hanging.was_cancelled
    assert response.status_code == 503
    assert response.json()["type"] == "urn:haulage:problem:stopping"
    assert response.headers["retry-after"] == "2"
    assert response.headers["connection"] == "close"


async def test_a_request_that_comes_after_the_end_is_told_so(web: WebServer) -> None:
    web.end_requests()
    async with client_of(web) as client:
        response = await client.get("/readyz")

    assert response.json()["type"] == "urn:haulage:problem:stopping"


async def test_an_answer_that_is_half_sent_is_broken_off(web: WebServer, hanging: Hanging) -> None:
    async with client_of(web) as client:
        streaming = asyncio.ensure_future(client.get("/streams"))
        await hanging.is_reached.wait()
        web.end_requests()
        # The server closes the connection then: no client takes it for the whole answer.
        with pytest.raises(asyncio.CancelledError):
            await streaming


async def test_a_client_that_leaves_is_not_answered(web: WebServer, hanging: Hanging) -> None:
    async with client_of(web) as client:
        waiting = asyncio.ensure_future(client.get("/waits"))
        await hanging.is_reached.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert hanging.was_cancelled
