"""Health, faults of the database, unexpected errors, and the description of the API."""

import asyncio
import re
from collections.abc import AsyncGenerator
from dataclasses import replace

import httpx2
import pytest
from api.conftest import client_of, web_server
from support.mock_database import MockDatabase
from support.proxy import Proxy
from support.waiting import eventually

from app.api.server import NoScheduler, WebServer
from app.db import migrate
from app.db.ids import new_id
from app.db.postgres.adapter import PostgresJobsDB
from app.db.urls import DatabaseURL
from app.domain.health import VitalSigns


async def test_a_server_is_alive_but_not_ready_before_it_was_started(database_url: str) -> None:
    async with client_of(web_server(database_url)) as client:
        assert (await client.get("/livez")).json() == {"status": "ok"}
        response = await client.get("/readyz")

    assert response.status_code == 503
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["type"] == "urn:haulage:problem:not-ready"


async def test_a_server_is_ready_between_start_and_the_signal_to_stop(
    web: WebServer, client: httpx2.AsyncClient, database_url: str
) -> None:
    head = migrate.state(DatabaseURL.parse(database_url)).wanted
    assert (await client.get("/readyz")).json() == {
        "status": "ok",
        "database": "ok",
        "schema": head,
        "scheduler": "none",
        "wake_ups": None,
    }

    web.refuse_traffic()

    assert (await client.get("/readyz")).status_code == 503
    assert (await client.get("/livez")).status_code == 200
    # Whoever still sends is served.
    assert (await client.post("/enqueue", json={"payload": {}})).status_code == 200


async def test_a_server_has_started_for_good_once_it_was_ready(database_url: str) -> None:
    web = web_server(database_url)
    async with client_of(web) as client:
        assert (await client.get("/startupz")).status_code == 503
        async with web._lifespan(web.app):
            assert (await client.get("/startupz")).json() == {"status": "ok"}
        assert (await client.get("/startupz")).status_code == 200


SIGNS = VitalSigns(is_draining=False, is_listening=True)


@pytest.mark.parametrize(
    ("signs", "live", "ready", "told"),
    [
        (SIGNS, 200, 200, "listening"),
        # Jobs wait for the next poll then, and are done all the same.
        (replace(SIGNS, is_listening=False), 200, 200, "polling"),
        (replace(SIGNS, is_draining=True), 200, 503, "stopping"),
        (replace(SIGNS, dead_loops=("watchdog",)), 503, 200, "listening"),
        (replace(SIGNS, slowest_pass_seconds=301.0), 503, 200, "listening"),
    ],
    ids=["well", "deaf", "draining", "a dead loop", "a stuck loop"],
)
async def test_the_scheduler_beside_it_counts(
    signs: VitalSigns, live: int, ready: int, told: str
) -> None:
    web = WebServer(MockDatabase(), NoScheduler(), vital_signs=lambda: signs)
    async with web._lifespan(web.app), client_of(web) as client:
        assert (await client.get("/livez")).status_code == live
        answer = await client.get("/readyz")

    assert answer.status_code == ready
    assert told in answer.text


async def test_a_server_is_not_ready_for_a_schema_that_another_program_made(
    database_url: str,
) -> None:
    web = WebServer(PostgresJobsDB(database_url), NoScheduler(), schema_revision="9999")
    async with web._lifespan(web.app), client_of(web) as client:
        answer = await client.get("/readyz")

    assert answer.status_code == 503
    assert answer.json()["type"] == "urn:haulage:problem:wrong-schema"


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/startupz", "/v1/readyz"])
async def test_probes_may_ask_by_head(client: httpx2.AsyncClient, path: str) -> None:
    answer = await client.head(path)

    assert (answer.status_code, answer.content) == (200, b"")


async def test_the_page_of_documentation_needs_nothing_from_elsewhere(
    client: httpx2.AsyncClient,
) -> None:
    page = (await client.get("/docs")).text

    assert "://" not in page
    for path in re.findall(r'(?:src|href)="(/[^"]+)"', page):
        answer = await client.get(path)
        assert answer.status_code == 200, path
        assert len(answer.content) > 100


