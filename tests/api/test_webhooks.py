"""Endpoints over the API: made, looked at, switched, forgotten; their secrets are told once."""

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from api.test_bad_input import assert_problem

from app.db.ids import new_id
from app.db.postgres.adapter import PostgresJobsDB
from app.domain.webhooks import DeliveryStatus, TryEnded

URL = "https://hooks.example/haulage?token=t0ken"


async def made(client: httpx2.AsyncClient, **fields: object) -> dict[str, Any]:
    response = await client.post("/webhooks", json={"url": URL, **fields})
    assert response.status_code == 201, response.text
    webhook: dict[str, Any] = response.json()
    assert response.headers["location"] == f"/webhooks/{webhook['id']}"
    return webhook


async def test_an_endpoint_is_made_and_its_secret_told_once(
    client: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    webhook = await made(client, events=["job.failed", "job.completed", "job.failed"])

    secret = webhook.pop("secret")
    assert secret.startswith("whsec_")
    assert webhook["events"] == ["job.completed", "job.failed"]
    assert (await client.get(f"/v1/webhooks/{webhook['id']}")).json() == webhook
    assert (await client.get("/webhooks")).json() == {"items": [webhook]}
    for path in (
        "/webhooks",
        f"/webhooks/{webhook['id']}",
        f"/webhooks/{webhook['id']}/deliveries",
    ):
        assert secret not in (await client.get(path)).text
    assert secret not in caplog.text
    assert "t0ken" not in caplog.text
    assert (await made(client))["events"] == ["job.completed", "job.failed", "job.cancelled"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"url": "ftp://hooks.example/"},
        {"url": "http://127.0.0.1:5432/"},
        {"url": "http://169.254.169.254/"},
        {"url": "https://u:p@hooks.example/"},
        {"url": "https://hooks.example/" + "x" * 2_000},
        {"url": URL, "events": []},
        {"url": URL, "events": ["job.started"]},
        {"url": URL, "events": ["job.failed"] * 4},
        {"url": URL, "secret": "whsec_mine"},
        {"url": "https://hooks.example/\x00"},
    ],
)
async def test_what_can_be_no_endpoint_is_refused(
    client: httpx2.AsyncClient, body: dict[str, object]
) -> None:
    response = await client.post("/webhooks", json=body)

    assert response.status_code == 422
    assert assert_problem(response)["errors"]
    assert (await client.get("/webhooks")).json() == {"items": []}


async def test_an_endpoint_is_switched_off_and_on(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    webhook = await made(client)
    path = f"/webhooks/{webhook['id']}"

    off = await client.patch(path, json={"is_active": False})
    assert off.json()["is_active"] is False
    assert off.json()["disabled_reason"]
    await db.cancel_job(await db.insert_pending_job({}))
    assert (await client.get(f"{path}/deliveries")).json() == {"items": [], "next": None}
    on = await client.patch(path, json={"is_active": True})
    assert (on.json()["is_active"], on.json()["disabled_reason"]) == (True, None)
    assert (await client.patch(path, json={})).status_code == 422


async def test_a_secret_is_replaced_and_told_once(
    client: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    webhook = await made(client)
    path = f"/v1/webhooks/{webhook['id']}"
    before = datetime.now(UTC)

    told = [
        (await client.post(f"{path}/secret")).json(),
        (await client.post(f"{path}/secret", json={"old_valid_seconds": 60})).json(),
    ]

    secrets = [webhook["secret"], *(one["secret"] for one in told)]
    assert len(set(secrets)) == 3
    until = [datetime.fromisoformat(one["old_valid_until"]) - before for one in told]
    assert timedelta(hours=24) <= until[0] < timedelta(hours=24, minutes=1)
    assert timedelta(seconds=60) <= until[1] < timedelta(seconds=120)
    assert not [secret for secret in secrets if secret in (await client.get(path)).text]
    assert not [secret for secret in secrets if secret in caplog.text]

    for _ in range(2):
        assert (await client.post(f"{path}/secret")).status_code == 200
    refused = await client.post(f"{path}/secret")
    assert refused.status_code == 409
    assert assert_problem(refused)["type"] == "urn:haulage:problem:too-many-secrets"
    ended = await client.post(f"{path}/secret", json={"old_valid_seconds": 0})
    assert ended.status_code == 200
    assert (await client.post(f"{path}/secret")).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"old_valid_seconds": -1},
        {"old_valid_seconds": 30 * 86_400 + 1},
        {"old_valid_seconds": "soon"},
        {"secret": "whsec_mine"},
        [],
    ],
)
async def test_a_wish_for_a_secret_that_makes_no_sense_is_refused(
    client: httpx2.AsyncClient, body: object
) -> None:
    webhook = await made(client)
    refused = await client.post(f"/webhooks/{webhook['id']}/secret", json=body)
    assert refused.status_code == 422
    assert_problem(refused)


async def test_deliveries_are_paged_replayed_and_forgotten_with_their_endpoint(
    client: httpx2.AsyncClient, db: PostgresJobsDB
) -> None:
    webhook = await made(client)
    path = f"/webhooks/{webhook['id']}"
    jobs = [await db.insert_pending_job({}) for _ in range(3)]
    for job in jobs:
        await db.cancel_job(job)

    first = await client.get(f"/v1{path}/deliveries", params={"limit": 2})
    page = first.json()
    assert [item["job_id"] for item in page["items"]] == jobs[:0:-1]
    assert page["next"].startswith(f"/v1{path}/deliveries?limit=2&before=")
    assert first.headers["link"] == f'<{page["next"]}>; rel="next"'
    rest = await client.get(page["next"])
    assert [item["job_id"] for item in rest.json()["items"]] == jobs[:1]
    assert rest.json()["next"] is None
    assert "link" not in rest.headers
    for cursor in ("x", "A" * 31, "A" * 33, "\x00", "é" * 32, "_" * 32):
        refused = await client.get(f"{path}/deliveries", params={"before": cursor})
        assert refused.status_code == 422, cursor
        assert refused.json()["type"] == "urn:haulage:problem:bad-cursor"

    [due, *_] = await db.claim_deliveries(9, 9, {}, 60.0)
    replay = f"/webhooks/deliveries/{due.id}/replay"
    assert (await client.post(replay)).status_code == 409
    await db.end_try(due, TryEnded(DeliveryStatus.FAILED, 0.0, 500, "answered 500"))
    assert (await client.post(replay)).status_code == 202
    assert [again.id for again in await db.claim_deliveries(9, 9, {}, 60.0)] == [due.id]
    assert (await client.delete(path)).status_code == 204
    assert (await client.post(replay)).status_code == 404


@pytest.mark.parametrize("webhook_id", [new_id(), "no-id", "%C3%A4"])
async def test_an_unknown_endpoint_is_told_so(client: httpx2.AsyncClient, webhook_id: str) -> None:
    path = f"/webhooks/{webhook_id}"
    for response in (
        await client.get(path),
        await client.patch(path, json={"is_active": True}),
        await client.patch(path, json={"is_active": False}),
        await client.delete(path),
        await client.get(f"{path}/deliveries"),
        await client.post(f"{path}/secret"),
        await client.post(f"/webhooks/deliveries/{webhook_id}/replay"),
    ):
        assert response.status_code == 404
        assert_problem(response)
