"""`QueueManager` as a whole: its loops start, survive faults and each other, and end in time."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.mock_database import claimed_job, running_job
from support.waiting import eventually
from unit.fake_workers import KILLED, Node

from app.domain.errors import DatabaseUnavailableError
from app.domain.jobs import Cause, JobStatus
from app.orchestrator import manager

AWAY = DatabaseUnavailableError("no route")
QUICK: dict[str, Any] = {
    "poll_interval_seconds": 0.01,
    "watchdog_interval_seconds": 0.01,
    "heartbeat_interval_seconds": 0.01,
}
EVERY_CALL = {
    "claim_pending_jobs",
    "count_running_jobs",
    "deregister_node",
    "drain_node",
    "finish_job",
    "list_lost_jobs",
    "list_running_jobs",
    "renew_node",
}


def our_tasks() -> set[str]:
    return {t.get_name() for t in asyncio.all_tasks() if t.get_name().startswith("haulage")}


@pytest.fixture(autouse=True)
async def _no_task_is_left() -> AsyncGenerator[None, None]:
    yield
    await asyncio.sleep(0)
    assert our_tasks() == set()


@asynccontextmanager
async def started(node: Node) -> AsyncIterator[Node]:
    await node.manager.start()
    try:
        yield node
    finally:
        node.db.hanging.clear()
        await node.manager.stop()


async def until_called(node: Node, method: str, times: int) -> None:
    """Wait for so many more calls of a method."""
    before = node.db.calls.count(method)

    async def is_called() -> bool:
        return node.db.calls.count(method) >= before + times

    await eventually(is_called, f"{times} calls of {method}")


async def until_launched(node: Node, count: int) -> None:
    async def are_launched() -> bool:
        return len(node.launcher.workers) >= count

    await eventually(are_launched, f"{count} launches")


async def test_a_launch_that_hangs_holds_up_neither_the_watchdog_nor_the_end() -> None:
    async with started(Node(**QUICK)) as node:
        node.launcher.may_launch.clear()
        job = claimed_job()
        node.db.pending = [job]
        async with asyncio.timeout(10.0):
            await node.launcher.is_launching.wait()
        await until_called(node, "list_lost_jobs", 3)
        await until_called(node, "renew_node", 3)
        node.db.running_rows = [running_job(job, node.manager.node_id)]
        began = time.monotonic()

    # Given up by the end of the listener: what the database knows is given back.
    assert time.monotonic() - began < 2.0
    assert set(node.verdicts()) == {(job.id, JobStatus.PENDING, Cause.SHUTDOWN)}
    assert node.launcher.workers == []


# -- running ----------------------------------------------------------------------------------


async def test_a_started_node_is_known_and_says_so() -> None:
    async with started(Node()) as node:
        assert [known.id for known in node.db.nodes] == [node.manager.node_id]
        assert len(node.told("manager.started")) == 1
    assert len(node.told("manager.stopped")) == 1
    assert node.db.calls.count("deregister_node") == 1


async def test_a_wake_up_is_enough_to_start_a_job() -> None:
    async with started(Node()) as node:
        await until_called(node, "claim_pending_jobs", 1)
        node.db.pending = [claimed_job()]

        node.db.wake.set()

        await until_launched(node, 1)
        node.launcher.workers[0].end(KILLED)


async def test_a_job_starts_without_any_wake_up_when_the_node_polls() -> None:
    async with started(Node(poll_interval_seconds=0.01)) as node:
        node.db.pending = [claimed_job()]

        await until_launched(node, 1)
        node.launcher.workers[0].end(KILLED)


async def test_the_end_of_a_job_makes_room_for_the_next_at_once() -> None:
    async with started(Node(max_concurrent_jobs=1)) as node:
        node.db.pending = [claimed_job() for _ in range(5)]
        node.db.wake.set()
        for count in range(1, 6):
            await until_launched(node, count)
            assert node.manager.running_jobs == 1
            node.launcher.workers[-1].end(KILLED)

        await eventually(lambda: _has_finished(node, 5), "five ends")


@pytest.mark.parametrize(
    "method", ["claim_pending_jobs", "count_running_jobs", "list_running_jobs", "list_lost_jobs"]
)
async def test_the_loops_go_on_after_any_fault(method: str) -> None:
    async with started(Node(**QUICK)) as node:
        node.db.faults += [(method, AWAY), (method, RuntimeError("surprise")), (method, AWAY)]

        await until_called(node, method, 5)

        node.db.pending = [claimed_job()]
        await until_launched(node, 1)
        node.launcher.workers[0].end(KILLED)
    assert len(node.told("loop.failed")) == 3


async def test_the_watchdog_goes_on_while_the_listener_hangs() -> None:
    async with started(Node(**QUICK)) as node:
        node.db.hanging.add("claim_pending_jobs")
        await until_called(node, "claim_pending_jobs", 1)

        await until_called(node, "list_running_jobs", 5)
        await until_called(node, "renew_node", 5)
        assert node.db.calls.count("claim_pending_jobs") <= 2


async def test_the_listener_goes_on_while_the_watchdog_hangs() -> None:
    async with started(Node(**QUICK)) as node:
        node.db.hanging.add("list_lost_jobs")
        await until_called(node, "list_lost_jobs", 1)

        node.db.pending = [claimed_job()]
        await until_launched(node, 1)
        node.launcher.workers[0].end(KILLED)
        await eventually(lambda: _has_finished(node, 1), "its end")
        await until_called(node, "renew_node", 5)


async def test_a_node_that_lost_its_lease_claims_again_under_its_new_identity() -> None:
    async with started(Node(**QUICK)) as node:
        identity = node.manager.node_id
        node.db.is_renewing = False
        await eventually(lambda: _is_another(node, identity), "a new identity")
        node.db.is_renewing = True

        node.db.pending = [claimed_job()]
        await until_launched(node, 1)
        node.launcher.workers[0].end(KILLED)


# -- stopping ---------------------------------------------------------------------------------


async def test_what_runs_may_finish_within_the_grace() -> None:
    node = Node(shutdown_grace_seconds=60.0)
    async with started(node):
        worker = node.running()
        stopping = asyncio.create_task(node.manager.stop())
        await until_called(node, "drain_node", 1)
        assert not stopping.done()

        worker.end(KILLED)
        async with asyncio.timeout(10.0):
            await stopping
    assert worker.stop_reason is None
    assert node.verdicts() == [(worker.job.id, JobStatus.FAILED, Cause.SIGNAL)]


async def test_what_still_runs_after_the_grace_is_ended_and_given_back() -> None:
    node = Node(shutdown_grace_seconds=0.01)
    async with started(node):
        willing, stubborn = node.running(), node.running()
        stubborn.ends_on_stop = False

    assert stubborn.is_killed.is_set()
    assert not willing.is_killed.is_set()
    assert {(job, status) for job, status, _ in node.verdicts()} == {
        (willing.job.id, JobStatus.PENDING),
        (stubborn.job.id, JobStatus.PENDING),
    }
    assert {cause for _, _, cause in node.verdicts()} == {Cause.SHUTDOWN}


async def test_a_second_signal_ends_the_grace() -> None:
    node = Node(shutdown_grace_seconds=3_600.0)
    async with started(node):
        worker = node.running()
        node.manager.drain()
        stopping = asyncio.create_task(node.manager.stop())
        await until_called(node, "drain_node", 1)

        node.manager.drain()
        async with asyncio.timeout(10.0):
            await stopping
    assert node.verdicts() == [(worker.job.id, JobStatus.PENDING, Cause.SHUTDOWN)]


async def test_leases_are_renewed_while_jobs_finish() -> None:
    node = Node(shutdown_grace_seconds=60.0, heartbeat_interval_seconds=0.01)
    async with started(node):
        worker = node.running()
        stopping = asyncio.create_task(node.manager.stop())
        await until_called(node, "drain_node", 1)

        await until_called(node, "renew_node", 3)

        worker.end(KILLED)
        await stopping


@pytest.mark.parametrize(
    "hanging", [EVERY_CALL, {"finish_job"}, {"drain_node"}, {"list_lost_jobs"}]
)
async def test_stopping_is_bounded_when_the_database_hangs(hanging: set[str]) -> None:
    node = Node(shutdown_grace_seconds=0.01, **QUICK)
    await node.manager.start()
    await until_called(node, "list_running_jobs", 1)
    node.db.hanging |= hanging
    dead, living = node.running(), node.running()
    living.ends_on_stop = False
    dead.end(KILLED)
    began = time.monotonic()

    async with asyncio.timeout(20.0):
        await node.manager.stop()

    # Promised are two seconds after the grace; a busy machine may need a little more.
    assert time.monotonic() - began < 4.0
    assert living.is_killed.is_set()


async def test_a_second_stop_does_nothing() -> None:
    node = Node()
    await node.manager.stop()
    assert node.db.calls == []

    async with started(node):
        pass
    calls = node.db.calls.copy()
    await node.manager.stop()
    assert node.db.calls == calls


async def test_nothing_is_left_when_a_node_is_stopped_right_after_its_start() -> None:
    for _ in range(20):
        node = Node()
        await node.manager.start()
        await node.manager.stop()
        assert our_tasks() == set()


async def test_a_node_that_starts_again_is_another_node() -> None:
    node = Node()
    for _ in range(3):
        async with started(node):
            node.db.pending = [claimed_job()]
            node.db.wake.set()
            await until_launched(node, len(node.db.nodes))
            node.launcher.workers[-1].end(KILLED)
            await eventually(lambda: _has_finished(node, len(node.db.nodes)), "its end")

    assert len({known.id for known in node.db.nodes}) == 3


async def test_connections_are_given_back_when_the_start_failed() -> None:
    node = Node()
    node.db.faults = [("register_node", AWAY)]

    with pytest.raises(DatabaseUnavailableError):
        await node.manager.start()
    await node.manager.stop()

    assert "close" in node.db.calls


async def _has_finished(node: Node, times: int) -> bool:
    return len(node.db.finished) >= times


async def _is_another(node: Node, identity: str) -> bool:
    return node.manager.node_id != identity


async def test_lost_jobs_are_looked_for_soon_after_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manager, "RESULTS_FIRST_SECONDS", 0.05)
    async with started(Node(watchdog_interval_seconds=60.0)) as node:
        node.manager._watching.wake()
        await until_called(node, "list_lost_jobs", 1)
        node.db.lost_rows = [running_job(claimed_job(), "other-node")]
        node.db.faults = [("renew_node", AWAY)]
        with pytest.raises(DatabaseUnavailableError):
            await node.manager._renew_once()

        await node.manager._renew_once()

        # By the end of the outage, not by the next watch period.
        await until_called(node, "rescue_job", 1)


@pytest.mark.parametrize("hanging", ["warm_up", "register_node"])
async def test_a_node_that_is_told_to_end_while_it_starts_does_so(hanging: str) -> None:
    node = Node()
    if hanging == "warm_up":
        node.launcher.may_warm_up.clear()
    else:
        node.db.hanging.add("register_node")
    starting = asyncio.create_task(node.manager.start())
    await asyncio.sleep(0)

    node.manager.drain()

    async with asyncio.timeout(2):
        await starting
        await node.manager.stop()
    assert node.told("manager.started") == []
    assert "close" in node.db.calls


class Beside:
    """A companion that remembers what it was told, and may hang."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.told: list[str] = []
        self._hangs = hangs

    def start(self) -> None:
        self.told.append("start")

    async def stop(self) -> None:
        self.told.append("stop")
        if self._hangs:
            await asyncio.Event().wait()

    async def close(self) -> None:
        self.told.append("close")
        if self._hangs:
            await asyncio.Event().wait()


async def test_companions_begin_and_end_with_their_node() -> None:
    node, beside = Node(), Beside()
    node.manager._companions = [beside]

    for _ in range(2):
        async with started(node):
            assert beside.told[-1] == "start"

    assert beside.told == ["start", "stop", "close"] * 2


async def test_a_companion_that_hangs_holds_up_no_end() -> None:
    node, beside = Node(), Beside(hangs=True)
    node.manager._companions = [beside]
    await node.manager.start()

    began = time.monotonic()
    await node.manager.stop()

    assert time.monotonic() - began < 2
    assert beside.told == ["start", "stop", "close"]
    assert node.told("manager.stopped")


async def test_a_companion_of_a_node_that_could_not_start_is_closed() -> None:
    node, beside = Node(), Beside()
    node.manager._companions = [beside]
    node.db.faults = [("register_node", AWAY)]

    with pytest.raises(DatabaseUnavailableError):
        await node.manager.start()

    assert beside.told == ["close"]
