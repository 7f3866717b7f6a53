"""Claiming deliveries passes over those that another session is claiming, without waiting."""

import asyncio
from uuid import UUID

import asyncpg

from app.db.postgres.adapter import PostgresJobsDB
from app.db.postgres.statements import STATEMENTS


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
