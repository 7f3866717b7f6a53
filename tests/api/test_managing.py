"""Lists, clones, deletion, changes of many jobs, queues, nodes and pipelines over HTTP."""

import json
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from api.conftest import client_of
from contract.steps import RAISED, claimed, complete, new_job, new_node

from app.api.managing_clones import merge_patch
from app.api.server import NoScheduler, WebServer
from app.db.ids import new_id
from app.db.postgres import managing
from app.db.postgres.adapter import PostgresJobsDB
from app.domain.jobs import JobOptions, JobStatus, Limits, Registration
from app.domain.lifecycle import decide

PROBLEM = "application/problem+json"


def refused(response: httpx2.Response, status: int, kind: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == PROBLEM
    problem: dict[str, Any] = response.json()
    assert problem["type"] == f"urn:haulage:problem:{kind}"
    return problem


async def failed(db: PostgresJobsDB, **options: Any) -> str:
    job = await claimed(db, **options)
    assert await db.finish_job(job.claim, decide(RAISED, job))
    return job.id


# -- lists ------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["", "/v1"])
async def test_next_leads_through_all_pages(
    client: httpx2.AsyncClient, db: PostgresJobsDB, root: str
) -> None:
    made = [await new_job(db, tags=("a&b", "ü")) for _ in range(5)]
    await new_job(db)

    found: list[str] = []
    following: str | None = f"{root}/jobs?tag=a%26b&tag=%C3%BC&limit=2&count=true"
    while following:
        response = await client.get(following)
        assert response.status_code == 200, response.text
        page = response.json()
        found += [job["id"] for job in page["items"]]
        expected = {"count": 5, "is_exact": True} if "count" in following else None
        assert page["total"] == expected
        following = page["next"]
        link = response.headers.get("link")
        assert link == (following and f'<{following}>; rel="next"')
        if following:
            assert urlsplit(following).path == f"{root}/jobs"
            asked = parse_qs(urlsplit(following).query)
            assert (asked["tag"], asked["limit"]) == (["a&b", "ü"], ["2"])
    assert found == made[::-1]


async def test_an_item_is_flat_and_light(client: httpx2.AsyncClient, db: PostgresJobsDB) -> None:
    job_id = await failed(db, metadata={"a": 1})

    [item] = (await client.get("/jobs")).json()["items"]

    assert (item["id"], item["status"], item["error_class"]) == (job_id, "failed", "ValueError")
    assert not {"payload", "metadata", "milestones", "traceback"} & item.keys()
    assert not any(isinstance(value, dict) for value in item.values())


async def test_filters_are_taken_from_the_query(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    one = await failed(db, pipeline="p")
    two = await new_job(db, pipeline="p", queue="night")
    at = (await db.get_job(two)).created_at
    hour = {"created_after": at.isoformat()}
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"status": ["failed", "pending"]}, [two, one]),
        ({"status": "failed"}, [one]),
        ({"queue": "night", "pipeline": "p"}, [two]),
        ({"error": "valueerr"}, [one]),
        ({"node": new_id()}, []),
        ({"batch": new_id()}, []),
        (hour, [two]),
        ({"created_before": at.isoformat()}, [one]),
        ({"submitted_by": ""}, [two, one]),
    ]
    for query, expected in cases:
        response = await client.get("/jobs", params=query)
        assert response.status_code == 200, response.text
        assert [job["id"] for job in response.json()["items"]] == expected, query


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=201",
        "limit=x",
        "status=done",
        "staus=failed",
        "offset=10",
        "node=here",
        "batch=1",
        "created_after=2026-01-01T00:00:00",
        "created_after=yesterday",
        "created_before=0001-01-01T00:00:00%2B12:00",
        "error=",
        f"error={'x' * 201}",
        f"pipeline={'x' * 256}",
        "&".join(f"tag={n}" for n in range(11)),
        "pipeline=a%00b",
        "error=%00",
        "tag=%00",
        "count=perhaps",
    ],
)
async def test_a_filter_that_makes_no_sense_is_refused(
    client: httpx2.AsyncClient, query: str
) -> None:
    response = await client.get(f"/jobs?{query}")

    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == PROBLEM
    assert response.json()["errors"]


