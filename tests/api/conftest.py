"""The real application in this process, on a real database, without a scheduler."""

from collections.abc import AsyncGenerator
from functools import partial

import httpx2
import pytest
from support.proxy import Proxy, proxied

from app.api.server import NoScheduler, WebServer
from app.db.postgres.adapter import PostgresJobsDB
from app.pipelines.registry import load_registrations


def web_server(url: str) -> WebServer:
    """The server with our own pipelines registered."""
    return WebServer(
        PostgresJobsDB(url, default_pipeline="demo-echo"),
        NoScheduler(),
        pipelines=load_registrations({}),
        default_pipeline="demo-echo",
        db_factory=partial(PostgresJobsDB, url, max_connections=1, notify=False),
    )


def client_of(web: WebServer, *, raises: bool = True) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=web.app, raise_app_exceptions=raises)
    return httpx2.AsyncClient(transport=transport, base_url="http://test")


@pytest.fixture
async def db(database_url: str) -> AsyncGenerator[PostgresJobsDB, None]:
    """An adapter to look and act behind the API's back."""
    adapter = PostgresJobsDB(database_url, default_pipeline="demo-echo")
    yield adapter
    await adapter.close()


@pytest.fixture
async def web(database_url: str) -> AsyncGenerator[WebServer, None]:
    """The started server."""
    server = web_server(database_url)
    async with server._lifespan(server.app):
        yield server


@pytest.fixture
async def client(web: WebServer) -> AsyncGenerator[httpx2.AsyncClient, None]:
    async with client_of(web) as requests:
        yield requests


@pytest.fixture
async def proxy(database_url: str) -> AsyncGenerator[Proxy, None]:
    """A network between the API and its database that can fail."""
    async with proxied(database_url) as between:
        yield between
