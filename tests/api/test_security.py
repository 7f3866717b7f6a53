"""Who may do what: keys and their scopes, where none is needed, and what a browser is told."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import httpx2
import pytest
from api.conftest import client_of
from api.test_bad_input import assert_problem
from fastapi import Response
from fastapi.routing import iter_route_contexts
from support.waiting import eventually

from app.api import security_keys, security_quota
from app.api.requests import BoundedRoute
from app.api.security import MAX_HEADERS, MAX_URL_BYTES, Access
from app.api.security_headers import HEADERS
from app.api.security_scopes import HEALTH, SCOPES, is_declared, scope_of
from app.api.server import NoScheduler, WebServer
from app.db.ids import new_id
from app.db.postgres.adapter import PostgresJobsDB
from app.domain.jobs import JobOptions
from app.domain.keys import ApiKey, Scope, new_key
from app.pipelines.registry import load_registrations

LOOPBACK = "http://127.0.0.1:8000"
BEYOND = "http://192.0.2.7:8000"
JOB: dict[str, Any] = {"payload": {}}


@asynccontextmanager
async def serving(url: str, **access: Any) -> AsyncGenerator[WebServer, None]:
    """A started server with this access."""
    db = PostgresJobsDB(url, default_pipeline="demo-echo")
    web = WebServer(
        db,
        NoScheduler(),
        pipelines=load_registrations({}),
        default_pipeline="demo-echo",
        access=Access(**access),
    )
    async with web._lifespan(web.app):
        yield web


@asynccontextmanager
async def asking(
    web: WebServer, key: str | None = None, base_url: str = LOOPBACK
) -> AsyncGenerator[httpx2.AsyncClient, None]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    transport = httpx2.ASGITransport(app=web.app)
    async with httpx2.AsyncClient(
        transport=transport, base_url=base_url, headers=headers
    ) as client:
        yield client


async def made(db: PostgresJobsDB, scope: Scope, **caps: int) -> tuple[str, ApiKey]:
    key = new_key()
    return key, await db.insert_key(scope.value, key, scope, **caps)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are looked up for every request."""
    monkeypatch.setattr(security_keys, "KEY_SECONDS", 0.0)


# -- keys and scopes --------------------------------------------------------------------------


async def test_once_a_key_is_active_every_route_but_health_asks_for_one(
    database_url: str, db: PostgresJobsDB, subtests: pytest.Subtests
) -> None:
    key, _ = await made(db, Scope.ADMIN)
    async with serving(database_url) as web, asking(web) as client, asking(web, key) as ours:
        for path in ("/livez", "/readyz", "/v1/livez"):
            assert (await client.get(path)).status_code == 200
        for method, path in [
            ("POST", "/enqueue"),
            ("POST", "/v1/enqueue"),
            ("GET", f"/jobs/{new_id()}"),
            ("GET", "/docs"),
            ("GET", "/openapi.json"),
            ("GET", "/nowhere"),
            ("OPTIONS", "/enqueue"),
            ("GET", "/livez/x"),
            ("GET", "/livez%2f"),
        ]:
            with subtests.test(f"{method} {path}"):
                response = await client.request(method, path)
                assert response.status_code == 401
                assert_problem(response)
                assert response.headers["www-authenticate"].startswith("Bearer ")
                assert (await ours.request(method, path)).status_code not in {401, 403}


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic aGxnOmhsZw==",
        "Bearer hlg_",
        f"Bearer {new_key()}",
        f"bearer {new_key()}x",
        f"Bearer hlg_{'x' * 8_000}",
        "Bearer hlg_' or true --",
        new_key(),
    ],
)
async def test_another_word_than_a_key_of_ours_is_refused(
    database_url: str, db: PostgresJobsDB, header: str
) -> None:
    await made(db, Scope.ADMIN)
    async with serving(database_url) as web, asking(web) as client:
        response = await client.post("/enqueue", json=JOB, headers={"authorization": header})

        assert response.status_code == 401
        assert header[10:] not in response.text or len(header) < 12


