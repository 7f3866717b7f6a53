"""Bodies that come slowly, or many at once: refused in time, and nothing is kept of them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from api.conftest import client_of
from api.test_bad_input import assert_problem
from api.test_security import asking, made, serving

from app.api import datasets, receiving
from app.api.room import Room
from app.api.server import WebServer
from app.db.postgres.adapter import PostgresJobsDB
from app.domain.keys import Scope

JSON = {"content-type": "application/json"}
FORM = {"content-type": "multipart/form-data; boundary=b"}
PLACES = [("/enqueue", JSON), ("/jobs/batch", JSON), ("/jobs/cancel", JSON), ("/datasets", FORM)]


@pytest.mark.parametrize(("path", "headers"), PLACES)
async def test_a_body_that_stops_is_given_up(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str, headers: dict[str, str]
) -> None:
    monkeypatch.setattr(receiving, "STALL_SECONDS", 0.05)

    async def silent() -> AsyncIterator[bytes]:
        yield b'{"payload":'
        await asyncio.Event().wait()

    response = await asyncio.wait_for(client.post(path, content=silent(), headers=headers), 5.0)

    assert response.status_code == 408
    assert_problem(response)
    assert response.headers["connection"] == "close"


@pytest.mark.parametrize(("path", "headers"), PLACES)
async def test_a_body_that_trickles_is_given_up(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str, headers: dict[str, str]
) -> None:
    """Never silent for long, and yet it would never end."""
    monkeypatch.setattr(receiving, "STALL_SECONDS", 0.3)

    async def trickling() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.02)

    response = await asyncio.wait_for(client.post(path, content=trickling(), headers=headers), 5.0)

    assert response.status_code == 408


async def test_a_body_that_goes_on_may_take_its_time(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "STALL_SECONDS", 0.2)
    monkeypatch.setattr(receiving, "LEAST_BYTES_PER_SECOND", 1_000)

    async def steady() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b" " * 1_000
            await asyncio.sleep(0.05)
        yield b'{"payload":{}}'

    began = time.monotonic()
    response = await client.post("/enqueue", content=steady(), headers=JSON)

    assert response.status_code == 200
    assert time.monotonic() - began > 0.4


async def test_bodies_have_so_much_room_together_and_give_it_back(
    web: WebServer, subtests: pytest.Subtests
) -> None:
    room = web.app.state.body_room = Room(300_000, "bodies")
    go_on, has_begun = asyncio.Event(), asyncio.Event()
    body = json.dumps({"payload": {"a": "x" * 200_000}}).encode()

    async def slow() -> AsyncIterator[bytes]:
        yield body[:190_000]
        has_begun.set()
        await go_on.wait()
        yield body[190_000:]

    async with client_of(web) as client:
        first = asyncio.ensure_future(client.post("/enqueue", content=slow(), headers=JSON))
        await has_begun.wait()
        refused = await client.post("/enqueue", content=body, headers=JSON)
        assert refused.status_code == 503
        assert_problem(refused)
        assert refused.headers["retry-after"] == "2"
        assert (await client.post("/enqueue", json={"payload": {}})).status_code == 200
        go_on.set()
        assert (await first).status_code == 200

        broken: list[dict[str, Any]] = [
            {"content": body},
            {"content": body[:-1]},
            {"content": b'{"payload":1}' + b" " * 200_000},
            {"content": b" " * 299_999},
        ]
        for request in broken:
            with subtests.test(str(request)[:40]):
                response = await client.post("/enqueue", headers=JSON, **request)
                assert response.status_code in {200, 400, 422}
                assert room._free == 300_000


async def test_one_key_cannot_take_every_place_for_uploads(
    database_url: str, db: PostgresJobsDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "MAX_UPLOADS", datasets.MAX_UPLOADS_OF_ONE + 1)
    go_on = asyncio.Event()
    begun = asyncio.Queue[None]()
    head = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
    file = head + b"id,text\n1,some answer\n\r\n--b--\r\n"

    async def slow() -> AsyncIterator[bytes]:
        yield file[:60]
        begun.put_nowait(None)
        await go_on.wait()
        yield file[60:]

    (greedy, _), (other, _) = await made(db, Scope.SUBMIT), await made(db, Scope.SUBMIT)
    async with (
        serving(database_url) as web,
        asking(web, greedy) as first,
        asking(web, other) as second,
    ):

        def sent(client: httpx2.AsyncClient) -> asyncio.Future[httpx2.Response]:
            return asyncio.ensure_future(client.post("/datasets", content=slow(), headers=FORM))

        waiting = [sent(first) for _ in range(datasets.MAX_UPLOADS_OF_ONE)]
        for _ in waiting:
            await begun.get()
        assert (await first.post("/datasets", content=file, headers=FORM)).status_code == 503
        assert (await second.post("/datasets", content=file, headers=FORM)).status_code == 201
        waiting.append(sent(second))
        await begun.get()
        assert (await second.post("/datasets", content=file, headers=FORM)).status_code == 503
        go_on.set()
        assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {201}
        assert (await first.post("/datasets", content=file, headers=FORM)).status_code == 201
