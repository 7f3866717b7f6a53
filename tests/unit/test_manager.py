"""`QueueManager` pass by pass: claiming, spawning, reaping, watching, renewing."""

import asyncio
import contextlib
import time

import pytest
from support.mock_database import MockDatabase, claimed_job, running_job
from unit.fake_workers import KILLED, FakeWorker, Node

from app.domain.errors import DatabaseUnavailableError
from app.domain.jobs import (
    AttemptOutcome,
    Cause,
    Claim,
    ClaimedJob,
    JobStatus,
    Usage,
)
from app.domain.lifecycle import (
    Cancelled,
    Died,
    NodeLost,
    Overran,
    Unanswered,
    Verdict,
    decide,
)
from app.orchestrator.launching import WorkerStartError

AWAY = DatabaseUnavailableError("no route")


# -- claiming ---------------------------------------------------------------------------------


async def test_a_node_claims_what_fits_and_spawns_it_in_order() -> None:
    node = Node(max_concurrent_jobs=6)
    node.running()
    node.running()
    node.db.running = 2
    waiting = [claimed_job() for _ in range(15)]
    node.db.pending = waiting.copy()

    assert await node.manager._listen_once() == 4

    assert node.db.claim_limits == [4]
    assert [worker.job for worker in node.launcher.workers] == waiting[:4]
    assert node.db.pending == waiting[4:]
    assert node.manager.running_jobs == 6
    assert len(node.told("job.claimed")) == len(node.told("worker.started")) == 4


@pytest.mark.parametrize("known_here", [4, 6])
async def test_a_full_node_does_not_even_ask_the_database(known_here: int) -> None:
    node = Node(max_concurrent_jobs=4)
    for _ in range(known_here):
        node.running()
    node.db.pending = [claimed_job()]

    assert await node.manager._listen_once() == 0

    assert node.db.calls == []


async def test_jobs_that_only_the_database_knows_of_take_slots_too() -> None:
    node = Node(max_concurrent_jobs=4)
    node.running()
    node.db.running = 3
    node.db.pending = [claimed_job() for _ in range(5)]

    assert await node.manager._listen_once() == 1


async def test_a_draining_node_claims_nothing() -> None:
    node = Node()
    node.db.pending = [claimed_job()]
    node.manager.drain()

    assert await node.manager._listen_once() == 0

    assert len(node.db.pending) == 1
    assert node.launcher.workers == []


async def test_a_job_whose_claim_was_under_way_is_given_back_when_the_node_drains() -> None:
    class DrainingDatabase(MockDatabase):
        async def claim_pending_jobs(self, *arguments: object) -> list[ClaimedJob]:
            node.manager.drain()
            return [job]

    job = claimed_job()
    node = Node(DrainingDatabase())

    await node.manager._listen_once()

    assert node.launcher.workers == []
    assert node.verdicts() == [(job.id, JobStatus.PENDING, Cause.SHUTDOWN)]


async def test_a_job_is_given_back_when_no_process_comes_up_and_the_others_start() -> None:
    node = Node()
    first, second = claimed_job(), claimed_job()
    node.db.pending = [first, second]
    node.launcher.failures = [WorkerStartError("no memory")]

    await node.manager._listen_once()

    [(claim, verdict)] = node.db.finished
    assert claim == first.claim
    assert (verdict.status, verdict.cause) == (JobStatus.PENDING, Cause.START_FAILED)
    assert verdict.error is not None
    assert "no memory" in verdict.error.message
    assert [worker.job for worker in node.launcher.workers] == [second]
    assert len(node.told("worker.start_failed")) == 1


async def test_a_job_of_an_unknown_pipeline_is_given_back() -> None:
    node = Node()
    job = claimed_job(pipeline="unknown")
    node.db.pending = [job]

    await node.manager._listen_once()

    assert node.verdicts() == [(job.id, JobStatus.PENDING, Cause.START_FAILED)]


# -- starting ---------------------------------------------------------------------------------