async def test_two_keys_in_one_request_are_none(database_url: str, db: PostgresJobsDB) -> None:
    key, _ = await made(db, Scope.ADMIN)
    async with serving(database_url) as web, asking(web) as client:
        twice = [("authorization", f"Bearer {key}")] * 2
        assert (await client.get("/openapi.json", headers=twice)).status_code == 401
        assert (await client.get("/openapi.json", headers=twice[:1])).status_code == 200


async def test_a_scope_allows_what_it_says_and_what_is_below_it(
    database_url: str, db: PostgresJobsDB, subtests: pytest.Subtests
) -> None:
    keys = {scope: await made(db, scope) for scope in Scope}
    async with serving(database_url) as web:
        for own, (key, _) in keys.items():
            for needed, (method, path) in {
                Scope.READ: ("GET", f"/jobs/{new_id()}"),
                Scope.SUBMIT: ("POST", "/enqueue"),
                Scope.ADMIN: ("DELETE", f"/jobs/{new_id()}"),
            }.items():
                with subtests.test(f"{own} {method}"):
                    async with asking(web, key) as client:
                        response = await client.request(method, path)
                    if own.includes(needed):
                        assert response.status_code not in {401, 403}
                    else:
                        assert response.status_code == 403
                        assert_problem(response)
                        challenge = response.headers["www-authenticate"]
                        assert f'error="insufficient_scope", scope="{needed}"' in challenge


async def test_a_job_belongs_to_the_key_that_submitted_it(
    database_url: str, db: PostgresJobsDB
) -> None:
    (ours, key), (theirs, other), (admin, _) = [
        await made(db, scope) for scope in (Scope.SUBMIT, Scope.SUBMIT, Scope.ADMIN)
    ]
    jobs = [
        await db.insert_pending_job({}, JobOptions(submitted_by=who))
        for who in (key.id, other.id, other.id, "")
    ]
    async with (
        serving(database_url) as web,
        asking(web, ours) as client,
        asking(web, theirs) as others,
        asking(web, admin) as boss,
    ):
        assert (await client.post(f"/jobs/{jobs[0]}/cancel")).status_code == 200
        for job in jobs[1:]:
            for root in ("", "/v1"):
                response = await client.post(f"{root}/jobs/{job}/cancel")
                assert response.status_code == 403
                assert_problem(response)
            assert (await client.get(f"/jobs/{job}")).json()["status"] == "pending"
        assert (await client.post(f"/jobs/{new_id()}/cancel")).status_code == 404
        assert (await client.post(f"/jobs/{jobs[1].upper()}/cancel")).status_code == 403
        assert (await others.post(f"/jobs/{jobs[1].upper()}/cancel")).status_code == 200
        assert (await boss.post(f"/jobs/{jobs[2]}/cancel")).status_code == 200
        assert (await boss.post(f"/jobs/{jobs[3]}/cancel")).status_code == 200


def test_every_route_has_a_scope(database_url: str) -> None:
    """A route that changes something gets its line in the table, or nobody but `admin` may."""
    web = WebServer(PostgresJobsDB(database_url), NoScheduler())
    declared = [
        (method.upper(), path)
        for path, operations in web.app.openapi()["paths"].items()
        for method in operations
    ]
    assert ("POST", "/enqueue") in declared
    for method, path in declared:
        assert path in HEALTH or is_declared(method, path), f"no scope for {method} {path}"


def test_paths_lead_to_the_scope_of_their_route() -> None:
    for (method, template), scope in SCOPES.items():
        for path in (template, "/v1" + template.replace("{}", "{some_id}")):
            assert scope_of(method, path) is scope, path
    assert scope_of("POST", "/enqueue/") is Scope.ADMIN
    assert scope_of("PUT", "/enqueue") is Scope.ADMIN
    assert scope_of("HEAD", "/webhooks/{webhook_id}") is Scope.ADMIN
    assert scope_of("GET", "/jobs/{job_id}/result") is Scope.READ


