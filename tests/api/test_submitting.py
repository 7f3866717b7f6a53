"""Idempotency keys over HTTP, and the conventional way to submit."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from api.conftest import client_of, web_server
from api.test_bad_input import BAD, JSON, assert_problem, body
from contract.steps import claimed, complete, new_node

from app.api.server import WebServer
from app.db.postgres.adapter import PostgresJobsDB
from app.domain.keys import Scope, new_key
from app.domain.submissions import MAX_KEY_CHARACTERS

LONGEST = "k" * MAX_KEY_CHARACTERS


async def submit(
    client: httpx2.AsyncClient, key: str | bytes, payload: Any = None, **fields: Any
) -> httpx2.Response:
    return await client.post(
        "/enqueue",
        content=body(payload=payload or {}, **fields),
        headers={
            b"content-type": b"application/json",
            b"idempotency-key": key.encode() if isinstance(key, str) else key,
        },
    )


async def pending(db: PostgresJobsDB) -> int:
    return len(await db.claim_pending_jobs(await new_node(db), 1_000))


@pytest.mark.parametrize("root", ["", "/v1"])
async def test_a_job_is_accepted_with_202_under_its_conventional_name(
    client: httpx2.AsyncClient, db: PostgresJobsDB, root: str
) -> None:
    response = await client.post(f"{root}/jobs", json={"payload": {"a": 1}, "priority": 7})

    assert response.status_code == 202
    job_id = response.json()["id"]
    assert response.json() == {"id": job_id, "status": "pending"}
    assert response.headers["location"] == f"{root}/jobs/{job_id}"
    assert response.headers["retry-after"] == "2"
    assert "idempotency-replayed" not in response.headers
    assert (await db.get_job(job_id)).priority == 7


async def test_bad_input_is_refused_under_the_conventional_name_as_well(
    client: httpx2.AsyncClient, db: PostgresJobsDB, subtests: pytest.Subtests
) -> None:
    for name in ("not JSON", "no payload", "NUL", "priority too high", "unknown pipeline"):
        content, status, _ = BAD.get(name, (body(pipeline="unknown"), 422, "/pipeline"))
        with subtests.test(name):
            response = await client.post("/jobs", content=content, headers=JSON)
            assert response.status_code == status
            assert_problem(response)
    assert (await client.post("/jobs", content=body())).status_code == 415
    assert await pending(db) == 0


@pytest.mark.parametrize("path", ["/enqueue", "/jobs"])
async def test_a_repetition_gets_the_first_answer_again(
    client: httpx2.AsyncClient, db: PostgresJobsDB, path: str
) -> None:
    headers = {**JSON, "idempotency-key": "once"}
    first = await client.post(path, content=body(payload={"a": 1, "b": 2}), headers=headers)
    # Spelled in another way, and by another name of the same route.
    again = await client.post(
        f"/v1{path}", content=b'{"payload": {"b": 2, "a": 1}, "queue": "default"}', headers=headers
    )

    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["location"] == f"/v1/jobs/{first.json()['id']}"
    assert await pending(db) == 1


async def test_a_repetition_finds_its_job_whatever_has_become_of_it(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    first = await submit(client, "k")
    job = await db.claim_next_pending_job(await new_node(db))
    assert job is not None
    await complete(db, job)

    again = await submit(client, "k")

    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"


async def test_other_content_under_a_key_is_refused(
    client: httpx2.AsyncClient, db: PostgresJobsDB, subtests: pytest.Subtests
) -> None:
    first = await submit(client, "k", {"a": 1})
    job_id = first.json()["id"]
    others: list[dict[str, Any]] = [
        {"payload": {"a": 2}},
        {"payload": {"a": "1"}},
        {"pipeline": "demo-sleep"},
        {"queue": "other"},
        {"priority": 1},
        {"run_at": "2040-01-01T00:00:00Z"},
        {"delay_seconds": 1},
        {"max_attempts": 2},
        {"timeout_seconds": 5},
        {"start_timeout_seconds": 5},
        {"stall_seconds": 5},
        {"memory_limit_bytes": 2**30},
        {"tags": ["x"]},
        {"metadata": {"x": 1}},
    ]
    for fields in others:
        with subtests.test(str(fields)):
            response = await submit(client, "k", **{"payload": {"a": 1}, **fields})

            assert response.status_code == 422
            problem = assert_problem(response)
            assert problem["type"] == "urn:haulage:problem:idempotency-key-reused"
            assert job_id in problem["detail"]
    same: list[dict[str, Any]] = [
        {"pipeline": "demo-echo"},
        {"run_at": None, "tags": [], "priority": 0},
    ]
    for fields in same:
        with subtests.test(str(fields)):
            response = await submit(client, "k", {"a": 1}, **fields)
            assert (response.status_code, response.json()["id"]) == (200, job_id)
    assert await pending(db) == 1


async def test_an_instant_is_the_same_in_every_time_zone(client: httpx2.AsyncClient) -> None:
    first = await submit(client, "k", run_at="2040-01-01T12:00:00Z")
    again = await submit(client, "k", run_at="2040-01-01T14:00:00+02:00")

    assert again.json() == first.json()


async def test_a_key_may_be_bare_or_in_quotes(
    client: httpx2.AsyncClient, subtests: pytest.Subtests
) -> None:
    for bare, quoted in (
        ("abc", '"abc"'),
        (LONGEST, f'"{LONGEST}"'),
        (r"a\b", r'"a\\b"'),
        ('a"b', r'"a\"b"'),
        ("8e03978e-40d5-43dd-bc93-6894a57f9324", '"8e03978e-40d5-43dd-bc93-6894a57f9324"'),
        ("!~", '"!~"'),
    ):
        with subtests.test(bare[:40]):
            first, again = await submit(client, bare), await submit(client, quoted)
            assert (first.status_code, again.status_code) == (200, 200), again.text
            assert first.json() == again.json()
            assert again.headers["idempotency-replayed"] == "true"


async def test_a_key_that_is_none_is_refused(
    client: httpx2.AsyncClient, db: PostgresJobsDB, subtests: pytest.Subtests
) -> None:
    for key in (
        b"",
        b'""',
        b'"',
        b'"abc',
        b'"a"b"',
        b'"a";p=1',
        b'"a\\b"',
        b'"a\\',
        b"a b",
        b'"a b"',
        b"a\tb",
        b"\xc3\xa9",
        b"a\x7f",
        LONGEST.encode() + b"k",
        b'"' + LONGEST.encode() + b'k"',
    ):
        with subtests.test(ascii(key[:20])):
            response = await submit(client, key)
            assert response.status_code == 400
            problem = assert_problem(response)
            assert problem["type"] == "urn:haulage:problem:bad-idempotency-key"
            assert len(problem["detail"]) < 500
    assert (await submit(client, b"k" * 100_000)).status_code == 431
    twice = [("content-type", "application/json"), *[("idempotency-key", "a")] * 2]
    response = await client.post("/enqueue", content=body(), headers=twice)
    assert response.status_code == 400
    assert await pending(db) == 0


async def test_a_refused_request_does_not_use_up_its_key(client: httpx2.AsyncClient) -> None:
    assert (await submit(client, "k", priority=10**6)).status_code == 422
    assert (await submit(client, "k", {"a": "\x00"})).status_code == 422

    response = await submit(client, "k")
    assert response.status_code == 200
    assert "idempotency-replayed" not in response.headers


async def test_a_large_payload_is_compared_as_well(client: httpx2.AsyncClient) -> None:
    rows = ["x" * 100] * 20_000
    first = await submit(client, "k", {"rows": rows})
    again = await submit(client, "k", {"rows": rows})
    other = await submit(client, "k", {"rows": rows[1:]})

    assert first.json() == again.json()
    assert other.status_code == 422


async def test_whoever_comes_at_once_with_one_key_gets_one_job(
    client: httpx2.AsyncClient, db: PostgresJobsDB, database_url: str
) -> None:
    other = web_server(database_url)
    async with other._lifespan(other.app), client_of(other) as other_client:
        responses = await asyncio.gather(
            *(submit(c, "k", {"a": 1}) for _ in range(50) for c in (client, other_client))
        )

    assert {response.status_code for response in responses} == {200}
    assert len({response.json()["id"] for response in responses}) == 1
    new = [r for r in responses if "idempotency-replayed" not in r.headers]
    assert len(new) == 1
    assert await pending(db) == 1


async def test_keys_of_different_submitters_are_different_keys(
    web: WebServer, db: PostgresJobsDB, client: httpx2.AsyncClient
) -> None:
    # Before anybody has a key of the API everybody is the same submitter.
    ids = [(await submit(client, "k")).json()["id"]]
    api_keys = {name: new_key() for name in ("a", "b")}
    for name, api_key in api_keys.items():
        await db.insert_key(name, api_key, Scope.SUBMIT)

    for name in ("a", "b", "a"):
        client.headers["authorization"] = f"Bearer {api_keys[name]}"
        response = await submit(client, "k", {"not": "compared"} if name == "b" else {})
        assert response.status_code == 200
        ids.append(response.json()["id"])

    assert ids[1] == ids[3]
    assert len(set(ids)) == 3


async def test_defaults_of_a_pipeline_may_change_between_two_equal_requests(
    client: httpx2.AsyncClient, web: WebServer
) -> None:
    first = await submit(client, "k")
    intake = web._intake
    assert intake._pipelines is not None
    changed = {n: replace(r, max_attempts=9) for n, r in intake._pipelines.items()}
    intake._pipelines = changed

    again = await submit(client, "k")

    assert again.json() == first.json()


async def test_a_job_made_without_a_key_is_never_replayed(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    await claimed(db)
    first = await client.post("/enqueue", content=body(), headers=JSON)
    second = await client.post("/enqueue", content=body(), headers=JSON)

    assert first.json() != second.json()


# What the guard in front of all routes answers.
OF_EVERY_ROUTE = {"400", "401", "403", "414", "421", "431"}


async def test_the_document_tells_of_keys(client: httpx2.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()

    for path, status in (("/enqueue", "200"), ("/jobs", "202"), ("/jobs/batch", "202")):
        operation = document["paths"][path]["post"]
        [parameter] = operation["parameters"]
        assert (parameter["name"], parameter["in"]) == ("Idempotency-Key", "header")
        own = {status, "400", "408", "413", "415", "422", "429", "503"}
        assert set(operation["responses"]) == own | OF_EVERY_ROUTE
        assert "Idempotency-Replayed" in operation["responses"][status]["headers"]
    names = [
        operation["operationId"]
        for operations in document["paths"].values()
        for operation in operations.values()
    ]
    assert len(set(names)) == len(names)
    assert {"enqueue_post", "submit_post", "batch_post", "get_batch"} <= set(names)
    assert "$defs" not in json.dumps(document["paths"]["/jobs/batch"])