async def launching(node: Node) -> tuple[asyncio.Task[int], ClaimedJob, ClaimedJob]:
    """Two claimed jobs, the first of which is being started for as long as the test likes."""
    jobs = claimed_job(), claimed_job()
    node.db.pending = list(jobs)
    node.db.running_rows = [running_job(job, node.manager.node_id) for job in jobs]
    node.launcher.may_launch.clear()
    listening = asyncio.create_task(node.manager._listen_once())
    async with asyncio.timeout(10.0):
        await node.launcher.is_launching.wait()
    return listening, *jobs


async def test_a_row_is_no_orphan_while_its_process_or_one_before_it_starts() -> None:
    node = Node()
    listening, *jobs = await launching(node)

    for _ in range(4):
        await node.manager._watch_once()
    assert node.db.finished == []
    node.launcher.may_launch.set()
    await listening
    await node.manager._watch_once()

    assert node.db.finished == []
    assert [worker.job for worker in node.launcher.workers] == jobs


async def test_jobs_are_given_back_when_the_node_drains_while_one_of_them_starts() -> None:
    node = Node()
    listening, first, second = await launching(node)

    node.manager.drain()
    node.launcher.may_launch.set()
    await listening
    await node.manager._reap_finished()

    [worker] = node.launcher.workers
    assert worker.is_killed.is_set()
    assert sorted(node.verdicts()) == sorted(
        (job.id, JobStatus.PENDING, Cause.SHUTDOWN) for job in (first, second)
    )


async def test_jobs_are_not_run_when_the_lease_is_lost_while_one_of_them_starts() -> None:
    node = Node(MockDatabase(is_renewing=False))
    listening, first, second = await launching(node)
    identity = node.manager.node_id

    await node.manager._renew_once()
    node.launcher.may_launch.set()
    await listening
    await node.manager._reap_finished()

    [worker] = node.launcher.workers
    assert worker.stop_reason == NodeLost(identity)
    assert sorted(node.verdicts()) == sorted(
        (job.id, JobStatus.PENDING, Cause.NODE_LOST) for job in (first, second)
    )


async def test_a_launch_that_fails_while_the_node_drains_costs_the_job_nothing() -> None:
    node = Node()
    listening, first, _ = await launching(node)
    node.launcher.failures = [WorkerStartError("too late")]

    node.manager.drain()
    node.launcher.may_launch.set()
    await listening

    assert node.verdicts()[0] == (first.id, JobStatus.PENDING, Cause.SHUTDOWN)


async def test_the_cost_of_a_dead_worker_is_written_with_its_end() -> None:
    class KeepingDatabase(MockDatabase):
        async def finish_job(
            self, claim: Claim, verdict: Verdict, usage: Usage | None = None
        ) -> bool:
            kept.append(usage)
            return await super().finish_job(claim, verdict, usage)

    kept: list[Usage | None] = []
    node = Node(KeepingDatabase())
    node.db.faults = [("finish_job", AWAY)]
    worker = node.running()
    worker.usage = Usage(peak_memory_bytes=7, cpu_seconds=0.5)
    worker.end(KILLED)

    for _ in range(2):
        await node.manager._reap_finished()

    assert kept == [worker.usage] * 2


# -- reaping ----------------------------------------------------------------------------------


async def test_a_dead_worker_is_settled_by_its_exit() -> None:
    node = Node()
    worker = node.running(max_attempts=1)
    worker.end(KILLED)

    assert await node.manager._reap_finished() == 1

    assert node.db.finished == [(worker.job.claim, decide(KILLED, worker.job))]
    assert worker.is_closed
    assert node.manager.running_jobs == 0
    [event] = node.told("job.finished")
    assert (event.fields["status"], event.fields["cause"]) == (JobStatus.FAILED, Cause.SIGNAL)


async def test_nothing_is_said_when_the_worker_had_settled_its_job_itself() -> None:
    node = Node(MockDatabase(has_finish_won=False))
    node.running().end(Died(Cause.EXIT_CODE, "exit code 0", exit_code=0))

    await node.manager._reap_finished()

    assert len(node.db.finished) == 1
    assert node.told("job.finished") == []


async def test_nothing_is_written_when_the_worker_lost_its_claim() -> None:
    node = Node()
    worker = node.running()
    worker.end(None)

    await node.manager._reap_finished()

    assert node.db.finished == []
    assert worker.is_closed
    assert len(node.told("claim.lost")) == 1