async def test_no_spelling_of_a_path_leads_round_its_scope(
    database_url: str, db: PostgresJobsDB, subtests: pytest.Subtests
) -> None:
    """The router's patterns take a line's end behind a path for its end."""
    key, _ = await made(db, Scope.READ)
    async with serving(database_url) as web, asking(web, key) as client:
        for method, template in SCOPES:
            path = template.replace("{}", new_id())
            for spelt in (
                path,
                f"/v1{path}",
                f"{path}%0A",
                f"/v1{path}%0A",
                f"{path}%0D%0A",
                f"{path}%00",
                f"{path}%E2%80%A8",
                path.replace("/", "//"),
                path.replace("/", "/./"),
                path.replace("e", "%65"),
            ):
                with subtests.test(f"{method} {spelt}"):
                    response = await client.request(method, spelt)
                    assert response.status_code in {400, 403, 404, 405}
                    if spelt in {path, f"/v1{path}"}:
                        assert response.status_code == 403
                    assert_problem(response)


def test_every_route_that_does_something_asks_for_its_scope(database_url: str) -> None:
    """The documents about the API are the only ones that any key may read."""
    web = WebServer(PostgresJobsDB(database_url), NoScheduler())
    found = [context.original_route for context in iter_route_contexts(web.app.routes)]
    free = {getattr(route, "path", "?") for route in found if not isinstance(route, BoundedRoute)}
    assert len(found) > 50
    documents = {"/openapi.json", "/docs", "/docs/oauth2-redirect", "/static-offline-docs"}
    assert free <= documents, free


async def test_a_key_has_so_many_datasets_and_may_delete_its_own(
    database_url: str, db: PostgresJobsDB
) -> None:
    (ours, key), (theirs, _), (admin, _) = [
        await made(db, scope) for scope in (Scope.SUBMIT, Scope.SUBMIT, Scope.ADMIN)
    ]
    unknown = await db.insert_dataset("x", ["t"], [["x"]], sha256="ab" * 32, detected={})
    file: dict[str, Any] = {"files": {"file": ("a.csv", b"id,text\n1,some answer\n")}}
    async with (
        serving(database_url, max_datasets=2) as web,
        asking(web, ours) as client,
        asking(web, theirs) as others,
        asking(web, admin) as boss,
    ):
        first, second = [(await client.post("/datasets", **file)).json()["id"] for _ in range(2)]
        assert await db.count_datasets(key.id) == 2
        refused = await client.post("/datasets", **file)
        assert refused.status_code == 429
        assert_problem(refused)
        assert refused.json()["violated_policies"] == ["datasets"]
        assert await db.count_datasets(key.id) == 2
        assert (await others.post("/datasets", **file)).status_code == 201

        for dataset in (first, unknown.id):
            response = await others.delete(f"/v1/datasets/{dataset}")
            assert response.status_code == 403
            assert_problem(response)
        assert (await client.delete(f"/datasets/{unknown.id}")).status_code == 403
        assert (await client.delete(f"/datasets/{new_id()}")).status_code == 404
        assert (await client.delete(f"/datasets/{first}")).status_code == 204
        assert (await client.post("/datasets", **file)).status_code == 201
        assert (await boss.delete(f"/datasets/{second}")).status_code == 204
        assert (await boss.delete(f"/datasets/{unknown.id}")).status_code == 204


async def test_a_key_works_until_its_revocation_is_noticed(
    database_url: str, db: PostgresJobsDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security_keys, "KEY_SECONDS", 0.3)
    key, stored = await made(db, Scope.READ)
    await made(db, Scope.ADMIN)
    async with serving(database_url) as web, asking(web, key) as client:
        assert (await client.get("/openapi.json")).status_code == 200
        await db.revoke_key(stored.id)

        async def is_refused() -> bool:
            return (await client.get("/openapi.json")).status_code == 401

        await eventually(is_refused, "the revocation is noticed", 2.0)


async def test_the_first_key_closes_and_the_last_one_opens_nothing(
    database_url: str, db: PostgresJobsDB, at_once: None
) -> None:
    async with serving(database_url) as web, asking(web) as client:
        assert (await client.post("/enqueue", json=JOB)).status_code == 200
        _, stored = await made(db, Scope.READ)
        assert (await client.post("/enqueue", json=JOB)).status_code == 401
        await db.revoke_key(stored.id)
        assert (await client.post("/enqueue", json=JOB)).status_code == 401
    async with serving(database_url, is_open=True) as web, asking(web, base_url=BEYOND) as client:
        response = await client.post("/enqueue", json=JOB)
        assert response.status_code == 401
        assert_problem(response)


