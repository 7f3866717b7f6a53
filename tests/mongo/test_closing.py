"""An adapter gives everything back soon, whatever its server does."""

import asyncio
import time
from collections.abc import Iterator

import pytest
from support import mongo
from support.mongo import Mongod
from support.processes import frozen
from support.waiting import eventually

from app.db.mongo.adapter import MongoJobsDB

# A moment for each of its clients, on a busy machine.
SOON_SECONDS = 2.0


@pytest.fixture
def own_server() -> Iterator[tuple[str, Mongod]]:
    with mongo.replica_set(1) as (url, [server]):
        yield url, server


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "frozen"])
async def test_an_adapter_closes_soon_when_its_server_is(
    own_server: tuple[str, Mongod], *, is_killed: bool
) -> None:
    url, server = own_server
    db = MongoJobsDB(url)
    listening = asyncio.create_task(_listen(db))
    job_id = await db.insert_pending_job({})
    # Some connections, and sessions that the driver says farewell to.
    await asyncio.gather(*(db.get_job(job_id) for _ in range(8)))

    async def is_listening() -> bool:
        return db.is_listening

    await eventually(is_listening, "listening")
    assert server.process is not None
    with frozen(server.process.pid):
        if is_killed:
            server.process.kill()
            server.process.wait()
        began = time.monotonic()
        listening.cancel()
        await asyncio.wait({listening})
        await db.close()
        assert time.monotonic() - began < SOON_SECONDS
    assert listening.cancelled()
    # Not even the driver's monitors.
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def _listen(db: MongoJobsDB) -> None:
    async for _ in db.wake_ups():
        pass