async def test_the_former_process_of_a_job_that_is_claimed_anew_is_ended_and_cleaned_up() -> None:
    node = Node()
    former = node.running()
    node.db.pending = [claimed_job(id=former.job.id, claim_no=former.job.claim_no + 1)]

    assert await node.manager._listen_once() == 1
    await node.manager._reap_finished()

    assert former.is_killed.is_set()
    assert former.is_closed
    [present] = node.launcher.workers
    assert not present.is_killed.is_set()
    assert node.manager.running_jobs == 1


async def test_a_living_worker_is_left_alone() -> None:
    node = Node()
    worker = node.running()

    assert await node.manager._reap_finished() == 0

    assert node.manager.running_jobs == 1
    assert not worker.is_closed
    assert node.db.calls == []


async def test_an_end_is_written_again_until_the_database_has_taken_it() -> None:
    node = Node()
    node.db.faults = [("finish_job", AWAY) for _ in range(3)]
    worker = node.running()
    worker.end(KILLED)

    for _ in range(6):
        await node.manager._reap_finished()

    assert node.db.calls == ["finish_job"] * 4
    assert [claim for claim, _ in node.db.finished] == [worker.job.claim]
    assert len(node.told("finish.delayed")) == 3
    assert len(node.told("job.finished")) == 1


async def test_one_end_that_cannot_be_written_does_not_hold_up_the_others() -> None:
    class PickyDatabase(MockDatabase):
        async def finish_job(self, claim: Claim, verdict: Verdict, usage: object = None) -> bool:
            if claim == poisoned.job.claim:
                raise ValueError("cannot be encoded")
            return await super().finish_job(claim, verdict)

    node = Node(PickyDatabase())
    poisoned = node.running()
    poisoned.end(KILLED)
    await _survived(node)
    others = [node.running() for _ in range(3)]
    for worker in others:
        worker.end(KILLED)

    for _ in range(2):
        await _survived(node)

    assert {claim for claim, _ in node.db.finished} == {worker.job.claim for worker in others}


async def _survived(node: Node) -> None:
    with contextlib.suppress(ValueError):
        await node.manager._reap_finished()


async def test_a_job_that_hangs_in_its_group_does_not_hold_up_the_others() -> None:
    node = Node()
    hanging, quick = node.running(), node.running()
    hanging.may_be_emptied.clear()
    hanging.end(KILLED)
    quick.end(KILLED)

    async with asyncio.timeout(10.0):
        await node.manager._reap_finished()

    assert [claim for claim, _ in node.db.finished] == [quick.job.claim]
    hanging.may_be_emptied.set()
    await node.manager._reap_finished()
    assert len(node.db.finished) == 2


async def test_what_a_claim_without_an_answer_took_goes_back_at_once_and_at_no_cost() -> None:
    node = Node()
    worker = node.running()
    unknown = running_job(claimed_job(), node.manager.node_id)
    node.db.faults = [("claim_pending_jobs", AWAY)]
    node.db.running_rows = [running_job(worker.job, node.manager.node_id), unknown]

    with pytest.raises(DatabaseUnavailableError):
        await node.manager._listen_once()
    assert node.db.finished == []

    await node.manager._listen_once()
    [(claim, verdict)] = node.db.finished
    assert claim == unknown.claim
    assert (verdict.status, verdict.outcome) == (JobStatus.PENDING, AttemptOutcome.RELEASED)
    assert (verdict.delay_seconds, verdict.attempt_change, verdict.node_loss_change) == (0, -1, 0)

    # Asked once: from now on every claim is known.
    node.db.calls.clear()
    await node.manager._listen_once()
    assert "list_running_jobs" not in node.db.calls


async def test_a_claim_without_an_answer_is_asked_about_until_the_database_answers() -> None:
    node = Node()
    unknown = running_job(claimed_job(), node.manager.node_id)
    node.db.faults = [("claim_pending_jobs", AWAY), ("list_running_jobs", AWAY)]
    node.db.running_rows = [unknown]
    for _ in range(2):
        with pytest.raises(DatabaseUnavailableError):
            await node.manager._listen_once()

    await node.manager._listen_once()

    assert node.db.finished == [(unknown.claim, decide(Unanswered(), unknown))]