async def test_keys_are_looked_up_seldom(database_url: str, db: PostgresJobsDB) -> None:
    key, _ = await made(db, Scope.SUBMIT)
    async with serving(database_url) as web, asking(web, key) as client:
        asked = 0
        find = web._db.find_key

        async def counting(sha256: bytes) -> ApiKey | None:
            nonlocal asked
            asked += 1
            return await find(sha256)

        web._db.find_key = counting  # type: ignore[method-assign]
        await asyncio.gather(*(client.post("/enqueue", json=JOB) for _ in range(20)))

        assert asked == 1


async def test_jobs_know_their_submitter_and_keys_their_last_use(
    database_url: str, db: PostgresJobsDB
) -> None:
    key, stored = await made(db, Scope.SUBMIT)
    async with serving(database_url) as web, asking(web, key) as client:
        assert (await client.get("/openapi.json")).status_code == 200

        async def is_noted() -> bool:
            [listed] = await db.list_keys()
            return listed.last_used_at is not None

        await eventually(is_noted, "the use of the key is noted")
        job = (await client.post("/enqueue", json=JOB)).json()["id"]
        assert (await client.get(f"/jobs/{job}")).json()["submitted_by"] == stored.id
    assert stored.last_used_at is None


async def test_a_database_that_is_away_makes_no_key_good(database_url: str) -> None:
    async with serving(database_url) as web, asking(web, new_key()) as client:
        await web._db.close()
        web._db._dsn = "postgresql://nobody@127.0.0.1:1/none"  # type: ignore[attr-defined]

        response = await client.post("/enqueue", json=JOB)

        assert response.status_code == 503
        assert assert_problem(response)["type"].endswith("database-unavailable")
        assert "retry-after" in response.headers


async def test_a_key_of_the_settings_needs_no_row(database_url: str) -> None:
    key = new_key()
    async with (
        serving(database_url, admin_key=key) as web,
        asking(web) as client,
        asking(web, key) as ours,
    ):
        assert (await client.post("/enqueue", json=JOB)).status_code == 401
        assert (await ours.post("/enqueue", json=JOB)).status_code == 200
        assert (await ours.delete(f"/jobs/{new_id()}")).status_code != 403


# -- without a key ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("access", "base_url", "status"),
    [
        ({}, LOOPBACK, 200),
        ({}, "http://[::1]:8000", 200),
        ({}, BEYOND, 401),
        ({"is_open": True}, BEYOND, 200),
        ({"needs_key": True}, LOOPBACK, 401),
        ({"needs_key": True, "is_open": True}, BEYOND, 401),
    ],
)
async def test_without_any_key_loopback_is_open_and_the_rest_as_the_settings_say(
    database_url: str, access: dict[str, bool], base_url: str, status: int
) -> None:
    async with serving(database_url, **access) as web, asking(web, None, base_url) as client:
        assert (await client.post("/enqueue", json=JOB)).status_code == status
        assert (await client.get("/livez")).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost:9999", 200),
        ("LOCALHOST", 200),
        ("localhost.", 200),
        ("[::1]:8000", 200),
        ("haulage.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("127.0.0.1@evil.example", 421),
        ("evil.example#@127.0.0.1", 421),
        ("", 421),
        ("[::1", 421),
    ],
)
async def test_another_host_is_not_answered_on_loopback_without_a_key(
    database_url: str, host: str, status: int
) -> None:
    """What a name that was let point to this machine (DNS rebinding) makes a browser send."""
    async with serving(database_url) as web, asking(web) as client:
        response = await client.post("/enqueue", json=JOB, headers={"host": host})

        assert response.status_code == status, response.text
        if status != 200:
            assert_problem(response)
        assert (await client.get("/livez", headers={"host": host})).status_code == 200


