"""Whatever is wrong with a request: a problem that names the place, and nothing stored."""

import json
import sys
from typing import Any

import asyncpg
import httpx2
import pytest

from app.domain.jobs import MAX_METADATA_BYTES

JSON = {"content-type": "application/json"}


def nested(levels: int) -> str:
    return '{"k":' * levels + "1" + "}" * levels


def body(**fields: Any) -> bytes:
    """A request that would be fine but for these fields."""
    return json.dumps({"payload": {}, **fields}).encode()


def payload(text: str) -> bytes:
    """A request with this text as its payload."""
    return b'{"payload":' + text.encode() + b"}"


# What is sent, the answer's status and the place that it names; None where it names none.
BAD: dict[str, tuple[bytes, int, str | None]] = {
    "not JSON": (b"{", 400, None),
    "text after the end": (b'{"payload":{}} x', 400, None),
    "not UTF-8": (b'{"payload":{"a":"\xff\xfe"}}', 400, None),
    "compressed": (b"\x1f\x8b\x08\x00\x00\x00", 400, None),
    "empty": (b"", 422, ""),
    "null": (b"null", 422, ""),
    "an array": (b"[]", 422, ""),
    "a string": (b'"payload"', 422, ""),
    "no payload": (b"{}", 422, "/payload"),
    "payload null": (payload("null"), 422, "/payload"),
    "payload an array": (payload("[]"), 422, "/payload"),
    "payload a string": (payload('"{}"'), 422, "/payload"),
    "unknown field": (body(unknown=1), 422, "/unknown"),
    "unknown field with ~ and /": (body(**{"a/b~c": 1}), 422, "/a~1b~0c"),
    "NUL": (payload('{"a":["\\u0000"]}'), 422, "/payload/a/0"),
    "NUL in a key": (payload('{"a":{"\\u0000":1}}'), 422, "/payload/a"),
    "lone surrogate": (payload('{"a":"\\ud800"}'), 422, "/payload/a"),
    "lone surrogate in a key": (payload('{"\\udfff":1}'), 422, "/payload"),
    "lone surrogate in an unknown field": (b'{"payload":{},"\\ud800":1}', 422, ""),
    "NaN": (payload('{"a":NaN}'), 422, "/payload/a"),
    "Infinity": (payload('{"a":[1,Infinity]}'), 422, "/payload/a/1"),
    "-Infinity": (payload('{"a":-Infinity}'), 422, "/payload/a"),
    "1e400": (payload('{"a":1e400}'), 422, "/payload/a"),
    "200 levels": (payload(nested(200)), 422, "/payload" + "/k" * 100),
    "100,000 levels": (payload(nested(100_000)), 422, ""),
    "100,000 open brackets": (b"[" * 100_000, 422, ""),
    "integer of 2,000 digits": (payload('{"a":' + "9" * 2_000 + "}"), 422, "/payload/a"),
    "integer of 5,000 digits": (payload('{"a":' + "9" * 5_000 + "}"), 422, ""),
    "run_at without an offset": (body(run_at="2030-01-01T00:00:00"), 422, "/run_at"),
    "run_at no time": (body(run_at="soon"), 422, "/run_at"),
    "run_at before all time": (body(run_at="0001-01-01T00:00:00+14:00"), 422, "/run_at"),
    "run_at after all time": (body(run_at="9999-12-31T23:59:59-14:00"), 422, "/run_at"),
    "run_at and delay": (body(run_at="2030-01-01T00:00:00Z", delay_seconds=1), 422, ""),
    "negative delay": (body(delay_seconds=-1), 422, "/delay_seconds"),
    "endless delay": (body(delay_seconds=float("inf")), 422, "/delay_seconds"),
    "delay NaN": (body(delay_seconds=float("nan")), 422, "/delay_seconds"),
    "delay of 400 digits": (
        b'{"payload":{},"delay_seconds":' + b"9" * 400 + b"}",
        422,
        "/delay_seconds",
    ),
    "priority too high": (body(priority=32_768), 422, "/priority"),
    "priority a fraction": (body(priority=1.5), 422, "/priority"),
    "priority endless": (body(priority=10**100), 422, "/priority"),
    "no attempts": (body(max_attempts=0), 422, "/max_attempts"),
    "no time": (body(timeout_seconds=0), 422, "/timeout_seconds"),
    "empty queue": (body(queue=""), 422, "/queue"),
    "long queue": (body(queue="q" * 256), 422, "/queue"),
    "NUL in the queue": (body(queue="a\x00"), 422, "/queue"),
    "too many tags": (body(tags=["x"] * 51), 422, "/tags"),
    "long tag": (body(tags=["x", "y" * 101]), 422, "/tags/1"),
    "NUL in a tag": (body(tags=["x", "\x00"]), 422, "/tags/1"),
    "lone surrogate in a tag": (body(tags=["\ud800"]), 422, "/tags/0"),
    "NUL in the metadata": (body(metadata={"a": "\x00"}), 422, "/metadata/a"),
    "lone surrogate in the metadata": (body(metadata={"a": ["\ud800"]}), 422, "/metadata/a/0"),
    "metadata too large": (body(metadata={"a": "x" * MAX_METADATA_BYTES}), 413, None),
    "unknown pipeline": (body(pipeline="unknown"), 422, "/pipeline"),
    "import path": (body(pipeline="os:system"), 422, "/pipeline"),
    "import path of a module not yet there": (body(pipeline="antigravity:x"), 422, "/pipeline"),
    "import path of ours": (body(pipeline="app.pipelines.demo:Echo"), 422, "/pipeline"),
    "relative path": (body(pipeline="../x:Y"), 422, "/pipeline"),
    "empty pipeline": (body(pipeline=""), 422, "/pipeline"),
    "NUL in the pipeline": (body(pipeline="demo-echo\x00"), 422, "/pipeline"),
    "lone surrogate in the pipeline": (body(pipeline="\ud800"), 422, "/pipeline"),
}