# -- watching ---------------------------------------------------------------------------------


async def test_an_orphaned_row_is_given_back_in_the_second_pass_only() -> None:
    node = Node()
    row = running_job(claimed_job(), node.manager.node_id)
    node.db.running_rows = [row]

    await node.manager._watch_once()
    assert node.db.finished == []

    await node.manager._watch_once()
    assert node.verdicts() == [(row.id, JobStatus.PENDING, Cause.START_FAILED)]


@pytest.mark.parametrize("run_seconds", [60.0, 0.0, -60.0])
async def test_an_orphan_of_a_claim_without_an_answer_costs_nothing_however_late_it_is_committed(
    run_seconds: float,
) -> None:
    node = Node()
    node.db.faults = [("claim_pending_jobs", AWAY)]
    with pytest.raises(DatabaseUnavailableError):
        await node.manager._listen_once()
    await node.manager._listen_once()
    assert node.db.finished == []
    # A session that was frozen carries the call out long after it was given up.
    row = running_job(claimed_job(), node.manager.node_id, run_seconds=run_seconds)
    node.db.running_rows = [row]

    for _ in range(2):
        await node.manager._watch_once()

    assert node.db.finished == [(row.claim, decide(Unanswered(), row))]


async def test_an_orphan_of_a_claim_that_was_answered_is_a_failed_start() -> None:
    node = Node()
    node.db.faults = [("claim_pending_jobs", AWAY)]
    with pytest.raises(DatabaseUnavailableError):
        await node.manager._listen_once()
    job = claimed_job()
    node.manager._claimer.unanswered.note_answered([job.claim])
    node.db.running_rows = [running_job(job, node.manager.node_id)]

    for _ in range(2):
        await node.manager._watch_once()

    [(_, verdict)] = node.db.finished
    assert (verdict.outcome, verdict.cause) == (AttemptOutcome.LOST, Cause.START_FAILED)


async def test_a_row_is_no_orphan_while_its_end_waits_to_be_written() -> None:
    node = Node()
    worker = node.running()
    node.db.running_rows = [running_job(worker.job, node.manager.node_id)]
    node.db.faults = [("finish_job", AWAY) for _ in range(20)]
    worker.end(KILLED)

    for _ in range(4):
        await node.manager._watch_once()
    assert node.db.finished == []

    node.db.faults.clear()
    node.db.running_rows.clear()
    await node.manager._reap_finished()
    assert node.verdicts() == [(worker.job.id, JobStatus.FAILED, Cause.SIGNAL)]


async def test_a_row_is_no_orphan_while_its_process_is_being_cleaned_up() -> None:
    node = Node()
    worker = node.running()
    node.db.running_rows = [running_job(worker.job, node.manager.node_id)]
    worker.may_be_emptied.clear()
    worker.end(KILLED)
    passes = [asyncio.create_task(node.manager._watch_once()) for _ in range(4)]
    for _ in range(3):
        await asyncio.sleep(0)

    for _ in range(3):
        async with asyncio.timeout(10.0):
            await node.manager._watch_once()
    worker.may_be_emptied.set()
    await asyncio.gather(*passes)
    await node.manager._reap_finished()

    assert node.verdicts() == [(worker.job.id, JobStatus.FAILED, Cause.SIGNAL)]


async def test_a_stray_process_is_killed_in_the_second_pass_only() -> None:
    node = Node()
    worker = node.running()

    await node.manager._watch_once()
    assert not worker.is_killed.is_set()

    await node.manager._watch_once()
    assert worker.is_killed.is_set()
    assert len(node.told("claim.lost")) == 1


async def test_a_cancelled_job_is_stopped_and_settled_as_cancelled() -> None:
    node = Node()
    worker = node.running(max_attempts=3)
    row = running_job(worker.job, node.manager.node_id, cancel_requested=True)
    node.db.running_rows = [row]

    await node.manager._watch_once()
    await node.manager._reap_finished()

    assert worker.stop_reason == Cancelled()
    assert node.verdicts() == [(worker.job.id, JobStatus.CANCELLED, Cause.CANCELLED)]


