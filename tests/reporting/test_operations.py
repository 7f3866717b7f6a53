"""Views of the present: each number beside one that was worked out by hand."""

from contract.steps import claimed, complete, new_job, new_node
from reporting.rows import Session, is_about, only, picked, set_times, view

from app.db.ids import new_id
from app.db.postgres.adapter import PostgresJobsDB
from app.domain.jobs import Cause, ClaimedJob, Limits, NodeInfo, Progress
from app.domain.lifecycle import Died, NodeLost, Outcome, Released, decide

KILLED = Died(Cause.SIGNAL, "ended by SIGKILL\nafter 3 s", signal=9)


async def node(
    db: PostgresJobsDB, name: str, capacity: int = 4, lease_seconds: float = 60.0
) -> str:
    """A registered node's id."""
    made = NodeInfo(new_id(), name, 77, capacity, lease_seconds, "1.2")
    await db.register_node(made)
    return made.id


async def end(db: PostgresJobsDB, job: ClaimedJob, outcome: Outcome) -> None:
    assert await db.finish_job(job.claim, decide(outcome, job, jitter=0.0))


async def is_due(session: Session, job_id: str, seconds: float) -> None:
    """As if the pending job had been due for so long."""
    await set_times(session, "jobs", job_id, run_at=seconds, created_at=seconds)


# -- queues ------------------------------------------------------------------------------------


async def test_queues_show_what_they_have_now(db: PostgresJobsDB, session: Session) -> None:
    await claimed(db, queue="a")
    await complete(db, await claimed(db, queue="a"))
    await complete(db, await claimed(db, queue="done"))
    for seconds in (100.0, 40.0):
        await is_due(session, await new_job(db, queue="a"), seconds)
    await new_job(db, queue="a", delay_seconds=3_600)
    await new_job(db, queue="later", delay_seconds=3_600)
    await db.pause_queue("b")
    await is_due(session, await new_job(db, queue="b"), 7.0)
    await db.pause_queue("empty")
    await db.resume_queue("empty")

    rows = await view(session, "queue_now")

    assert picked(rows, "queue", "is_paused", "due", "scheduled", "running") == [
        ("a", False, 2, 1, 1),
        ("b", True, 1, 0, 0),
        ("empty", False, 0, 0, 0),
        ("later", False, 0, 1, 0),
    ]
    first, second, third, fourth = (row["oldest_wait_seconds"] for row in rows)
    assert is_about(first, 100)
    assert is_about(second, 7)
    assert (third, fourth) == (None, None)


async def test_the_longest_due_job_of_each_queue_and_pipeline_shows(
    db: PostgresJobsDB, session: Session
) -> None:
    await claimed(db, pipeline="x", queue="a")
    oldest = await new_job(db, pipeline="x", queue="a", priority=-1)
    other = await new_job(db, pipeline="x", queue="a", priority=5)
    beside = await new_job(db, pipeline="y", queue="a")
    elsewhere = await new_job(db, pipeline="x", queue="b")
    await new_job(db, pipeline="z", queue="a", delay_seconds=60)
    for job_id, seconds in ((oldest, 500), (other, 400), (beside, 20), (elsewhere, 10)):
        await is_due(session, job_id, seconds)

    rows = await view(session, "oldest_pending")

    assert picked(rows, "queue", "pipeline", "job_id", "priority", "due") == [
        ("a", "x", oldest, -1, 2),
        ("a", "y", beside, 0, 1),
        ("b", "x", elsewhere, 0, 1),
    ]
    for row, seconds in zip(rows, (500, 20, 10), strict=True):
        assert is_about(row["wait_seconds"], seconds)


async def test_of_those_due_for_equally_long_the_one_that_goes_first_shows(
    db: PostgresJobsDB, session: Session
) -> None:
    jobs = [await new_job(db, pipeline="x", priority=n) for n in (0, 2, 2, 1)]
    await session.execute("update haulage.jobs set run_at = now() - interval '100 seconds'")
    later = await new_job(db, pipeline="x", priority=9)

    row = await only(session, "oldest_pending")

    assert (row["job_id"], row["due"]) == (jobs[1], 5)
    claim = await db.claim_pending_jobs(await new_node(db), 2)
    assert [job.id for job in claim] == [later, jobs[1]]