async def test_a_server_is_not_ready_any_more_when_it_has_stopped(database_url: str) -> None:
    web = web_server(database_url)
    async with client_of(web) as client:
        async with web._lifespan(web.app):
            assert (await client.get("/readyz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 503


@pytest.fixture
async def behind_proxy(proxy: Proxy) -> AsyncGenerator[httpx2.AsyncClient, None]:
    """A started server whose database is behind the proxy."""
    web = web_server(proxy.url)
    async with web._lifespan(web.app), client_of(web) as client:
        assert (await client.get("/readyz")).status_code == 200
        yield client


async def test_everything_but_livez_says_503_while_the_database_is_away(
    proxy: Proxy, behind_proxy: httpx2.AsyncClient
) -> None:
    client = behind_proxy
    proxy.is_refusing = True
    proxy.cut()

    for method, path in (
        ("GET", "/readyz"),
        ("POST", "/enqueue"),
        ("GET", f"/jobs/{new_id()}"),
        ("GET", f"/jobs/{new_id()}/result"),
    ):
        response = await client.request(method, path, json={"payload": {}})
        assert response.status_code == 503, path
        assert response.headers["content-type"] == "application/problem+json"
        assert int(response.headers["retry-after"]) > 0
        assert response.json()["type"] == "urn:haulage:problem:database-unavailable"
        # Nothing about hosts, users or passwords.
        assert "127.0.0.1" not in response.text
    assert (await client.get("/livez")).status_code == 200

    proxy.is_refusing = False

    async def is_ready() -> bool:
        return (await client.get("/readyz")).status_code == 200

    await eventually(is_ready, "readiness")
    assert (await client.post("/enqueue", json={"payload": {}})).status_code == 200


async def test_an_unexpected_error_is_a_problem_without_its_details() -> None:
    db = MockDatabase(faults=[("get_job", RuntimeError("secret detail"))])
    web = WebServer(db, NoScheduler())
    async with client_of(web, raises=False) as client:
        response = await client.get(f"/jobs/{new_id()}")

    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert "secret" not in response.text


async def test_start_and_stop_happen_in_order_and_once() -> None:
    told: list[str] = []

    class Scheduler:
        async def start(self) -> None:
            told.append("start")

        async def stop(self) -> None:
            told.append("stop")

    db = MockDatabase()
    web = WebServer(db, Scheduler(), on_stopped=lambda: told.append("stopped"))
    async with web._lifespan(web.app):
        assert (told, db.calls) == (["start"], ["open"])

    assert (told, db.calls) == (["start", "stop", "stopped"], ["open", "close"])


async def test_everything_is_stopped_when_the_scheduler_cannot_start() -> None:
    told: list[str] = []

    class Scheduler:
        async def start(self) -> None:
            raise RuntimeError("no")

        async def stop(self) -> None:
            told.append("stop")

    db = MockDatabase()
    web = WebServer(db, Scheduler(), on_stopped=lambda: told.append("stopped"))
    with pytest.raises(RuntimeError, match="no"):
        async with web._lifespan(web.app):
            pass

    assert (told, db.calls) == (["stop", "stopped"], ["open", "close"])


async def test_the_rest_is_stopped_when_the_scheduler_cannot_stop() -> None:
    told: list[str] = []

    class Scheduler(NoScheduler):
        async def stop(self) -> None:
            raise RuntimeError("no")

    db = MockDatabase()
    web = WebServer(db, Scheduler(), on_stopped=lambda: told.append("stopped"))
    with pytest.raises(RuntimeError, match="no"):
        async with web._lifespan(web.app):
            pass

    assert (told, db.calls) == (["stopped"], ["open", "close"])


async def test_two_hundred_requests_at_once_are_all_answered(client: httpx2.AsyncClient) -> None:
    responses = await asyncio.gather(
        *(client.post("/enqueue", json={"payload": {"n": n}}) for n in range(200))
    )

    assert {response.status_code for response in responses} == {200}
    assert len({response.json()["id"] for response in responses}) == 200


async def test_the_description_names_every_route_with_a_stable_id(
    client: httpx2.AsyncClient,
) -> None:
    described = (await client.get("/openapi.json")).json()

    ids = {
        (method.upper(), path): operation["operationId"]
        for path, operations in described["paths"].items()
        for method, operation in operations.items()
    }
    assert (
        ids.items()
        >= {
            ("POST", "/enqueue"): "enqueue_post",
            ("GET", "/jobs/{job_id}"): "get_job",
            ("GET", "/jobs/{job_id}/result"): "get_result",
            ("GET", "/livez"): "livez",
            ("GET", "/readyz"): "readyz",
        }.items()
    )
    assert len(set(ids.values())) == len(ids)
    enqueue = described["paths"]["/enqueue"]["post"]
    assert {"200", "400", "413", "415", "422", "503"} <= set(enqueue["responses"])
    for status, answer in enqueue["responses"].items():
        assert ("application/problem+json" in answer["content"]) is (status != "200")
    request = described["components"]["schemas"]["EnqueueRequest"]
    assert request["required"] == ["payload"]
    assert request["additionalProperties"] is False