async def test_an_overdue_job_is_stopped_while_the_database_hangs() -> None:
    node = Node(MockDatabase(hanging={"finish_job", "list_running_jobs", "list_lost_jobs"}))
    overdue, within, endless = (
        node.running(timeout_seconds=5.0),
        node.running(timeout_seconds=5.0),
        node.running(),
    )
    overdue.run_seconds, within.run_seconds, endless.run_seconds = 5.1, 4.9, 1e6
    overdue.ends_on_stop = False
    hanging = asyncio.create_task(node.manager._watch_once())
    await asyncio.sleep(0)

    for _ in range(2):
        await node.manager._enforcer.enforce()

    assert isinstance(overdue.stop_reason, Overran)
    assert overdue.is_killed.is_set()
    assert (within.stop_reason, endless.stop_reason) == (None, None)
    assert len(node.told("job.overdue")) == 1
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)


async def test_lost_jobs_of_other_nodes_are_decided_on() -> None:
    node = Node()
    fresh, spent = claimed_job(), claimed_job(node_losses=2)
    node.db.lost_rows = [running_job(job, "other-node") for job in (fresh, spent)]

    await node.manager._watch_once()

    assert [(claim, v.status) for claim, v in node.db.rescued] == [
        (fresh.claim, JobStatus.PENDING),
        (spent.claim, JobStatus.FAILED),
    ]
    assert [event.fields["node"] for event in node.told("node.lost")] == ["other-node"] * 2


async def test_a_lost_job_whose_worker_is_storing_its_result_here_is_left_to_it() -> None:
    # The database was away for longer than the lease: the node is another one now.
    node = Node()
    storing, ended = node.running(), node.running()
    storing.has_outcome = True
    node.db.lost_rows = [running_job(w.job, "former-identity") for w in (storing, ended)]

    await node.manager._watch_once()

    assert [claim for claim, _ in node.db.rescued] == [ended.job.claim]


async def test_an_error_about_one_lost_job_loses_none_of_the_others() -> None:
    node = Node()
    node.db.lost_rows = [running_job(claimed_job(), "other-node") for _ in range(3)]
    node.db.faults = [("rescue_job", RuntimeError("broken row"))]

    await node.manager._watch_once()

    assert [claim for claim, _ in node.db.rescued] == [r.claim for r in node.db.lost_rows[1:]]


# -- the lease --------------------------------------------------------------------------------


async def test_a_node_leaves_lost_jobs_to_their_workers_for_a_moment_after_an_outage() -> None:
    node = Node()
    node.db.lost_rows = [running_job(claimed_job(), "other-node")]
    node.db.faults = [("renew_node", AWAY)]
    with pytest.raises(DatabaseUnavailableError):
        await node.manager._renew_once()
    await node.manager._watch_once()
    await node.manager._renew_once()
    await node.manager._watch_once()
    assert node.db.rescued == []

    node.manager._watchdog._results_first_seconds = 0.0
    await node.manager._watch_once()
    assert len(node.db.rescued) == 1


async def test_a_renewed_lease_changes_nothing() -> None:
    node = Node()
    worker, identity = node.running(), node.manager.node_id

    assert await node.manager._renew_once() is True

    assert node.manager.node_id == identity
    assert not worker.is_killed.is_set()


async def test_a_lost_lease_ends_the_workers_and_makes_the_node_another_one() -> None:
    node = Node(MockDatabase(is_renewing=False))
    workers, identity = [node.running() for _ in range(2)], node.manager.node_id

    assert await node.manager._renew_once() is False

    assert all(worker.is_killed.is_set() for worker in workers)
    assert node.manager.node_id != identity
    assert [known.id for known in node.db.nodes] == [node.manager.node_id]
    assert len(node.told("node.lease_lost")) == 1


