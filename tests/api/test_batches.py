"""Many jobs in one request: all or none, by row."""

import asyncio
import json
import threading
from typing import Any
from uuid import UUID

import httpx2
import pytest
from api.test_bad_input import BAD, assert_problem, nested
from contract.steps import complete, new_node

from app.api.submitting_schemas import BatchRow
from app.db.ids import new_id
from app.db.postgres.adapter import PostgresJobsDB
from app.domain.jobs import MAX_PAYLOAD_BYTES
from app.domain.submissions import MAX_BATCH_BYTES, MAX_BATCH_ROWS

ARRAY = "application/json"
LINES = "application/x-ndjson"


def as_lines(rows: list[Any]) -> bytes:
    return b"\n".join(json.dumps(row).encode() for row in rows)


def encoded(rows: list[Any], kind: str) -> bytes:
    return json.dumps(rows).encode() if kind == ARRAY else as_lines(rows)


async def send(
    client: httpx2.AsyncClient, content: bytes, kind: str = ARRAY, **headers: str
) -> httpx2.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.post(
        "/jobs/batch", content=content, headers={"content-type": kind, **names}
    )


async def pending(db: PostgresJobsDB) -> int:
    return len(await db.claim_pending_jobs(await new_node(db), 2_000))


@pytest.mark.parametrize("kind", [ARRAY, LINES, "application/jsonl", f"{ARRAY}; charset=utf-8"])
async def test_a_batch_is_answered_by_row(
    client: httpx2.AsyncClient, db: PostgresJobsDB, kind: str
) -> None:
    rows = [
        {"payload": {"n": 0}},
        {"payload": {"n": 1}, "custom_id": "second", "pipeline": "demo-sleep", "priority": 5},
        {"payload": {"n": 2}, "tags": ["ü"], "max_attempts": 3},
    ]

    response = await send(client, encoded(rows, kind.partition(";")[0]), kind)

    assert response.status_code == 202, response.text
    answer = response.json()
    assert str(UUID(answer["batch_id"])) == answer["batch_id"]
    assert response.headers["location"] == f"/batches/{answer['batch_id']}"
    assert response.headers["retry-after"] == "2"
    ids = [job["id"] for job in answer["jobs"]]
    assert answer["jobs"] == [
        {"index": 0, "id": ids[0], "status": "pending"},
        {"index": 1, "custom_id": "second", "id": ids[1], "status": "pending"},
        {"index": 2, "id": ids[2], "status": "pending"},
    ]
    second, third = await db.get_job(ids[1]), await db.get_job(ids[2])
    assert (second.pipeline, second.priority) == ("demo-sleep", 5)
    assert (third.tags, third.max_attempts) == (("ü",), 3)
    told = (await client.get(f"/jobs/{ids[0]}")).json()
    assert (told["batch_id"], told["submitted_by"]) == (answer["batch_id"], "")