async def test_scaling_is_a_row_of_noughts_when_there_is_nothing(session: Session) -> None:
    assert await only(session, "scaling") == {
        "due": 0,
        "scheduled": 0,
        "running": 0,
        "wanted_slots": 0,
        "nodes": 0,
        "capacity": 0,
        "oldest_wait_seconds": None,
    }


async def test_scaling_counts_what_could_run_and_who_would_run_it(
    db: PostgresJobsDB, session: Session
) -> None:
    alive = await node(db, "alive", capacity=4)
    await node(db, "other", capacity=3)
    draining, lost, stopped = [await node(db, name, 10) for name in ("drains", "lost", "stopped")]
    for _ in range(2):
        await claimed(db, alive)
    await complete(db, await claimed(db, alive))
    await db.drain_node(draining)
    await db.deregister_node(stopped)
    await set_times(session, "nodes", lost, heartbeat_at=61)
    for seconds in (30, 20, 10):
        await is_due(session, await new_job(db), seconds)
    await new_job(db, delay_seconds=60)
    await db.pause_queue("held")
    await is_due(session, await new_job(db, queue="held"), 1_000)

    row = await only(session, "scaling")

    assert is_about(row.pop("oldest_wait_seconds"), 30)
    assert row == {
        "due": 3,
        "scheduled": 1,
        "running": 2,
        "wanted_slots": 5,
        "nodes": 2,
        "capacity": 7,
    }


# -- running, retried, stuck -------------------------------------------------------------------


async def test_running_jobs_show_their_progress_and_their_silence(
    db: PostgresJobsDB, session: Session
) -> None:
    node_id = await node(db, "host-1")
    silent, told = await claimed(db, node_id), await claimed(db, node_id, pipeline="x")
    await complete(db, await claimed(db, node_id))
    await db.report_started(told.claim, 4_711)
    await db.report_progress(told.claim, Progress(0.25, "middle", "a quarter"))
    await session.execute(
        "update haulage.job_attempts set started_at = now() - interval '90 seconds',"
        " progress_at = progress_at - interval '12 seconds'"
    )
    await set_times(session, "jobs", told.id, created_at=95, run_at=95, started_at=90)

    rows = {row["job_id"]: row for row in await view(session, "running_now")}

    assert set(rows) == {silent.id, told.id}
    row = rows[told.id]
    shown = picked([row], "pipeline", "queue", "claim_no", "attempt", "node_id", "node_name", "pid")
    assert shown == [("x", "default", 1, 1, node_id, "host-1", 4_711)]
    progress = picked([row], "progress_fraction", "progress_stage", "progress_message")
    assert progress == [(0.25, "middle", "a quarter")]
    assert is_about(row["run_seconds"], 90)
    assert is_about(row["silent_seconds"], 12)
    assert rows[silent.id]["progress_at"] is None
    assert is_about(rows[silent.id]["silent_seconds"], 90)


async def test_retries_show_how_the_latest_claim_ended(
    db: PostgresJobsDB, session: Session
) -> None:
    node_id = await new_node(db)
    failed = await claimed(db, node_id, max_attempts=3)
    await end(db, failed, KILLED)
    await set_times(session, "jobs", failed.id, run_at=-3_600)
    lost = await claimed(db, node_id)
    await end(db, lost, NodeLost(node_id))
    again = await db.claim_next_pending_job(node_id)
    assert again is not None
    assert again.id == lost.id
    released = await claimed(db, node_id)
    await end(db, released, Released())
    await new_job(db)
    over = await claimed(db, node_id, priority=1)
    await end(db, over, KILLED)

    rows = {row["job_id"]: row for row in await view(session, "retries")}

    columns = ("status", "attempt", "node_losses", "last_claim_no", "last_outcome", "last_cause")
    assert {job_id: picked([row], *columns)[0] for job_id, row in rows.items()} == {
        failed.id: ("pending", 1, 0, 1, "failed", "signal"),
        lost.id: ("running", 1, 1, 1, "lost", "node_lost"),
        released.id: ("pending", 0, 0, 1, "released", "shutdown"),
    }
    row = rows[failed.id]
    assert (row["last_error_class"], row["last_error"]) == ("WorkerDied", "ended by SIGKILL")
    assert row["last_ended_at"] < row["run_at"]
    assert row["max_attempts"] == 3