async def test_a_job_whose_node_lost_its_lease_is_not_failed_for_it() -> None:
    node = Node(MockDatabase(is_renewing=False))
    worker, identity = node.running(max_attempts=1), node.manager.node_id

    await node.manager._renew_once()
    await node.manager._reap_finished()

    assert node.db.finished == [(worker.job.claim, decide(NodeLost(identity), worker.job))]
    assert node.verdicts() == [(worker.job.id, JobStatus.PENDING, Cause.NODE_LOST)]


async def test_a_worker_that_only_stores_its_result_may_go_on_past_the_lease() -> None:
    node = Node(MockDatabase(is_renewing=False))
    storing, computing = node.running(), node.running()
    storing.has_outcome = True

    await node.manager._renew_once()

    assert not storing.is_killed.is_set()
    assert computing.is_killed.is_set()


async def test_workers_end_with_the_lease_when_the_database_does_not_answer() -> None:
    node = Node(node_lease_seconds=0.05)
    node.db.hanging.add("renew_node")
    worker = node.running()

    with pytest.raises(DatabaseUnavailableError):
        await node.manager._renew_once()

    async with asyncio.timeout(10.0):
        await worker.is_killed.wait()


async def test_workers_live_on_when_one_renewal_fails() -> None:
    node = Node(node_lease_seconds=60.0)
    node.db.faults = [("renew_node", AWAY)]
    worker = node.running()

    with pytest.raises(DatabaseUnavailableError):
        await node.manager._renew_once()

    assert await node.manager._renew_once() is True
    assert not worker.is_killed.is_set()


async def test_a_draining_node_takes_no_new_identity() -> None:
    node = Node(MockDatabase(is_renewing=False))
    identity = node.manager.node_id
    node.manager.drain()

    assert await node.manager._renew_once() is False

    assert node.manager.node_id == identity
    assert node.db.nodes == []


def test_the_fake_worker_has_what_the_real_one_has() -> None:
    from app.orchestrator.processes import WorkerProcess  # noqa: PLC0415  only here

    public = {name for name in vars(WorkerProcess) if not name.startswith("_")} - {"unwatch"}
    fake = FakeWorker.__dict__.keys() | vars(FakeWorker(claimed_job())).keys()
    assert public <= fake


# -- what the database knows before the node does ----------------------------------------------


async def test_a_claim_whose_answer_is_on_its_way_is_no_orphan() -> None:
    node = Node(MockDatabase(hanging={"claim_pending_jobs"}))
    node.db.running_rows = [running_job(claimed_job(), node.manager.node_id)]
    asking = asyncio.create_task(node.manager._listen_once())
    # It has got as far as its call by then: everything before it answers at once.
    await asyncio.wait({asking}, timeout=0.5)
    assert "claim_pending_jobs" in node.db.calls

    for _ in range(3):
        await node.manager._watch_once()
    assert node.db.finished == []

    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    for _ in range(2):
        await node.manager._watch_once()
    assert [claim for claim, _ in node.db.finished] == [node.db.running_rows[0].claim]


async def test_a_claim_between_two_looks_at_the_rows_is_no_orphan() -> None:
    node = Node()
    node.db.running_rows = [running_job(claimed_job(), node.manager.node_id)]
    await node.manager._watch_once()

    before = node.manager._claimer.launches.look
    with node.manager._claimer.launches.asking():
        assert node.manager._claimer.launches.look is None
    assert node.manager._claimer.launches.look != before


async def test_a_lost_claim_is_told_unless_the_worker_settled_it_itself() -> None:
    node = Node(MockDatabase(has_finish_won=False))
    lost, settled = node.running(), node.running()
    settled.has_outcome = True
    lost.end(KILLED)
    settled.end(KILLED)

    await node.manager._reap_finished()

    assert [event.fields["job"] for event in node.told("claim.lost")] == [lost.job.id]


async def test_a_standstill_counts_for_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    worker = node.running()
    await node.manager._enforcer.enforce()
    assert worker.excused_seconds == 0.0

    later = time.monotonic() + 100.0
    monkeypatch.setattr("app.orchestrator.enforcing.time.monotonic", lambda: later)
    node.manager._enforcer.end_overdue()

    assert worker.excused_seconds == pytest.approx(100.0, abs=1.0)
