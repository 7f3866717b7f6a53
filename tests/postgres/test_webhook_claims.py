"""Deliveries and secrets of webhooks while another session holds them.

Claiming passes over what another one is claiming, without waiting; of two rotations at once the
second one goes by what the first one left.
"""

import asyncio
from uuid import UUID

import asyncpg
from support.sessions import until_waiting

from app.db.postgres.adapter import PostgresJobsDB
from app.db.postgres.statements import STATEMENTS
from app.domain.webhooks import MAX_OLD_SECRETS


async def test_a_delivery_that_is_being_claimed_is_passed_over(database_url: str) -> None:
    db = PostgresJobsDB(database_url)
    webhook = await db.insert_webhook("https://hooks.example/", ["job.cancelled"], "whsec_x")
    for _ in range(2):
        await db.cancel_job(await db.insert_pending_job({}))
    rival = await asyncpg.connect(database_url)
    arguments: tuple[object, ...] = (1, 1, list[UUID](), list[int](), 60.0)
    try:
        async with rival.transaction():
            [first] = await rival.fetch(STATEMENTS["claim_deliveries"].sql, *arguments)
            [second] = await asyncio.wait_for(db.claim_deliveries(1, 1, {}, 60.0), 5.0)
            assert second.id != first["id"]
            assert await asyncio.wait_for(db.claim_deliveries(1, 1, {}, 60.0), 5.0) == []
    finally:
        await rival.close()
        await db.close()
    assert first["webhook_id"] == second.webhook_id == webhook.id


async def test_no_old_secret_outlives_a_rotation_that_ends_them_all(
    database_url: str, observer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    db = PostgresJobsDB(database_url)
    webhook = await db.insert_webhook("https://hooks.example/", ["job.cancelled"], "whsec_leaked")
    rival = await asyncpg.connect(database_url)
    arguments = (UUID(webhook.id), "whsec_first", 3_600.0, MAX_OLD_SECRETS)
    try:
        async with rival.transaction():
            await rival.fetch(STATEMENTS["rotate_secret"].sql, *arguments)
            ending = asyncio.create_task(db.rotate_secret(webhook.id, "whsec_second", 0.0))
            await until_waiting(observer, rival)
        rotation = await ending
    finally:
        await rival.close()
        await db.close()

    assert rotation is not None
    assert rotation.is_done
    assert (
        await observer.fetch("select from haulage.webhook_secrets where valid_until > now()") == []
    )
    assert await observer.fetchval("select secret from haulage.webhooks") == "whsec_second"
