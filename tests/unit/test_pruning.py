"""The pruner: small batches, rests between them, and no kind of thing that stops the others."""

import asyncio
import itertools
import time

import pytest
from support.mock_database import MockDatabase
from support.waiting import eventually

from app.domain.errors import DatabaseUnavailableError
from app.domain.jobs import JobStatus
from app.domain.retention import Retention
from app.orchestrator import pruning
from app.orchestrator.pruning import BATCH, DATASET_BATCH, LONG_SECONDS, Batch, Pruner
from app.telemetry import Event, Telemetry

EVERYTHING = Retention(
    jobs={JobStatus.COMPLETED: 10.0, JobStatus.FAILED: 20.0},
    dataset_seconds=30.0,
    call_seconds=40.0,
    interval_seconds=3_600,
)


@pytest.fixture
def db() -> MockDatabase:
    return MockDatabase()


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def pruner(db: MockDatabase, events: list[Event], monkeypatch: pytest.MonkeyPatch) -> Pruner:
    monkeypatch.setattr(pruning, "LEAST_PAUSE_SECONDS", 0.0)
    return Pruner(lambda: db, EVERYTHING, Telemetry([events.append]))


async def test_everything_goes_in_batches_until_one_comes_back_short(
    db: MockDatabase, pruner: Pruner, events: list[Event]
) -> None:
    db.prunable = {"prune_completed": 2 * BATCH + 1, "prune_datasets": DATASET_BATCH}

    assert await pruner._prune_once() == {"completed_jobs": 2 * BATCH + 1, "datasets": 10}

    assert db.calls == [
        *["prune_completed"] * 3,
        "prune_failed",
        *["prune_datasets"] * 2,
        "prune_calls",
        "prune_nodes",
        "prune_tombstones",
    ]
    assert max(db.prune_limits) == BATCH
    assert events == [
        Event("retention.pruned", {"completed_jobs": 2 * BATCH + 1, "datasets": DATASET_BATCH})
    ]
    # Nothing to tell where nothing went.
    assert await pruner._prune_once() == {}
    assert len(events) == 1


async def test_what_is_to_be_kept_is_not_asked_for(db: MockDatabase) -> None:
    keeping = Pruner(lambda: db, Retention(), Telemetry())

    await keeping._prune_once()

    assert db.calls == ["prune_nodes", "prune_tombstones"]


async def test_one_kind_that_fails_keeps_none_of_the_others(
    db: MockDatabase, pruner: Pruner, events: list[Event]
) -> None:
    db.prunable = {"prune_calls": 3}
    db.faults = [
        ("prune_completed", DatabaseUnavailableError("no answer in time")),
        ("prune_datasets", RuntimeError("a job came to name it")),
    ]

    with pytest.raises(DatabaseUnavailableError):
        await pruner._prune_once()

    assert events == [Event("retention.pruned", {"calls": 3})]
    assert db.calls[-1] == "prune_tombstones"
    # What was too much for one statement is tried in smaller ones.
    db.prune_limits.clear()
    await pruner._prune_once()
    assert db.prune_limits[0] == BATCH // 2


def test_a_batch_shrinks_where_things_are_large_and_grows_again() -> None:
    batch = Batch(8)
    sizes = []
    for _ in range(5):
        batch.note(LONG_SECONDS + 0.1)
        sizes.append(batch.size)
    batch.note(LONG_SECONDS / 2)
    sizes.append(batch.size)
    for _ in range(5):
        batch.note(0.01)
        sizes.append(batch.size)
    assert sizes == [4, 2, 1, 1, 1, 1, 2, 4, 8, 8, 8]


async def test_it_rests_as_long_as_a_batch_took(
    db: MockDatabase, pruner: Pruner, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[float] = []
    took = 0.1

    async def slow(_limit: int) -> int:
        began.append(time.monotonic())
        await asyncio.sleep(took)
        return BATCH if len(began) < 3 else 0

    await pruner._prune_all("completed_jobs", slow)

    assert len(began) == 3
    assert all(b - a >= 2 * took - 0.02 for a, b in itertools.pairwise(began))


async def test_a_stop_ends_it_between_two_batches_or_in_the_middle_of_one(
    db: MockDatabase, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "LEAST_PAUSE_SECONDS", 3_600.0)
    db.prunable = {"prune_completed": 10 * BATCH}
    resting = Pruner(lambda: db, EVERYTHING, Telemetry([events.append]))
    resting.start()
    await eventually(lambda: _said(bool(db.calls)), "the first batch")
    await resting.stop()
    assert db.calls == ["prune_completed"]

    hanging_db = MockDatabase(hanging={"prune_completed"})
    hanging = Pruner(lambda: hanging_db, EVERYTHING, Telemetry([events.append]))
    hanging.start()
    await eventually(lambda: _said(bool(hanging_db.calls)), "the batch that hangs")
    async with asyncio.timeout(2):
        await hanging.stop()
        await hanging.close()
    assert hanging_db.calls == ["prune_completed", "close"]
    # It may begin again.
    hanging_db.hanging.clear()
    hanging.start()
    await eventually(
        lambda: _said(hanging_db.calls[-1] == "prune_tombstones"), "a pass after another start"
    )
    await hanging.stop()


async def _said(answer: bool) -> bool:  # noqa: FBT001
    return answer
