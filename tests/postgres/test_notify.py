"""NOTIFY: after the commit, debounced, with a constant payload, and never in a job's way."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from contract.steps import new_job
from support.proxy import Proxy
from support.sessions import Ear
from support.waiting import eventually

from app.db.postgres.adapter import PostgresJobsDB
from app.db.postgres.connections import close_quietly, create_pool
from app.db.postgres.listener import NOTIFY_INTERVAL_SECONDS, DebouncedNotify
from app.db.postgres.statements import STATEMENTS


@asynccontextmanager
async def debounced(url: str, interval_seconds: float) -> AsyncIterator[DebouncedNotify]:
    pool = create_pool(url, "haulage", 2)
    await pool
    try:
        yield DebouncedNotify(pool, interval_seconds)
    finally:
        await close_quietly(pool)


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_notifies_in_its_own_transaction(name: str) -> None:
    assert "notify" not in STATEMENTS[name].sql.lower()


async def test_a_thousand_inserts_give_few_notifications(database_url: str, ear: Ear) -> None:
    db = PostgresJobsDB(database_url)
    began = time.monotonic()
    await asyncio.gather(*(new_job(db, {"n": n}) for n in range(1_000)))
    took = time.monotonic() - began
    await db.close()

    heard = await ear.all_heard()
    assert 1 <= len(heard) <= 2 + took / NOTIFY_INTERVAL_SECONDS
    assert len(heard) < 500
    assert set(heard) == {""}


async def test_the_first_wish_is_sent_at_once_and_the_rest_as_one(
    database_url: str, ear: Ear
) -> None:
    async with debounced(database_url, interval_seconds=0.2) as notify:
        notify.request()
        await eventually(lambda: _has_sent(notify, 1), "the first notification")
        for _ in range(100):
            notify.request()
        await notify.flush()

        assert notify.sent == 2
        assert len(await ear.all_heard()) == 2


async def test_nothing_is_sent_when_nothing_was_asked_for(database_url: str, ear: Ear) -> None:
    async with debounced(database_url, interval_seconds=0.01) as notify:
        await notify.flush()

    assert await ear.all_heard() == []


async def test_a_wish_after_a_fault_is_sent_again(proxy: Proxy, ear: Ear) -> None:
    async with debounced(proxy.url, interval_seconds=0.001) as notify:
        proxy.is_refusing = True
        notify.request()
        await notify.flush()
        assert notify.sent == 0

        proxy.is_refusing = False
        notify.request()
        await notify.flush()
        assert notify.sent == 1
    assert len(await ear.all_heard()) == 1


async def test_an_insert_succeeds_when_its_notification_cannot_be_sent(proxy: Proxy) -> None:
    db = PostgresJobsDB(proxy.url, max_connections=1)
    job_id = await new_job(db)
    proxy.is_refusing = True
    proxy.cut()
    await db.close()
    proxy.is_refusing = False

    assert (await db.get_job(job_id)).id == job_id
    await db.close()


async def _has_sent(notify: DebouncedNotify, times: int) -> bool:
    return notify.sent == times