@pytest.mark.parametrize(
    "cursor", ["x", "AAAA", "%00", "019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a11", "A" * 21, "é" * 22, "+/"]
)
async def test_a_cursor_that_is_none_is_refused(client: httpx2.AsyncClient, cursor: str) -> None:
    problem = refused(await client.get("/jobs", params={"cursor": cursor}), 422, "bad-cursor")
    assert problem["errors"][0]["pointer"] == "/query/cursor"


async def test_a_search_that_takes_too_long_is_ended(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(managing, "SEARCH_SECONDS", 0.2)
    db = PostgresJobsDB(database_url, command_timeout_seconds=30)
    web = WebServer(db, NoScheduler())
    looking = PostgresJobsDB(database_url)
    async with looking._borrowed() as holder, client_of(web) as client:
        await holder.execute("begin; lock haulage.jobs")
        response = await client.get("/jobs")
        problem = refused(response, 503, "search-too-long")
        assert "narrow it by a time" in problem["detail"]
        # The same search again would not help, and costs as much.
        assert "retry-after" not in response.headers
        await holder.execute("commit")
        assert (await client.get("/jobs")).status_code == 200
    await db.close()
    await looking.close()


# -- deletion ---------------------------------------------------------------------------------


async def test_a_deleted_job_is_gone_wherever_it_was_told(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    problem = refused(await client.delete(f"/jobs/{job.id}"), 409, "wrong-status")
    assert problem["job_status"] == "running"
    assert await complete(db, job)

    response = await client.delete(f"/jobs/{job.id}")

    assert (response.status_code, response.content) == (204, b"")
    gone = [
        await client.get(f"/jobs/{job.id}"),
        await client.get(f"/v1/jobs/{job.id}"),
        await client.get(f"/jobs/{job.id}/result"),
        await client.post(f"/jobs/{job.id}/cancel"),
        await client.post(f"/jobs/{job.id}/retry"),
        await client.post(f"/jobs/{job.id}/clone"),
        await client.delete(f"/jobs/{job.id}"),
    ]
    for response in gone:
        assert job.id in refused(response, 410, "job-deleted")["detail"]
    for unknown in (new_id(), "none"):
        refused(await client.delete(f"/jobs/{unknown}"), 404, "no-such-job")
    assert (await client.get("/jobs")).json()["items"] == []


# -- many at once -----------------------------------------------------------------------------


async def test_many_jobs_are_changed_by_a_filter_or_by_their_ids(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    one, two = await new_job(db, tags=("x",)), await new_job(db)
    failure = await failed(db, tags=("y",), priority=9)

    cancelled = await client.post("/jobs/cancel", json={"tag": ["x"]})
    named = await client.post("/v1/jobs/cancel", json={"ids": [two, two, failure, new_id()]})
    retried = await client.post("/jobs/retry", json={"status": ["failed", "completed"]})

    assert cancelled.json() == named.json() == retried.json()
    assert cancelled.json() == {"matched": 1, "changed": 1, "left": 0}
    states = {job["id"]: job["status"] for job in (await client.get("/jobs")).json()["items"]}
    assert states == {one: "cancelled", two: "cancelled", failure: "pending"}


@pytest.mark.parametrize("route", ["cancel", "retry"])
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"ids": []},
        {"ids": ["none"]},
        {"ids": [new_id()] * 1_001},
        {"status": []},
        {"staus": ["failed"]},
        {"pipeline": "\x00"},
        {"error": "\ud800"},
        {"limit": 5},
        {"tag": [""]},
        [],
    ],
    ids=lambda body: json.dumps(body)[:40],
)
async def test_a_change_of_who_knows_what_is_refused(
    client: httpx2.AsyncClient, db: PostgresJobsDB, route: str, body: Any
) -> None:
    pending = await new_job(db)

    response = await client.post(
        f"/jobs/{route}", content=json.dumps(body), headers={"content-type": "application/json"}
    )

    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == PROBLEM
    assert (await db.get_job(pending)).status is JobStatus.PENDING