async def test_stuck_candidates_show_with_their_weightiest_reason(
    db: PostgresJobsDB, session: Session
) -> None:
    alive, lost, stopped, unknown = [
        await node(db, name, lease_seconds=30) for name in ("alive", "lost", "stopped", "unknown")
    ]
    in_time = await claimed(db, alive, limits=Limits(timeout_seconds=100))
    overdue = await claimed(db, alive, limits=Limits(timeout_seconds=100))
    wanted_ended, endless = await claimed(db, alive), await claimed(db, alive)
    asked_just_now = await claimed(db, alive)
    on_lost = await claimed(db, lost, limits=Limits(timeout_seconds=1))
    on_stopped, on_unknown = await claimed(db, stopped), await claimed(db, unknown)
    waits, held, fresh = [await new_job(db, queue=queue) for queue in ("a", "held", "a")]
    await db.pause_queue("held")
    await set_times(session, "jobs", in_time.id, started_at=150)
    await set_times(session, "jobs", overdue.id, started_at=170)
    await set_times(session, "jobs", wanted_ended.id, started_at=500, cancel_requested_at=65)
    await set_times(session, "jobs", asked_just_now.id, cancel_requested_at=5)
    await set_times(session, "jobs", endless.id, started_at=86_500)
    await set_times(session, "jobs", on_lost.id, started_at=300)
    await set_times(session, "jobs", on_unknown.id, started_at=300)
    await db.deregister_node(stopped)
    await set_times(session, "nodes", stopped, stopped_at=8)
    await set_times(session, "nodes", lost, heartbeat_at=40)
    await session.execute("delete from haulage.nodes where name = 'unknown'")
    for job_id, seconds in ((waits, 3_700), (held, 9_000), (fresh, 3_000)):
        await is_due(session, job_id, seconds)

    rows = {row["job_id"]: row for row in await view(session, "stuck_candidates")}

    assert {job_id: (row["status"], row["reason"]) for job_id, row in rows.items()} == {
        overdue.id: ("running", "timeout_passed"),
        wanted_ended.id: ("running", "cancel_unheard"),
        endless.id: ("running", "runs_for_a_day"),
        on_lost.id: ("running", "node_lost"),
        on_stopped.id: ("running", "node_stopped"),
        on_unknown.id: ("running", "node_unknown"),
        waits: ("pending", "due_for_an_hour"),
    }
    since = {
        overdue.id: 10,
        wanted_ended.id: 65,
        endless.id: 86_500,
        on_lost.id: 10,
        on_stopped.id: 8,
        on_unknown.id: 300,
        waits: 3_700,
    }
    for job_id, seconds in since.items():
        assert is_about(rows[job_id]["since_seconds"], seconds), rows[job_id]
    assert rows[on_lost.id]["node_name"] == "lost"
    assert rows[on_unknown.id]["node_name"] is None


# -- nodes -------------------------------------------------------------------------------------


async def test_nodes_show_their_state_and_what_they_run(
    db: PostgresJobsDB, session: Session
) -> None:
    alive, idle, lost, stopped = [
        await node(db, name, capacity=n) for n, name in enumerate(("alive", "idle", "lost", "off"))
    ]
    for _ in range(2):
        await claimed(db, alive)
    await complete(db, await claimed(db, alive))
    await claimed(db, lost)
    await db.drain_node(idle)
    await db.deregister_node(stopped)
    await set_times(session, "nodes", lost, heartbeat_at=70)
    await set_times(session, "nodes", alive, heartbeat_at=5)

    rows = {row["name"]: row for row in await view(session, "nodes")}

    columns = ("state", "running", "capacity", "pid", "version", "lease_seconds")
    assert {name: picked([row], *columns)[0] for name, row in rows.items()} == {
        "alive": ("active", 2, 0, 77, "1.2", 60),
        "idle": ("draining", 0, 1, 77, "1.2", 60),
        "lost": ("lost", 1, 2, 77, "1.2", 60),
        "off": ("stopped", 0, 3, 77, "1.2", 60),
    }
    assert is_about(rows["alive"]["heartbeat_seconds"], 5)
    assert {name for name, row in rows.items() if row["stopped_at"] is not None} == {"off"}
    assert rows["alive"]["node_id"] == alive