async def test_the_largest_batch_is_accepted(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    rows = [{"payload": {"n": n}} for n in range(MAX_BATCH_ROWS)]

    response = await send(client, json.dumps(rows, indent=1).encode())

    assert [job["index"] for job in response.json()["jobs"]] == list(range(MAX_BATCH_ROWS))
    claims = await db.claim_pending_jobs(await new_node(db), 2_000)
    assert [job.id for job in claims] == [job["id"] for job in response.json()["jobs"]]
    assert [json.loads(job.payload or "") for job in claims] == [row["payload"] for row in rows]


GOOD = b'{"payload":{}}'


def beside(row: bytes, kind: str) -> bytes:
    """A batch of two good rows and this one between them."""
    rows = [GOOD, row, GOOD]
    return b"[" + b",".join(rows) + b"]" if kind == ARRAY else b"\n".join(rows)


@pytest.mark.parametrize("kind", [ARRAY, LINES])
async def test_whatever_is_wrong_with_one_job_refuses_the_batch_and_names_the_row(
    client: httpx2.AsyncClient, db: PostgresJobsDB, subtests: pytest.Subtests, kind: str
) -> None:
    for name, (content, status, pointer) in BAD.items():
        if not content.strip():
            continue  # no row at all in a batch
        with subtests.test(name):
            response = await send(client, beside(content, kind), kind)

            problem = assert_problem(response)
            assert response.status_code == status, response.text
            pointers = [error["pointer"] for error in problem.get("errors", [])]
            if status == 400:
                # Where an array goes wrong cannot be told from where a row of it does.
                assert set(pointers) <= {"/1", "/2"}
            elif pointer is not None:
                assert pointers == [f"/1{pointer}"]
            assert len(problem["detail"]) < 2_000
    assert await pending(db) == 0


@pytest.mark.parametrize(
    ("content", "status", "pointer"),
    [
        (b"", 422, ""),
        (b"  ", 422, ""),
        (b"{}", 422, ""),
        (b'{"payload":{}}', 422, ""),
        (b"null", 422, ""),
        (b"[]", 422, ""),
        (b" [ ] ", 422, ""),
        (b"[", 400, "/0"),
        (b"[,]", 400, "/0"),
        (b"[" + GOOD, 400, "/1"),
        (b"[" + GOOD + b",]", 400, "/1"),
        (b"[" + GOOD + b"}", 400, "/1"),
        (b"[" + GOOD + b" " + GOOD + b"]", 400, "/1"),
        (b"[" + GOOD + b"] x", 400, "/1"),
        (b"[" + GOOD + b"][", 400, "/1"),
        (b"[1]", 422, "/0"),
        (b"[[" + GOOD + b"]]", 422, "/0"),
        (b"[" * 100_000, 422, "/0"),
        (b'[{"payload":' + nested(100_000).encode() + b"}]", 422, "/0"),
        (b"[" + b"9" * 5_000 + b"]", 422, "/0"),
        (b'["\xff"]', 400, ""),
        (b'[{"payload":{},"custom_id":""}]', 422, "/0/custom_id"),
        (b'[{"payload":{},"custom_id":1}]', 422, "/0/custom_id"),
        (b'[{"payload":{},"idempotency_key":""}]', 422, "/0/idempotency_key"),
        (b'[{"payload":{},"idempotency_key":"a b"}]', 422, "/0/idempotency_key"),
        (b'[{"payload":{},"idempotency_key":"a\\n"}]', 422, "/0/idempotency_key"),
        (b'[{"payload":{},"custom_id":"\\ud800"}]', 422, "/0/custom_id"),
        (b"[" + b",".join([GOOD] * (MAX_BATCH_ROWS + 1)) + b"]", 422, f"/{MAX_BATCH_ROWS}"),
        (b"[" + b",".join([b"1"] * 3_000_000) + b"]", 422, "/0"),
    ],
    ids=lambda value: ascii(value[:30]) if isinstance(value, bytes) else "",
)
async def test_what_is_no_batch_is_a_problem(
    client: httpx2.AsyncClient, db: PostgresJobsDB, content: bytes, status: int, pointer: str
) -> None:
    response = await send(client, content)

    assert response.status_code == status, response.text
    errors = assert_problem(response).get("errors") or [{"pointer": ""}]
    assert errors[0]["pointer"] == pointer
    assert len(errors) <= 100
    assert len(response.content) < 50_000
    assert await pending(db) == 0


async def test_every_bad_row_is_named(client: httpx2.AsyncClient) -> None:
    rows: list[Any] = [{"payload": {}} for _ in range(30)]
    rows[3] = {"payload": {}, "priority": "x", "unknown": 1}
    rows[17] = {"payload": {"a": ["\x00"]}}
    rows[20] = {"payload": {}, "pipeline": "unknown"}

    response = await send(client, as_lines(rows), LINES)

    assert response.status_code == 422
    assert [error["pointer"] for error in assert_problem(response)["errors"]] == [
        "/3/priority",
        "/3/unknown",
        "/17/payload/a/0",
        "/20/pipeline",
    ]


async def test_blank_lines_do_not_count(client: httpx2.AsyncClient) -> None:
    good = await send(client, b"\n\r\n" + GOOD + b"\r\n\n  \n" + GOOD + b"\n", LINES)
    bad = await send(client, b"\n\n" + GOOD + b"\n\n{\n", LINES)
    none = await send(client, b"\n \n", LINES)

    assert len(good.json()["jobs"]) == 2
    assert (bad.status_code, bad.json()["errors"][0]["pointer"]) == (400, "/1")
    assert none.status_code == 422


@pytest.mark.parametrize("kind", ["", "text/plain", "multipart/form-data", "application/xml"])
async def test_another_content_type_is_refused(client: httpx2.AsyncClient, kind: str) -> None:
    response = await send(client, b"[" + GOOD + b"]", kind)

    assert response.status_code == 415
    assert_problem(response)


async def test_sizes_are_bounded(client: httpx2.AsyncClient, db: PostgresJobsDB) -> None:
    text = "x" * (MAX_PAYLOAD_BYTES - len('{"a":""}'))
    row = json.dumps({"payload": {"a": text}}).encode()

    fits = await send(client, b"[" + b",".join([row, GOOD]) + b"]")
    too_large_row = await send(client, beside(row.replace(b'"x', b'"xx'), ARRAY))
    too_large = await send(client, b" " * (MAX_BATCH_BYTES + 1))

    assert fits.status_code == 202, fits.text
    assert too_large_row.status_code == 413
    assert "row 1" in assert_problem(too_large_row)["detail"]
    assert too_large.status_code == 413
    assert_problem(too_large)
    assert await pending(db) == 2


async def test_others_are_answered_while_a_batch_is_read(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_thread = threading.get_ident()
    is_reading, may_go_on = threading.Event(), threading.Event()
    validate = BatchRow.model_validate

    def held(value: Any) -> Any:
        # On the loop's own thread nobody could ever let it go on.
        assert threading.get_ident() != loop_thread
        is_reading.set()
        assert may_go_on.wait(30.0)
        return validate(value)

    monkeypatch.setattr(BatchRow, "model_validate", held)
    submitting = asyncio.ensure_future(send(client, b"[" + GOOD + b"]"))
    while not is_reading.is_set():
        assert (await client.get("/livez")).status_code == 200
        await asyncio.sleep(0)
    assert (await client.get(f"/batches/{new_id()}")).status_code == 404
    assert not submitting.done()
    may_go_on.set()

    assert (await submitting).status_code == 202


# -- keys -------------------------------------------------------------------------------------


async def test_a_batch_that_comes_again_under_its_key_is_the_same(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    rows = [{"payload": {"n": n % 3}, "custom_id": str(n)} for n in range(20)]
    first, *others = await asyncio.gather(
        send(client, encoded(rows, ARRAY), idempotency_key="k"),
        send(client, encoded(rows, ARRAY), idempotency_key='"k"'),
        send(client, as_lines(rows), LINES, idempotency_key="k"),
    )

    new = [r for r in (first, *others) if "idempotency-replayed" not in r.headers]
    assert len(new) == 1
    for response in (first, *others):
        assert response.status_code == 202
        assert response.json()["batch_id"] == first.json()["batch_id"]
        assert [j["id"] for j in response.json()["jobs"]] == [j["id"] for j in first.json()["jobs"]]
        replayed = [job.get("replayed") for job in response.json()["jobs"]]
        assert replayed == [None if response is new[0] else True] * 20
    assert await pending(db) == 20


async def test_a_batch_s_key_is_refused_for_any_other_batch(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    rows = [{"payload": {"n": n}} for n in range(5)]
    assert (await send(client, encoded(rows, ARRAY), idempotency_key="k")).status_code == 202

    for other in (rows[:4], [*rows, rows[0]], rows[::-1], [*rows[:4], {"payload": {"n": 9}}]):
        response = await send(client, encoded(other, ARRAY), idempotency_key="k")
        assert response.status_code == 422
        problem = assert_problem(response)
        assert problem["type"] == "urn:haulage:problem:idempotency-key-reused"
        assert "'k'" in problem["detail"]
    # A batch's key is none of a single job.
    single = await client.post(
        "/enqueue", json={"payload": {"n": 0}}, headers={"idempotency-key": "k"}
    )
    assert single.status_code == 200
    assert "idempotency-replayed" not in single.headers
    assert await pending(db) == 6


@pytest.mark.parametrize("deleted", [[0], [2], [0, 1]])
async def test_a_batch_s_key_stays_its_own_when_some_of_its_jobs_are_deleted(
    client: httpx2.AsyncClient, db: PostgresJobsDB, deleted: list[int]
) -> None:
    rows = [{"payload": {"n": n}} for n in range(3)]
    ids = [
        job["id"]
        for job in (await send(client, encoded(rows, ARRAY), idempotency_key="k")).json()["jobs"]
    ]
    for index in deleted:
        await db.cancel_job(ids[index])
        await db.delete_job(ids[index])

    again = await send(client, encoded(rows, ARRAY), idempotency_key="k")
    others = [
        await send(client, encoded(other, ARRAY), idempotency_key="k")
        for other in ([{"payload": {"other": 1}}], rows[:1], [*rows, rows[0]])
    ]

    assert again.status_code == 422
    problem = assert_problem(again)
    assert problem["type"] == "urn:haulage:problem:batch-partly-deleted"
    assert f"{len(deleted)} of its jobs" in problem["detail"]
    for other in others:
        assert other.status_code == 422
        assert assert_problem(other)["type"] == "urn:haulage:problem:idempotency-key-reused"
    left = [job_id for index, job_id in enumerate(ids) if index not in deleted]
    assert [job.id for job in await db.claim_pending_jobs(await new_node(db), 10)] == left


async def test_a_batch_s_key_is_free_again_when_all_of_its_jobs_are_deleted(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    first = await send(client, b"[" + GOOD + b"]", idempotency_key="k")
    job_id = first.json()["jobs"][0]["id"]
    await db.cancel_job(job_id)
    await db.delete_job(job_id)

    other = await send(client, encoded([{"payload": {"other": 1}}] * 2, ARRAY), idempotency_key="k")

    assert other.status_code == 202
    assert "idempotency-replayed" not in other.headers


async def test_rows_may_have_keys_of_their_own(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    known = await client.post(
        "/enqueue", json={"payload": {"n": 1}}, headers={"idempotency-key": "one"}
    )
    rows: list[Any] = [
        {"payload": {"n": 0}},
        {"payload": {"n": 1}, "idempotency_key": "one"},
        {"payload": {"n": 2}, "idempotency_key": "two"},
    ]

    response = await send(client, encoded(rows, ARRAY))
    jobs = response.json()["jobs"]
    assert jobs[1] == {
        "index": 1,
        "id": known.json()["id"],
        "status": "pending",
        "replayed": True,
    }
    assert "idempotency-replayed" not in response.headers
    batch = (await client.get(response.headers["location"])).json()
    assert batch["total"] == 2

    rows[2]["payload"] = {"n": 3}
    refused = await send(client, encoded(rows, ARRAY))
    assert refused.status_code == 422
    problem = assert_problem(refused)
    assert problem["type"] == "urn:haulage:problem:idempotency-key-reused"
    assert problem["errors"][0]["pointer"] == "/2/idempotency_key"

    both = await send(client, encoded(rows, ARRAY), idempotency_key="k")
    assert (both.status_code, both.json()["errors"][0]["pointer"]) == (422, "/1/idempotency_key")

    again = await send(client, encoded(rows[1:2], ARRAY))
    assert (again.status_code, again.json()["batch_id"]) == (202, None)
    assert again.headers["idempotency-replayed"] == "true"
    assert "location" not in again.headers
    assert await pending(db) == 3


async def test_a_bad_key_is_refused(client: httpx2.AsyncClient, db: PostgresJobsDB) -> None:
    response = await send(client, b"[" + GOOD + b"]", idempotency_key="a b")

    assert response.status_code == 400
    assert_problem(response)
    assert await pending(db) == 0


# -- asking -----------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["", "/v1"])
async def test_a_batch_tells_how_far_it_is(
    client: httpx2.AsyncClient, db: PostgresJobsDB, root: str
) -> None:
    response = await client.post(f"{root}/jobs/batch", json=[{"payload": {}}] * 3)
    batch_id = response.json()["batch_id"]
    assert response.headers["location"] == f"{root}/batches/{batch_id}"

    response = await client.get(f"{root}/batches/{batch_id}")
    assert response.status_code == 200
    batch = response.json()
    none = {"pending": 0, "running": 0, "completed": 0, "failed": 0, "cancelled": 0}
    assert batch == {
        "id": batch_id,
        "done": False,
        "total": 3,
        "counts": {**none, "pending": 3},
        "created_at": batch["created_at"],
    }
    assert "retry-after" in response.headers

    claims = await db.claim_pending_jobs(await new_node(db), 3)
    await complete(db, claims[0])
    batch = (await client.get(f"/batches/{batch_id}")).json()
    assert batch["counts"] == {**none, "completed": 1, "running": 2}

    await complete(db, claims[1])
    await complete(db, claims[2])
    response = await client.get(f"/batches/{batch_id}")
    assert response.json()["done"] is True
    assert "retry-after" not in response.headers


async def test_an_unknown_batch_is_not_found(client: httpx2.AsyncClient) -> None:
    job_id = (await client.post("/enqueue", json={"payload": {}})).json()["id"]
    for batch_id in (new_id(), job_id, "x", "%25", "1" * 500, "ü"):
        response = await client.get(f"/batches/{batch_id}")

        assert response.status_code == 404
        assert assert_problem(response)["type"] == "urn:haulage:problem:no-such-batch"