async def test_bad_input_is_a_problem_and_nothing_is_stored(
    client: httpx2.AsyncClient, database_url: str, subtests: pytest.Subtests
) -> None:
    connection = await asyncpg.connect(database_url)
    for name, (content, status, pointer) in BAD.items():
        with subtests.test(name):
            response = await client.post("/enqueue", content=content, headers=JSON)

            assert response.status_code == status, response.text
            problem = assert_problem(response)
            assert problem["instance"] == "/enqueue"
            pointers = [error["pointer"] for error in problem.get("errors", [])]
            assert pointers == ([] if pointer is None else [pointer])
            assert len(problem["detail"]) < 2_000
            assert await connection.fetchval("select count(*) from haulage.jobs") == 0
    await connection.close()


def assert_problem(response: httpx2.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["status"] == response.status_code
    assert problem["type"].startswith("urn:haulage:problem:")
    assert problem["title"]
    assert problem["detail"]
    return problem


async def test_every_mistake_is_named_when_there_are_several(client: httpx2.AsyncClient) -> None:
    response = await client.post(
        "/enqueue", content=body(priority="x", max_attempts=0, unknown=1), headers=JSON
    )

    errors = assert_problem(response)["errors"]
    assert [e["pointer"] for e in errors] == ["/priority", "/max_attempts", "/unknown"]
    assert all(error["detail"] for error in errors)


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
async def test_another_content_type_is_refused(
    client: httpx2.AsyncClient, content_type: str | None
) -> None:
    headers = {} if content_type is None else {"content-type": content_type}

    response = await client.post("/enqueue", content=body(), headers=headers)

    assert response.status_code == 415
    assert "application/json" in assert_problem(response)["detail"]


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "application/x+json"])
async def test_json_under_another_name_is_accepted(
    client: httpx2.AsyncClient, content_type: str
) -> None:
    response = await client.post("/enqueue", content=body(), headers={"content-type": content_type})

    assert response.status_code == 200


async def test_nothing_is_imported_for_an_unknown_pipeline(client: httpx2.AsyncClient) -> None:
    await client.post("/enqueue", content=body(pipeline="unknown"), headers=JSON)
    before = set(sys.modules)

    for name in ("antigravity:x", "this:that", "app.pipelines.demo:Echo", "tests.api:x"):
        response = await client.post("/enqueue", content=body(pipeline=name), headers=JSON)
        assert response.status_code == 422
        assert "demo-echo" in assert_problem(response)["detail"]

    assert set(sys.modules) == before
    assert "app.pipelines.demo" not in sys.modules or "app.pipelines.demo" in before


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/enqueue", 405),
        ("PUT", "/enqueue", 405),
        ("POST", "/jobs/x", 405),
        ("DELETE", "/livez", 405),
        ("GET", "/", 404),
        ("GET", "/nowhere", 404),
        ("POST", "/batches/x", 405),
        ("PUT", "/jobs", 405),
        ("GET", "/jobs/x/y/z", 404),
    ],
)
async def test_a_route_or_method_that_is_not_there_is_a_problem(
    client: httpx2.AsyncClient, method: str, path: str, status: int
) -> None:
    response = await client.request(method, path)

    assert response.status_code == status
    assert assert_problem(response)["instance"] == path
    assert ("allow" in response.headers) is (status == 405)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/jobs", "GET, HEAD, POST"),
        ("/v1/jobs/x", "DELETE, GET, HEAD"),
        ("/jobs/retry", "POST"),
        ("/livez", "GET, HEAD"),
    ],
)
async def test_a_refused_method_is_told_which_ones_there_are(
    client: httpx2.AsyncClient, path: str, allowed: str
) -> None:
    response = await client.patch(path)

    assert (response.status_code, response.headers["allow"]) == (405, allowed)


async def test_the_last_of_equal_keys_counts_and_numbers_stay_whole(
    client: httpx2.AsyncClient, database_url: str
) -> None:
    response = await client.post(
        "/enqueue",
        content=payload('{"a":1,"a":2,"n":18446744073709551617,"x":9007199254740993}'),
        headers=JSON,
    )

    assert response.status_code == 200
    connection = await asyncpg.connect(database_url)
    stored = await connection.fetchval("select payload::text from haulage.job_payloads")
    await connection.close()
    assert json.loads(stored) == {"a": 2, "n": 2**64 + 1, "x": 2**53 + 1}


async def test_what_answers_get_answers_head(client: httpx2.AsyncClient) -> None:
    job = (await client.post("/enqueue", json={"payload": {}})).json()["id"]
    of_the_job = (f"/jobs/{job}", f"/jobs/{job}/logs")
    pages = ("/docs", "/redoc", "/openapi.json")
    for path in (*of_the_job, *pages, "/jobs", "/queues", "/v1/nodes", "/jobs/no"):
        got, head = await client.get(path), await client.head(path)
        assert head.status_code == got.status_code, path
        for name in ("content-type", "content-security-policy"):
            assert head.headers.get(name) == got.headers.get(name), path
        assert head.content == b""