async def test_hosts_of_the_settings_and_requests_with_a_key_are_answered(
    database_url: str, db: PostgresJobsDB
) -> None:
    host = {"host": "haulage.example"}
    async with (
        serving(database_url, allowed_hosts=frozenset({"haulage.example"})) as web,
        asking(web) as client,
    ):
        assert (await client.post("/enqueue", json=JOB, headers=host)).status_code == 200
        other = {"host": "other.example"}
        assert (await client.post("/enqueue", json=JOB, headers=other)).status_code == 421
    key, _ = await made(db, Scope.SUBMIT)
    async with serving(database_url) as web, asking(web, key) as client:
        assert (await client.post("/enqueue", json=JOB, headers=host)).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": LOOPBACK}, 200),
        ({"origin": "http://127.0.0.1:8001"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"origin": "https://app.example"}, 200),
        ({"origin": "https://evil.example", "sec-fetch-site": "cross-site"}, 403),
        ({"origin": LOOPBACK, "sec-fetch-site": "same-origin"}, 200),
    ],
)
async def test_a_page_of_another_origin_cannot_act_without_a_key(
    database_url: str, db: PostgresJobsDB, headers: dict[str, str], status: int
) -> None:
    job = await db.insert_pending_job({})
    async with (
        serving(database_url, cors_origins=("https://app.example",)) as web,
        asking(web) as client,
    ):
        response = await client.post(f"/jobs/{job}/cancel", headers=headers)

        assert response.status_code == status
        expected = "cancelled" if status == 200 else "pending"
        assert (await client.get(f"/jobs/{job}")).json()["status"] == expected


# -- caps -------------------------------------------------------------------------------------


async def test_a_key_cannot_have_more_waiting_than_its_cap(
    database_url: str, db: PostgresJobsDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security_quota, "FRESH_SECONDS", 0.0)
    key, stored = await made(db, Scope.SUBMIT, max_pending_jobs=3)
    for _ in range(2):
        await db.insert_pending_job({}, JobOptions(submitted_by=stored.id))
    async with serving(database_url) as web, asking(web, key) as client:
        accepted = await client.post("/enqueue", json=JOB)
        assert accepted.status_code == 200
        assert accepted.headers["ratelimit-policy"].startswith('"pending-jobs";q=3;')
        assert accepted.headers["ratelimit"].startswith('"pending-jobs";r=0, "pending-bytes";r=')
        await db.insert_pending_job({}, JobOptions(submitted_by=stored.id))

        refused = await client.post("/enqueue", json=JOB)

        problem = assert_problem(refused)
        assert refused.status_code == 429
        assert problem["type"] == "urn:haulage:problem:quota-exceeded"
        assert problem["violated_policies"] == ["pending-jobs"]
        assert int(refused.headers["retry-after"]) > 0
        assert refused.headers["ratelimit"].startswith('"pending-jobs";r=0')
        for job in await _pending(database_url, stored.id):
            await db.cancel_job(job)
        assert (await client.post("/enqueue", json=JOB)).status_code == 200


async def _pending(url: str, submitter: str) -> list[str]:
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "select id::text from haulage.jobs where submitted_by = $1 and status = 'pending'",
            submitter,
        )
    finally:
        await connection.close()
    return [row["id"] for row in rows]


async def test_payloads_count_by_their_bytes(database_url: str, db: PostgresJobsDB) -> None:
    key, _ = await made(db, Scope.SUBMIT, max_pending_bytes=1_000)
    async with serving(database_url) as web, asking(web, key) as client:
        large = {"payload": {"text": "x" * 600}}
        assert (await client.post("/enqueue", json=large)).status_code == 200
        refused = await client.post("/enqueue", json=large)
        assert assert_problem(refused)["violated_policies"] == ["pending-bytes"]
        assert (await client.post("/enqueue", json=JOB)).status_code == 200


