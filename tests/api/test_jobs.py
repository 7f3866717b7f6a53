"""Submitting jobs and following them over HTTP."""

import asyncio
import json
import threading
import types
from typing import Any
from uuid import UUID

import asyncpg
import httpx2
import pytest
from api.conftest import client_of
from contract.steps import RAISED, claimed, complete, new_node

from app.api import intake, requests
from app.api.requests import MAX_BODY_BYTES
from app.api.server import NoScheduler, WebServer
from app.db.ids import new_id
from app.db.postgres.adapter import PostgresJobsDB
from app.domain.jobs import MAX_PAYLOAD_BYTES, Limits, Milestone, Progress
from app.domain.json_values import dump_field
from app.domain.lifecycle import decide

PROBLEM = "application/problem+json"


async def enqueue(client: httpx2.AsyncClient, payload: Any, **options: Any) -> str:
    response = await client.post("/enqueue", json={"payload": payload, **options})
    assert response.status_code == 200, response.text
    job_id: str = response.json()["id"]
    return job_id


async def test_a_job_is_accepted_with_its_payload_alone(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    response = await client.post("/enqueue", json={"payload": {"a": 1}})

    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body == {"id": body["id"], "status": "pending"}
    assert str(UUID(body["id"])) == body["id"]
    assert response.headers["location"] == f"/jobs/{body['id']}"
    assert (await db.get_job(body["id"])).pipeline == "demo-echo"


async def test_every_option_reaches_the_store(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    options = {
        "pipeline": "demo-sleep",
        "queue": "nightly",
        "priority": -5,
        "run_at": "2040-01-02T03:04:05+05:30",
        "max_attempts": 3,
        "timeout_seconds": 60.5,
        "start_timeout_seconds": 30,
        "stall_seconds": 20,
        "memory_limit_bytes": 2**40,
        "tags": ["x", "ü"],
        "metadata": {"n": 18_446_744_073_709_551_617},
    }
    job_id = await enqueue(client, {}, **options)

    job = await db.get_job(job_id)
    assert (job.pipeline, job.queue, job.priority) == ("demo-sleep", "nightly", -5)
    assert job.run_at.isoformat() == "2040-01-01T21:34:05+00:00"
    assert (job.max_attempts, job.limits) == (3, Limits(60.5, 30, 20, 2**40))
    assert (job.tags, job.metadata) == (("x", "ü"), options["metadata"])


async def test_a_pending_job_is_told_in_full(client: httpx2.AsyncClient) -> None:
    job_id = await enqueue(client, {"a": 1}, tags=["x"])

    response = await client.get(f"/jobs/{job_id}")

    assert response.status_code == 200
    assert "retry-after" in response.headers
    body = response.json()
    assert body == {
        "id": job_id,
        "status": "pending",
        "pipeline": "demo-echo",
        "queue": "default",
        "priority": 0,
        "attempt": 0,
        "max_attempts": 1,
        "progress": None,
        "milestones": [],
        "created_at": body["created_at"],
        "run_at": body["created_at"],
        "started_at": None,
        "finished_at": None,
        "error": None,
        "node_id": None,
        "pid": None,
        "cancel_requested_at": None,
        "batch_id": None,
        "submitted_by": "",
        "timeout_seconds": None,
        "start_timeout_seconds": None,
        "stall_seconds": None,
        "memory_limit_bytes": None,
        "tags": ["x"],
        "metadata": {},
    }
    assert body["created_at"].endswith(("Z", "+00:00"))


async def test_progress_and_milestones_are_told_while_a_job_runs(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    await db.report_started(job.claim, 4_711)
    await db.report_progress(job.claim, Progress(0.2, "load", "reading"), is_milestone=True)
    await db.report_progress(job.claim, Progress(0.4, "load", "still"))

    body = (await client.get(f"/jobs/{job.id}")).json()

    assert (body["status"], body["pid"], body["attempt"]) == ("running", 4_711, 1)
    assert body["progress"] == {"fraction": 0.4, "stage": "load", "message": "still"}
    [milestone] = body["milestones"]
    assert milestone == {
        "stage": "load",
        "fraction": 0.2,
        "message": "reading",
        "attempt": 1,
        "at": milestone["at"],
    }


async def test_the_error_is_told_when_a_job_failed(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    await db.finish_job(job.claim, decide(RAISED, job))

    response = await client.get(f"/jobs/{job.id}")

    assert response.json()["error"] == {
        "cause": "exception",
        "error_class": "ValueError",
        "message": "no",
        "traceback": "Traceback",
    }
    assert "retry-after" not in response.headers


async def test_an_unknown_job_is_not_found(
    client: httpx2.AsyncClient, subtests: pytest.Subtests
) -> None:
    for job_id in (new_id(), "x", "0", "1" * 500, "%25", "a b", "ü"):
        for path in (f"/jobs/{job_id}", f"/jobs/{job_id}/result"):
            with subtests.test(path[:30]):
                response = await client.get(path)

                assert response.status_code == 404
                assert response.headers["content-type"] == PROBLEM
                assert response.json()["type"] == "urn:haulage:problem:no-such-job"


# -- results ----------------------------------------------------------------------------------


async def test_a_result_is_given_as_it_was_stored(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job = await claimed(db)
    result = {"n": [2**53 + 1, 2**64], "text": "日本 🧵"}
    await complete(db, job, json.dumps(result))

    response = await client.get(f"/jobs/{job.id}/result")

    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.json() == result
    assert response.content == await db.get_result(job.id)


async def test_there_is_no_result_while_the_job_waits_or_runs_or_after_it_failed(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    job_id = await enqueue(client, {})
    await _assert_no_result(client, job_id, "pending", is_worth_retrying=True)

    job = await db.claim_next_pending_job(await new_node(db))
    assert job is not None
    await _assert_no_result(client, job_id, "running", is_worth_retrying=True)

    await db.finish_job(job.claim, decide(RAISED, job))
    problem = await _assert_no_result(client, job_id, "failed", is_worth_retrying=False)
    assert problem["detail"] == f"job {job_id} is failed: no"


async def _assert_no_result(
    client: httpx2.AsyncClient, job_id: str, status: str, *, is_worth_retrying: bool
) -> dict[str, Any]:
    response = await client.get(f"/jobs/{job_id}/result")
    assert response.status_code == 409
    assert response.headers["content-type"] == PROBLEM
    assert ("retry-after" in response.headers) is is_worth_retrying
    problem: dict[str, Any] = response.json()
    assert problem["job_status"] == status
    assert problem["type"] == "urn:haulage:problem:no-result"
    return problem


# -- large bodies -----------------------------------------------------------------------------


async def test_others_are_answered_while_a_large_payload_is_read_and_checked(
    client: httpx2.AsyncClient, db: PostgresJobsDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_thread = threading.get_ident()
    were_off_the_loop: dict[str, bool] = {}
    may_go_on = threading.Event()

    def held(name: str, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            if name in were_off_the_loop:  # the payload is the first; metadata comes after it
                return function(*arguments)
            were_off_the_loop[name] = threading.get_ident() != loop_thread
            # On the loop's own thread nobody could ever let it go on.
            assert were_off_the_loop[name]
            assert may_go_on.wait(30.0)
            may_go_on.clear()
            return function(*arguments)

        return call

    loads = held("loads", json.loads)
    decoding = types.SimpleNamespace(loads=loads, JSONDecodeError=json.JSONDecodeError)
    monkeypatch.setattr(requests, "json", decoding)
    monkeypatch.setattr(intake, "dump_field", held("dump", dump_field))
    payload = {"rows": ["x" * 100] * 50_000}
    submitting = asyncio.ensure_future(enqueue(client, payload))

    for name in ("loads", "dump"):
        while name not in were_off_the_loop:
            assert (await client.get("/livez")).status_code == 200
            await asyncio.sleep(0)  # in-process requests do not let go of the loop
        assert (await client.get(f"/jobs/{new_id()}")).status_code == 404
        assert not submitting.done()
        may_go_on.set()

    job_id = await submitting
    job = await db.claim_next_pending_job(await new_node(db))
    assert job is not None
    assert job.id == job_id
    assert json.loads(await db.load_payload(job.claim)) == payload
    assert were_off_the_loop == {"loads": True, "dump": True}


async def test_the_largest_payload_is_accepted_and_a_larger_one_is_not(
    client: httpx2.AsyncClient, database_url: str
) -> None:
    frame = len('{"a":""}')

    await enqueue(client, {"a": "x" * (MAX_PAYLOAD_BYTES - frame)})
    response = await client.post(
        "/enqueue", json={"payload": {"a": "x" * (MAX_PAYLOAD_BYTES - frame + 1)}}
    )

    assert response.status_code == 413
    assert response.headers["content-type"] == PROBLEM
    connection = await asyncpg.connect(database_url)
    assert await connection.fetchval("select count(*) from haulage.jobs") == 1
    await connection.close()


async def test_a_body_is_refused_by_its_declared_length_before_it_is_read(
    client: httpx2.AsyncClient,
) -> None:
    body = _Chunks(10)
    headers = {
        "content-type": "application/json",
        "content-length": str(MAX_BODY_BYTES + 1),
    }

    response = await client.post("/enqueue", content=body.all(), headers=headers)

    assert response.status_code == 413
    assert response.headers["content-type"] == PROBLEM
    assert body.sent == 0


async def test_a_body_without_a_length_is_refused_before_it_is_read_to_its_end(
    client: httpx2.AsyncClient,
) -> None:
    chunks = MAX_BODY_BYTES // _Chunks.SIZE
    body = _Chunks(10 * chunks)

    response = await client.post(
        "/enqueue", content=body.all(), headers={"content-type": "application/json"}
    )

    assert response.status_code == 413
    assert response.headers["content-type"] == PROBLEM
    assert chunks <= body.sent <= chunks + 2


class _Chunks:
    """A body that counts how much of it was taken."""

    SIZE = 64 * 1024

    def __init__(self, count: int) -> None:
        self.sent = 0
        self._count = count

    async def all(self) -> Any:
        for _ in range(self._count):
            self.sent += 1
            yield b" " * self.SIZE


class _Between(PostgresJobsDB):
    """Something happens between the two looks that tell of a job."""

    happening: Any = None

    async def list_milestones(self, job_id: str) -> list[Milestone]:
        happening, self.happening = self.happening, None
        if happening is not None:
            await happening
        return await super().list_milestones(job_id)


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "ends"])
async def test_a_job_that_moves_between_two_looks_is_told_as_of_one_instant(
    db: PostgresJobsDB, database_url: str, *, ends: bool
) -> None:
    job = await claimed(db)
    looking = _Between(database_url)

    async def move() -> None:
        await db.report_progress(job.claim, Progress(0.2, "load"), is_milestone=True)
        if ends:
            await complete(db, job)

    looking.happening = move()
    web = WebServer(looking, NoScheduler())
    async with web._lifespan(web.app), client_of(web) as client:
        before = await client.get(f"/jobs/{job.id}")
        after = await client.get(
            f"/jobs/{job.id}", headers={"if-none-match": before.headers["etag"]}
        )

    assert before.json()["status"] == "running"
    assert before.json()["progress"] is None
    assert before.json()["milestones"] == []
    # What the first answer left out is not held back from those who have its ETag.
    assert after.json()["status"] == ("completed" if ends else "running")
    assert after.json()["progress"]["stage"] == "load"
    assert [milestone["stage"] for milestone in after.json()["milestones"]] == ["load"]
