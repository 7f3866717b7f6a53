"""Wake-ups of MongoDB where servers are silent or gone, and whose time-outs count for them."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import pymongo
import pytest
from support import mongo
from support.mongo import Mongod
from support.processes import frozen
from support.waiting import eventually

from app.db.mongo import signals, upgrading
from app.db.mongo.adapter import MongoJobsDB
from app.db.mongo.signals import SIGNALS, DebouncedSignal
from app.domain.errors import DatabaseUnavailableError
from app.domain.jobs import WakeUp

# "Within a few seconds", on a machine that has other things to do.
FEW_SECONDS = 5.0


def _frozen(server: Mongod) -> AbstractContextManager[None]:
    assert server.process is not None
    return frozen(server.process.pid)


@contextmanager
def _killed(server: Mongod) -> Iterator[None]:
    server.stop(signal.SIGKILL)
    yield
    server.start()
    server.wait_until_it_answers()


@pytest.fixture(scope="module")
def set_of_one() -> Iterator[tuple[str, Mongod]]:
    with mongo.replica_set(1) as (url, [server]):
        upgrading.upgrade(url)
        yield url, server


Silence = Callable[[Mongod], AbstractContextManager[None]]


@pytest.mark.parametrize("silence", [_frozen, _killed])
async def test_a_listener_lets_go_within_seconds_of_a_server_that_is_silent(
    set_of_one: tuple[str, Mongod], silence: Silence
) -> None:
    url, server = set_of_one
    db = MongoJobsDB(url, command_timeout_seconds=1.0)
    wake_ups = db.wake_ups()
    assert await anext(wake_ups) == WakeUp.JOBS | WakeUp.CONTROL
    asking = asyncio.ensure_future(_next(wake_ups))
    await db.ping()
    assert not asking.done()
    with silence(server):
        with pytest.raises(DatabaseUnavailableError):
            await db.insert_pending_job({})
        asking.cancel()
        async with asyncio.timeout(FEW_SECONDS):
            await asyncio.wait({asking})
            await wake_ups.aclose()
        assert asking.cancelled()
        async with asyncio.timeout(FEW_SECONDS):
            await db.close()


@pytest.mark.parametrize("silence", [_frozen, _killed])
async def test_a_listener_that_is_not_waiting_lets_go_as_soon(
    set_of_one: tuple[str, Mongod], silence: Silence
) -> None:
    url, server = set_of_one
    db = MongoJobsDB(url, notify=False)
    wake_ups = db.wake_ups()
    assert await anext(wake_ups) == WakeUp.JOBS | WakeUp.CONTROL
    with silence(server):
        async with asyncio.timeout(FEW_SECONDS):
            await wake_ups.aclose()
        async with asyncio.timeout(FEW_SECONDS):
            await db.close()


async def test_a_server_that_stays_silent_while_it_is_asked_is_noticed(
    set_of_one: tuple[str, Mongod], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, server = set_of_one
    monkeypatch.setattr(signals, "AWAIT_SECONDS", 0.2)
    monkeypatch.setattr(signals, "COMMAND_TIMEOUT_SECONDS", 0.5)
    db = MongoJobsDB(url, notify=False)
    wake_ups = db.wake_ups()
    await anext(wake_ups)
    asking = asyncio.ensure_future(_next(wake_ups))
    with _frozen(server):

        async def is_deaf() -> bool:
            return not db.is_listening

        await eventually(is_deaf, "a listener that knows that it is deaf", FEW_SECONDS)
        assert not asking.done()
    # After the gap it says everything.
    async with asyncio.timeout(30):
        assert await asking == WakeUp.JOBS | WakeUp.CONTROL
    await wake_ups.aclose()
    await db.close()


def _drop(url: str) -> None:
    with mongo.client(url) as opened:
        opened.get_default_database("haulage")[SIGNALS].drop()


def _step_down(url: str) -> None:
    with mongo.client(url) as opened:
        opened.admin.command("replSetStepDown", 1, force=True)


@pytest.mark.parametrize("end", [_drop, _step_down])
async def test_wake_ups_come_again_after_what_ends_a_stream(
    set_of_one: tuple[str, Mongod], end: Callable[[str], None]
) -> None:
    url, _ = set_of_one
    db = MongoJobsDB(url)
    wake_ups = db.wake_ups()
    assert await anext(wake_ups) == WakeUp.JOBS | WakeUp.CONTROL
    await asyncio.to_thread(end, url)

    # Sent by somebody who may meet a set without a primary.
    async def sent() -> bool:
        with suppress(DatabaseUnavailableError):
            await db.insert_pending_job({})
            return True
        return False

    await eventually(sent, "a job that is stored", 30)
    async with asyncio.timeout(30):
        assert WakeUp.JOBS in await anext(wake_ups)
    # Not only what it says after a gap: what is sent from now on is heard, too.
    asking = asyncio.ensure_future(_next(wake_ups))

    async def is_heard() -> bool:
        await db.insert_pending_job({})
        return asking.done()

    await eventually(is_heard, "a wake-up of its own", 30)
    assert WakeUp.JOBS in await asking
    await wake_ups.aclose()
    await db.close()


async def _next(wake_ups: AsyncGenerator[WakeUp, None]) -> WakeUp:
    return await anext(wake_ups)


async def test_a_wake_up_is_sent_whatever_time_its_caller_had_left(
    mongo_database_url: str,
) -> None:
    sender = DebouncedSignal(mongo_database_url)
    with pymongo.timeout(1e-9):
        sender.request(WakeUp.JOBS)
    await sender.close()

    with mongo.client(mongo_database_url) as opened:
        sent = opened.get_default_database()[SIGNALS].find_one({"_id": "jobs"})
    assert sent is not None
    assert sent["sent"] == 1
