"""Bodies at their limit, of the kinds that cost most: refused or taken while others are served."""

import asyncio
import json
import time
from collections.abc import Awaitable, MutableMapping
from typing import Any, TypeVar

import httpx2
import pytest
from api.test_bad_input import JSON, assert_problem

from app.api.problems import MAX_TOLD_ERRORS
from app.api.server import WebServer
from app.domain.jobs import MAX_METADATA_BYTES

# Of the event loop's own thread: what others do beside it does not count, nor how busy all is.
LONGEST_TURN_SECONDS = 0.5
MANY = b"0," * 2_500_000 + b"0"

_Answer = TypeVar("_Answer")


async def with_longest_turn(call: Awaitable[_Answer]) -> tuple[_Answer, float]:
    """What it answers, and how long the event loop computed at most in one turn meanwhile."""
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)

    beating = asyncio.create_task(beat())
    answer = await call
    await asyncio.sleep(0)  # so that the last turn counts
    beating.cancel()
    return answer, longest


async def send(client: httpx2.AsyncClient, path: str, content: bytes) -> httpx2.Response:
    response, turn = await with_longest_turn(client.post(path, content=content, headers=JSON))
    assert turn < LONGEST_TURN_SECONDS
    return response


@pytest.mark.parametrize(
    "metadata",
    [
        b'{"a":[%b]}' % MANY,
        b'{"a":[%b,NaN]}' % MANY,
        b"{%b}" % b",".join(b'"%d":0' % n for n in range(350_000)),
    ],
    ids=["numbers", "numbers and NaN", "keys"],
)
async def test_metadata_of_many_values_is_refused_without_holding_others_up(
    client: httpx2.AsyncClient, metadata: bytes
) -> None:
    response = await send(client, "/enqueue", b'{"payload":{},"metadata":%b}' % metadata)

    assert response.status_code == (422 if b"NaN" in metadata else 413)
    assert_problem(response)


async def test_metadata_is_bounded_in_a_clone_and_in_a_batch_as_well(
    client: httpx2.AsyncClient,
) -> None:
    job_id = (await client.post("/enqueue", json={"payload": {}})).json()["id"]
    metadata = b'{"metadata":{"a":[%b]}}' % MANY

    clone = await send(client, f"/jobs/{job_id}/clone", metadata)
    batch = await send(client, "/jobs/batch", b'[{"payload":{},%b]' % metadata[1:])

    assert (clone.status_code, batch.status_code) == (413, 413)
    assert f"{MAX_METADATA_BYTES} bytes" in assert_problem(clone)["detail"]
    assert "row 0" in assert_problem(batch)["detail"]


@pytest.mark.parametrize("field", ["payload", "payload_patch"])
async def test_a_large_change_of_a_small_job_holds_nobody_up(
    client: httpx2.AsyncClient, field: str
) -> None:
    job_id = (await client.post("/enqueue", json={"payload": {"n": 1}})).json()["id"]

    response = await send(
        client, f"/jobs/{job_id}/clone", b'{"%b":{"a":[%b]}}' % (field.encode(), MANY)
    )

    assert response.status_code == 202, response.text


@pytest.mark.parametrize(
    "content",
    [
        json.dumps({"payload": {}} | {f"k{n}": 0 for n in range(250_000)}).encode(),
        b'{"payload":{},"tags":[%b]}' % MANY,
        b'{"payload":{},"tags":[%b]}' % b",".join([b'""'] * 1_000_000),
        b'{"payload":{"a":"\\ud800"},%b}' % b",".join(b'"\\ud800%d":0' % n for n in range(150_000)),
    ],
    ids=["unknown fields", "tags", "empty tags", "surrogates"],
)
@pytest.mark.parametrize("path", ["/enqueue", "/jobs/cancel", "/jobs/batch"])
async def test_no_more_mistakes_are_told_than_a_reader_can_use(
    client: httpx2.AsyncClient, path: str, content: bytes
) -> None:
    response = await send(client, path, b"[%b]" % content if path == "/jobs/batch" else content)

    assert response.status_code == 422
    assert 1 <= len(assert_problem(response)["errors"]) <= MAX_TOLD_ERRORS
    assert len(response.content) < 100_000


async def test_of_wrong_parameters_a_hundred_are_told(client: httpx2.AsyncClient) -> None:
    response = await client.get("/jobs", params={f"unknown{n}": "" for n in range(500)})

    assert response.status_code == 422
    assert len(assert_problem(response)["errors"]) == MAX_TOLD_ERRORS


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_error_of_ours(
    web: WebServer, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    document = web.app.openapi()
    with_body = [
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if "requestBody" in operation
    ]
    assert ("POST", "/jobs/batch") in with_body
    for method, path in with_body:
        with subtests.test(f"{method} {path}"):
            kind = b"multipart/form-data; boundary=x" if "datasets" in path else b"application/json"
            statuses = await left_in_the_middle(web, method, path, kind)

            assert statuses == [400]
            assert [record for record in caplog.records if record.levelname != "INFO"] == []


async def left_in_the_middle(web: WebServer, method: str, path: str, kind: bytes) -> list[int]:
    """The statuses that would have been sent to a client that leaves after its first bytes."""
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": b"[{", "more_body": True}]
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send_nothing(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path.replace("{", "").replace("}", ""),
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", kind)],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await web.app(scope, receive, send_nothing)
    return statuses