# -- clones -----------------------------------------------------------------------------------


async def test_a_clone_is_the_same_work_again(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    limits = Limits(60.0, 30.0, 20.0, 2**30)
    options = JobOptions(
        queue="q",
        priority=4,
        max_attempts=3,
        limits=limits,
        tags=("t",),
        metadata={"m": 1},
        delay_seconds=3_600,
    )
    source = await db.insert_pending_job({"big": 2**64, "text": "ü"}, options)

    response = await client.post(f"/v1/jobs/{source}/clone")

    assert response.status_code == 202, response.text
    assert response.json()["status"] == "pending"
    clone_id = response.json()["id"]
    assert clone_id != source
    assert response.headers["location"] == f"/v1/jobs/{clone_id}"
    assert int(response.headers["retry-after"]) > 0
    one, two = await db.get_job(source), await db.get_job(clone_id)
    for name in ("pipeline", "queue", "priority", "max_attempts", "limits", "tags", "metadata"):
        assert getattr(two, name) == getattr(one, name), name
    # The start is its own: at once.
    assert two.run_at == two.created_at
    assert json.loads(await db.get_payload(clone_id)) == {"big": 2**64, "text": "ü"}


@pytest.mark.parametrize("change", ["deleted", "started over", "finished"])
async def test_a_keyed_clone_is_answered_again_whatever_became_of_the_other_job(
    client: httpx2.AsyncClient, db: PostgresJobsDB, change: str
) -> None:
    job = await claimed(db, pipeline="thematic")
    await db.save_checkpoint(job.claim, "embed", "{}")
    path, body = f"/v1/jobs/{job.id}/clone", {"from_stage": "embed", "tags": ["again"]}
    named = {"idempotency-key": "one"}
    first = await client.post(path, json=body, headers=named)
    assert first.status_code == 202, first.text
    assert "idempotency-replayed" not in first.headers
    assert await complete(db, job)
    if change == "deleted":
        await db.delete_job(job.id)
    elif change == "started over":  # which forgets the stages
        await db.retry_job(job.id)

    again = await client.post(path.replace(job.id, job.id.upper()), json=body, headers=named)

    assert (again.status_code, again.json()) == (202, first.json())
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["idempotency-replayed"] == "true"
    refused(
        await client.post(path, json={**body, "tags": []}, headers=named),
        422,
        "idempotency-key-reused",
    )
    if change == "deleted":
        refused(await client.post(path, json=body), 410, "job-deleted")
        other = {"idempotency-key": "two"}
        refused(await client.post(path, json=body, headers=other), 410, "job-deleted")


@pytest.mark.parametrize("is_made_before", [True, False])
async def test_a_job_that_goes_in_the_middle_of_a_clone_is_missed_only_by_the_first_one(
    client: httpx2.AsyncClient,
    db: PostgresJobsDB,
    monkeypatch: pytest.MonkeyPatch,
    is_made_before: bool,  # noqa: FBT001
) -> None:
    source = await failed(db)
    path, named = f"/jobs/{source}/clone", {"idempotency-key": "one"}
    real = PostgresJobsDB.get_payload
    made: list[str] = []

    async def meanwhile(self: PostgresJobsDB, job_id: str) -> str:
        monkeypatch.setattr(PostgresJobsDB, "get_payload", real)
        if is_made_before:
            made.append((await client.post(path, headers=named)).json()["id"])
        await db.delete_job(job_id)
        return await real(self, job_id)

    monkeypatch.setattr(PostgresJobsDB, "get_payload", meanwhile)
    response = await client.post(path, headers=named)

    if is_made_before:
        assert (response.status_code, response.json()["id"]) == (202, made[0])
        assert response.headers["idempotency-replayed"] == "true"
    else:
        refused(response, 410, "job-deleted")
        assert (await client.get("/jobs")).json()["items"] == []


async def test_a_clone_has_what_the_body_says(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    options = JobOptions(queue="q", priority=4, max_attempts=3, tags=("t",))
    source = await db.insert_pending_job({"a": 1, "b": {"c": 2, "d": 3}, "e": [1]}, options)

    async def cloned(body: dict[str, Any]) -> tuple[Any, Any]:
        response = await client.post(f"/jobs/{source}/clone", json=body)
        assert response.status_code == 202, response.text
        job = await db.get_job(response.json()["id"])
        return job, json.loads(await db.get_payload(job.id))

    job, payload = await cloned({"payload": {}, "queue": "default", "priority": 0, "tags": []})
    assert (job.queue, job.priority, job.tags, job.max_attempts) == ("default", 0, (), 3)
    assert payload == {}
    job, payload = await cloned({"payload_patch": {"a": None, "b": {"c": 9}, "e": [2], "f": None}})
    assert payload == {"b": {"c": 9, "d": 3}, "e": [2]}
    assert job.queue == "q"
    # Attempts and limits belonged to the other pipeline.
    job, payload = await cloned({"pipeline": "demo-sleep", "timeout_seconds": 9})
    assert (job.pipeline, job.max_attempts, job.limits) == ("demo-sleep", 1, Limits(9.0))
    job, _ = await cloned({"max_attempts": 7})
    assert job.max_attempts == 7


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        # The examples of RFC 7396, appendix A, whose documents are objects.
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({"a": "foo"}, {"a": {"b": 1}}, {"a": {"b": 1}}),
    ],
)
def test_a_patch_is_merged_by_its_rfc(target: Any, patch: Any, result: Any) -> None:
    before = json.dumps(target)
    assert merge_patch(target, patch) == result
    assert json.dumps(target) == before


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        ({"payload": {}, "payload_patch": {}}, 422, ""),
        ({"payload": {"a": "\x00"}}, 422, "/payload/a"),
        ({"payload_patch": {"a": {"b": "\ud800"}}}, 422, "/payload_patch/a/b"),
        ({"payload_patch": nested(120)}, 422, "/payload_patch" + "/a" * 100),
        ({"payload_patch": []}, 422, "/payload_patch"),
        ({"payload": None}, 422, "/payload"),
        ({"pipeline": "unknown"}, 422, "/pipeline"),
        ({"pipeline": "os:system"}, 422, "/pipeline"),
        ({"from_stage": "embed"}, 422, "/from_stage"),
        ({"id": new_id()}, 422, "/id"),
        ({"metadata": {"a": "\x00"}}, 422, "/metadata/a"),
    ],
    ids=str,
)
async def test_a_clone_that_cannot_be_is_refused(
    client: httpx2.AsyncClient,
    db: PostgresJobsDB,
    body: dict[str, Any],
    status: int,
    pointer: str,
) -> None:
    source = await new_job(db, {"a": 1})

    response = await client.post(
        f"/jobs/{source}/clone",
        content=json.dumps(body),
        headers={"content-type": "application/json"},
    )

    assert response.status_code == status, response.text
    assert response.headers["content-type"] == PROBLEM
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]
    assert [job["id"] for job in (await client.get("/jobs")).json()["items"]] == [source]