async def test_many_at_once_do_not_exceed_the_cap(
    database_url: str, db: PostgresJobsDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A count in the middle of them, which may overlook some, is not what is asked about.
    monkeypatch.setattr(security_quota, "COUNT_SECONDS", 60.0)
    monkeypatch.setattr(security_quota, "FRESH_SECONDS", 60.0)
    key, _ = await made(db, Scope.SUBMIT, max_pending_jobs=5)
    async with serving(database_url) as web, asking(web, key) as client:
        answers = await asyncio.gather(*(client.post("/enqueue", json=JOB) for _ in range(30)))

        codes = [answer.status_code for answer in answers]
        assert codes.count(200) == 5
        assert codes.count(429) == 25


async def test_a_repetition_is_answered_at_the_cap(
    database_url: str, db: PostgresJobsDB, at_once: None
) -> None:
    """Whoever lost the answer to what filled the cap asks again, and gets the same one."""
    key, stored = await made(db, Scope.SUBMIT, max_pending_jobs=4)
    named, other = {"idempotency-key": "one"}, {"idempotency-key": "another"}
    rows = [JOB, JOB]
    async with serving(database_url) as web, asking(web, key) as client:
        first = await client.post("/enqueue", json=JOB, headers=named)
        job = first.json()["id"]
        clone = await client.post(f"/jobs/{job}/clone", json={}, headers={"idempotency-key": "c"})
        batch = await client.post("/jobs/batch", json=rows, headers={"idempotency-key": "b"})
        assert await _pending(database_url, stored.id) != []
        assert (await client.post("/enqueue", json=JOB)).status_code == 429
        assert (await client.post("/enqueue", json=JOB, headers=other)).status_code == 429

        again = await client.post("/enqueue", json=JOB, headers=named)
        assert (again.status_code, again.json()) == (200, first.json())
        assert again.headers["idempotency-replayed"] == "true"
        again = await client.post(f"/jobs/{job}/clone", json={}, headers={"idempotency-key": "c"})
        assert again.json()["id"] == clone.json()["id"]
        again = await client.post("/jobs/batch", json=rows, headers={"idempotency-key": "b"})
        assert again.status_code == batch.status_code
        assert [one["id"] for one in again.json()["jobs"]] == [
            one["id"] for one in batch.json()["jobs"]
        ]
        assert (
            await client.post("/jobs/batch", json=[*rows, JOB], headers={"idempotency-key": "b"})
        ).status_code in {422, 429}
        assert len(await _pending(database_url, stored.id)) == 4


async def test_the_caps_of_the_settings_hold_for_keys_without_their_own(
    database_url: str, db: PostgresJobsDB
) -> None:
    capped, _ = await made(db, Scope.SUBMIT)
    free, _ = await made(db, Scope.SUBMIT, max_pending_jobs=9)
    async with serving(database_url, max_pending_jobs=0) as web:
        async with asking(web, capped) as client:
            assert (await client.post("/enqueue", json=JOB)).status_code == 429
        async with asking(web, free) as client:
            assert (await client.post("/enqueue", json=JOB)).status_code == 200


async def test_no_way_leads_round_the_cap(
    database_url: str, db: PostgresJobsDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security_quota, "FRESH_SECONDS", 0.0)
    key, _ = await made(db, Scope.SUBMIT, max_pending_jobs=1)
    admin, _ = await made(db, Scope.ADMIN)
    async with serving(database_url) as web, asking(web, key) as client:
        over = (await client.post("/enqueue", json=JOB)).json()["id"]
        await client.post(f"/jobs/{over}/cancel")
        waiting = (await client.post("/enqueue", json=JOB)).json()["id"]
        async with asking(web, admin) as others:
            refusals = [
                await client.post("/jobs", json=JOB),
                await client.post("/jobs/batch", json=[JOB]),
                await client.post(f"/jobs/{over}/clone"),
                await client.post(f"/jobs/{over}/retry"),
                # Whoever asks, the job is of the key that submitted it.
                await others.post(f"/jobs/{over}/retry"),
                await others.post("/jobs/retry", json={"ids": [over]}),
            ]
        for refused in refusals:
            assert refused.status_code == 429, refused.text
            problem = assert_problem(refused)
            assert problem["type"] == "urn:haulage:problem:quota-exceeded"
            assert problem["violated_policies"] == ["pending-jobs"]
            assert int(refused.headers["retry-after"]) > 0
        for refused in refusals[:4]:
            assert refused.headers["ratelimit"].startswith('"pending-jobs";r=0')
        assert (await client.get(f"/jobs/{over}")).json()["status"] == "cancelled"

        await client.post(f"/jobs/{waiting}/cancel")
        assert (await client.post(f"/jobs/{over}/retry")).json()["status"] == "pending"


# -- bounds and headers -----------------------------------------------------------------------


async def test_a_head_that_is_too_large_is_refused(client: httpx2.AsyncClient) -> None:
    long = await client.get("/jobs/" + "x" * MAX_URL_BYTES)
    many = await client.get("/livez", headers={f"x-{n}": "y" for n in range(MAX_HEADERS + 1)})
    large = await client.get("/livez", headers={"cookie": "x" * 20_000})

    assert [answer.status_code for answer in (long, many, large)] == [414, 431, 431]
    for response in (long, many, large):
        assert_problem(response)


@pytest.mark.parametrize("path", ["/livez", "/nowhere", "/openapi.json", "/enqueue", "/docs"])
async def test_every_answer_tells_the_browser_what_not_to_do(
    client: httpx2.AsyncClient, path: str
) -> None:
    headers = (await client.get(path)).headers

    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert ("script-src" in headers["content-security-policy"]) is (path == "/docs")
    assert "access-control-allow-origin" not in headers


async def test_errors_of_ours_have_these_headers_too(
    database_url: str, db: PostgresJobsDB, caplog: pytest.LogCaptureFixture
) -> None:
    """Also those outside the routes: here the guard finds no table of keys."""
    connection = await asyncpg.connect(database_url)
    await connection.execute("alter table haulage.api_keys rename to no_keys")
    await connection.close()
    async with serving(database_url) as web, asking(web) as client:
        response = await client.get("/jobs")

    assert response.status_code == 500
    assert assert_problem(response)["type"] == "urn:haulage:problem:internal-error"
    for name, value in HEADERS.items():
        assert response.headers[name] == value
    assert response.headers["cache-control"] == "no-store"
    assert [record.levelname for record in caplog.records].count("ERROR") == 1


async def test_refusals_have_these_headers_too(database_url: str) -> None:
    async with serving(database_url, needs_key=True) as web, asking(web) as client:
        response = await client.get("/docs")
        assert response.headers["x-content-type-options"] == "nosniff"
        web.end_requests()
        response = await client.get("/livez")
        assert response.status_code == 503
        assert response.headers["cache-control"] == "no-store"


async def test_what_has_an_etag_may_be_kept_and_is_asked_for_every_time(
    web: WebServer,
) -> None:
    async def with_etag(response: Response) -> dict[str, str]:
        response.headers["ETag"] = '"1"'
        return {}

    web.app.add_api_route("/tagged", with_etag)
    async with client_of(web) as client:
        assert (await client.get("/tagged")).headers["cache-control"] == "private, no-cache"


async def test_cors_is_off_until_an_origin_is_named(database_url: str) -> None:
    origin = {"origin": "https://app.example"}
    preflight = {**origin, "access-control-request-method": "POST"}
    async with serving(database_url) as web, asking(web) as client:
        assert (
            "access-control-allow-origin"
            not in (await client.get("/livez", headers=origin)).headers
        )
    async with (
        serving(database_url, needs_key=True, cors_origins=("https://app.example",)) as web,
        asking(web) as client,
    ):
        allowed = await client.options("/enqueue", headers=preflight)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://app.example"
        assert "access-control-allow-credentials" not in allowed.headers
        other = await client.options(
            "/enqueue", headers={**preflight, "origin": "https://evil.example"}
        )
        assert "access-control-allow-origin" not in other.headers
        refused = await client.get("/docs", headers=origin)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example"


def test_the_document_tells_scopes_and_refusals(database_url: str) -> None:
    document = WebServer(PostgresJobsDB(database_url), NoScheduler()).app.openapi()

    assert document["components"]["securitySchemes"]["apiKey"]["scheme"] == "bearer"
    enqueue = document["paths"]["/enqueue"]["post"]
    assert enqueue["security"] == [{"apiKey": ["submit"]}, {}]
    assert {"401", "403", "414", "421", "429", "431"} <= enqueue["responses"].keys()
    live = document["paths"]["/livez"]["get"]
    assert "security" not in live
    assert "401" not in live["responses"]