async def test_a_body_that_is_no_json_is_no_clone(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    source = await new_job(db)
    path = f"/jobs/{source}/clone"

    assert (await client.post(path, content=b"{}")).status_code == 415
    headers = {"content-type": "application/json"}
    assert (await client.post(path, content=b"{", headers=headers)).status_code == 400
    refused(await client.post(f"/jobs/{new_id()}/clone"), 404, "no-such-job")


async def test_a_clone_starts_from_a_stage_that_the_job_has_finished(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job = await claimed(db, pipeline="thematic")
    await db.save_checkpoint(job.claim, "embed", "{}")
    body = {"from_stage": "embed", "payload_patch": {"max_themes": 3}}

    response = await client.post(f"/jobs/{job.id.upper()}/clone", json=body)

    assert response.status_code == 202, response.text
    payload = json.loads(await db.get_payload(response.json()["id"]))
    assert payload == {"max_themes": 3, "start_from": {"job": job.id, "stage": "embed"}}
    problem = refused(
        await client.post(f"/jobs/{job.id}/clone", json={"from_stage": "name"}),
        422,
        "no-such-stage",
    )
    assert "it has: embed" in problem["detail"]
    # A pipeline that does not take it would silently do everything again.
    problem = refused(
        await client.post(
            f"/jobs/{job.id}/clone", json={"from_stage": "embed", "pipeline": "demo-echo"}
        ),
        422,
        "no-such-stage",
    )
    assert "start_from" in problem["detail"]


# -- queues and nodes -------------------------------------------------------------------------


async def test_a_queue_is_paused_and_resumed(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job_id = await new_job(db, queue="a/b c")
    node = await new_node(db)

    paused = [await client.post("/queues/a%2Fb%20c/pause") for _ in range(2)]
    assert await db.claim_next_pending_job(node) is None
    [queue] = (await client.get("/queues")).json()["items"]
    resumed = [await client.post("/v1/queues/a%2Fb%20c/resume") for _ in range(2)]

    assert {(r.status_code, r.text) for r in paused} == {(200, '{"name":"a/b c","is_paused":true}')}
    assert {(r.status_code, r.text) for r in resumed} == {
        (200, '{"name":"a/b c","is_paused":false}')
    }
    assert (queue["name"], queue["is_paused"], queue["pending"]) == ("a/b c", True, 1)
    claim = await db.claim_next_pending_job(node)
    assert claim is not None
    assert claim.id == job_id


@pytest.mark.parametrize("name", ["x" * 256, "%25" * 256])
async def test_a_queue_that_no_job_can_name_is_refused(
    client: httpx2.AsyncClient, name: str
) -> None:
    for act in ("pause", "resume"):
        response = await client.post(f"/queues/{name}/{act}")
        assert response.status_code == 422
        assert response.headers["content-type"] == PROBLEM
    assert (await client.get("/queues")).json() == {"items": [], "next": None}


@pytest.mark.parametrize("root", ["", "/v1"])
@pytest.mark.parametrize("what", ["queues", "nodes"])
async def test_queues_and_nodes_come_by_pages(
    client: httpx2.AsyncClient, db: PostgresJobsDB, root: str, what: str
) -> None:
    if what == "queues":
        expected = ["a", "b/ü?&", "c"]
        for queue in expected:
            await new_job(db, queue=queue)
    else:
        ended, *alive = [await new_node(db) for _ in range(3)]
        await db.deregister_node(ended)
        expected = [*alive[::-1], ended]
    key = "name" if what == "queues" else "id"

    found: list[str] = []
    following: str | None = f"{root}/{what}?limit=1"
    while following:
        response = await client.get(following)
        assert response.status_code == 200, response.text
        page = response.json()
        found += [item[key] for item in page["items"]]
        following = page["next"]
        assert response.headers.get("link") == (following and f'<{following}>; rel="next"')
        assert following is None or following.startswith(f"{root}/{what}?")

    assert found == expected


@pytest.mark.parametrize(
    "path",
    [
        "/queues?limit=0",
        "/queues?limit=201",
        "/queues?after=%00",
        f"/queues?after={'x' * 256}",
        "/nodes?limit=0",
        "/nodes?limit=201",
        "/nodes?cursor=",
        "/nodes?cursor=live.x",
        f"/nodes?cursor={new_id()}",
        f"/nodes?cursor=live.{new_id()}%0A",
        f"/nodes?cursor=gone.{new_id()}",
    ],
)
async def test_a_page_that_cannot_be_is_refused(client: httpx2.AsyncClient, path: str) -> None:
    response = await client.get(path)

    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == PROBLEM
    assert response.json()["errors"]


async def test_a_queue_says_when_not_all_that_waits_was_counted(
    client: httpx2.AsyncClient, db: PostgresJobsDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(managing, "MAX_COUNTED", 2)
    for _ in range(3):
        await new_job(db)

    [queue] = (await client.get("/queues")).json()["items"]

    assert (queue["pending"], queue["is_exact"]) == (2, False)


async def test_a_node_is_drained_and_resumed(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    node = await new_node(db)
    await claimed(db, node)

    for _ in range(2):
        response = await client.post(f"/nodes/{node}/drain")
        assert response.status_code == 200, response.text
        assert (response.json()["state"], response.json()["running"]) == ("draining", 1)
    [told] = (await client.get("/nodes")).json()["items"]
    assert (told["id"], told["state"], told["capacity"]) == (node, "draining", 4)
    for _ in range(2):
        assert (await client.post(f"/nodes/{node}/resume")).json()["state"] == "active"

    await db.deregister_node(node)
    for act in ("drain", "resume"):
        assert (
            "stopped"
            in refused(await client.post(f"/nodes/{node}/{act}"), 409, "node-gone")["detail"]
        )
        refused(await client.post(f"/nodes/{new_id()}/{act}"), 404, "no-such-node")
        refused(await client.post(f"/nodes/none/{act}"), 404, "no-such-node")


# -- pipelines --------------------------------------------------------------------------------


@pytest.fixture
async def told(database_url: str) -> AsyncGenerator[dict[str, Any], None]:
    """What a server tells about two pipelines of its own, by name."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    pipelines = {
        "rich": Registration(
            "rich", "a:B", {"secret": "x"}, 3, Limits(stall_seconds=9.0), "Does it.", schema
        ),
        "bare": Registration("bare", "c:D"),
    }
    db = PostgresJobsDB(database_url)
    web = WebServer(db, NoScheduler(), pipelines=pipelines, default_pipeline="bare")
    async with client_of(web) as client:
        response = await client.get("/pipelines")
        assert response.status_code == 200
        yield response.json()
    await db.close()


def test_pipelines_are_told_with_defaults_and_schema(told: dict[str, Any]) -> None:
    bare, rich = told["items"]

    assert rich == {
        "name": "rich",
        "is_default": False,
        "description": "Does it.",
        "defaults": {
            "max_attempts": 3,
            "timeout_seconds": None,
            "start_timeout_seconds": None,
            "stall_seconds": 9.0,
            "memory_limit_bytes": None,
        },
        "payload_schema": {"type": "object", "properties": {"n": {"type": "integer"}}},
    }
    assert (bare["name"], bare["is_default"], bare["payload_schema"]) == ("bare", True, None)
    # How a pipeline is constructed may hold what is nobody's business.
    assert "secret" not in json.dumps(told)
    assert "a:B" not in json.dumps(told)


async def test_every_new_operation_has_a_name_and_its_problems(client: httpx2.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()

    operations = {
        operation["operationId"]: operation
        for path in document["paths"].values()
        for operation in path.values()
    }
    for name, statuses in {
        "list_jobs": {"200", "422", "503"},
        "delete_job": {"204", "404", "409", "410", "503"},
        "clone_post": {"202", "404", "408", "410", "413", "415", "422", "429"},
        "cancel_jobs_post": {"200", "400", "408", "413", "415", "422", "503"},
        "pause_queue": {"200", "422", "503"},
        "drain_node": {"200", "404", "409", "503"},
        "list_pipelines": {"200"},
    }.items():
        # And what the guard in front of all routes answers.
        every = {"400", "401", "403", "414", "421", "431", "503"}
        assert set(operations[name]["responses"]) == statuses | every, name
    assert "/queues/{name}/pause" in document["paths"]
    named = {parameter["name"] for parameter in operations["list_jobs"]["parameters"]}
    assert {"status", "tag", "cursor", "limit", "created_after", "error"} <= named
