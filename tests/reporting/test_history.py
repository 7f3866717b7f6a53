"""Views of jobs and of what they did: each number beside one that was worked out by hand."""

from decimal import Decimal
from operator import itemgetter
from uuid import UUID

import pytest
from contract.steps import claimed, complete, keyed, new_job, new_node
from reporting.rows import (
    Session,
    is_about,
    only,
    picked,
    set_times,
    view,
)

from app.db.postgres.adapter import PostgresJobsDB
from app.domain.jobs import Cause, ErrorInfo, Limits, Progress, Usage
from app.domain.lifecycle import Died, Raised, decide

# -- jobs --------------------------------------------------------------------------------------


async def test_a_job_is_one_flat_row(db: PostgresJobsDB, session: Session) -> None:
    options = keyed(
        "once",
        pipeline="x",
        queue="q",
        priority=3,
        max_attempts=2,
        limits=Limits(100.5, 20, 30, 2**28),
        tags=("a", "b c"),
        metadata={"order": 7},
        submitted_by="somebody",
    )
    job_id = await db.insert_pending_job({"secret": 1}, options)
    node_id = await new_node(db)
    job = await db.claim_next_pending_job(node_id)
    assert job is not None
    await complete(db, job)
    await set_times(
        session, "jobs", job_id, created_at=70, run_at=60, started_at=52.5, finished_at=40.25
    )
    stored = await session.fetchrow("select * from haulage.jobs")
    assert stored is not None
    assert options.fingerprint is not None

    assert await only(session, "jobs") == {
        "id": job_id,
        "pipeline": "x",
        "queue": "q",
        "status": "completed",
        "priority": 3,
        "run_at": stored["run_at"],
        "attempt": 1,
        "max_attempts": 2,
        "node_losses": 0,
        "claim_no": 1,
        "node_id": node_id,
        "created_at": stored["created_at"],
        "started_at": stored["started_at"],
        "finished_at": stored["finished_at"],
        "cancel_requested_at": None,
        "wait_seconds": Decimal("7.500"),
        "run_seconds": Decimal("12.250"),
        "timeout_seconds": Decimal("100.5"),
        "start_timeout_seconds": 20,
        "stall_seconds": 30,
        "memory_limit_bytes": 2**28,
        "batch_id": None,
        "dataset_id": None,
        "idempotency_key": "once",
        "payload_hash": options.fingerprint.hex(),
        "submitted_by": "somebody",
        "tags": "a,b c",
        "metadata": '{"order": 7}',
    }


async def test_every_column_of_the_table_shows(session: Session) -> None:
    columns = await session.fetch(
        "select attname as name from pg_attribute"
        " where attrelid = $1::text::regclass and attnum > 0 and not attisdropped",
        "haulage.jobs",
    )

    shown = await session.prepare("select * from reporting.jobs")
    assert {row["name"] for row in columns} <= {a.name for a in shown.get_attributes()}


@pytest.mark.parametrize(
    ("status", "ago", "wait", "run"),
    [
        ("pending", {"created_at": 90, "run_at": 80}, 80, None),
        ("pending", {"created_at": 90, "run_at": -60}, 0, None),
        ("pending", {"created_at": 500, "run_at": 40, "started_at": 300}, 40, None),
        ("running", {"created_at": 90, "run_at": 90, "started_at": 30}, 60, 30),
        ("cancelled", {"created_at": 90, "run_at": 90, "finished_at": 20}, 70, None),
        (
            "cancelled",
            {"created_at": 900, "run_at": 90, "started_at": 300, "finished_at": 20},
            70,
            None,
        ),
        (
            "cancelled",
            {"created_at": 900, "run_at": -90, "started_at": 300, "finished_at": 20},
            0,
            None,
        ),
        ("failed", {"created_at": 900, "run_at": 90, "started_at": 80, "finished_at": 20}, 10, 60),
    ],
    ids=[
        "due",
        "scheduled",
        "due again after an attempt",
        "running",
        "cancelled before it started",
        "cancelled before its second attempt",
        "cancelled before its second attempt was due",
        "failed at its second attempt",
    ],
)
async def test_waiting_and_running_are_those_of_the_latest_claim_when_a_job_is(
    db: PostgresJobsDB,
    session: Session,
    status: str,
    ago: dict[str, float],
    wait: float,
    run: float | None,
) -> None:
    job_id = await new_job(db)
    await session.execute(
        "update haulage.jobs set node_id = gen_random_uuid(), status = $1", status
    )
    await set_times(session, "jobs", job_id, **ago)

    row = await only(session, "jobs")

    assert is_about(row["wait_seconds"], wait)
    assert row["run_seconds"] is None if run is None else is_about(row["run_seconds"], run)


async def test_a_job_that_was_cancelled_instead_of_a_further_attempt_shows_the_last_one(
    db: PostgresJobsDB, session: Session
) -> None:
    job = await claimed(db, max_attempts=2)
    await set_times(session, "jobs", job.id, created_at=90, run_at=80, started_at=50)
    await db.cancel_job(job.id)
    died = Died(Cause.SIGNAL, "ended by SIGTERM", signal=15)
    assert await db.finish_job(job.claim, decide(died, job, jitter=0.0))

    row = await only(session, "jobs")

    assert row["status"] == "cancelled"
    assert is_about(row["wait_seconds"], 30)
    assert is_about(row["run_seconds"], 50)


async def test_every_tag_has_a_row(db: PostgresJobsDB, session: Session) -> None:
    first, second = await new_job(db, tags=("a", "b,c")), await new_job(db, tags=("a",))
    await new_job(db)

    rows = await view(session, "job_tags")

    expected = [(first, "a"), (first, "b,c"), (second, "a")]
    assert sorted(picked(rows, "job_id", "tag")) == sorted(expected)


# -- attempts and milestones -------------------------------------------------------------------


async def test_attempts_show_what_they_died_of_and_used(
    db: PostgresJobsDB, session: Session
) -> None:
    node_id = await new_node(db)
    job = await claimed(db, node_id, pipeline="x", queue="q", max_attempts=2)
    await db.report_started(job.claim, 99)
    verdict = decide(Died(Cause.OUT_OF_MEMORY, "over 256 MiB", signal=9), job, jitter=0.0)
    await db.finish_job(job.claim, verdict, Usage(2**28, 12.3456))
    await session.execute("update haulage.jobs set run_at = now()")
    again = await db.claim_next_pending_job(node_id)
    assert again is not None
    error = ErrorInfo("ValueError", "no", "Traceback")
    await db.finish_job(again.claim, decide(Raised(error), again))
    await session.execute(
        "update haulage.job_attempts set started_at = ended_at - interval '1.5 seconds' * claim_no"
    )

    first, second = await view(session, "attempts")

    columns = (
        "job_id", "claim_no", "attempt", "pipeline", "queue", "node_id", "node_name", "pid",
        "outcome", "cause", "exit_code", "signal", "error_class", "error_message", "traceback",
        "peak_memory_bytes", "cpu_seconds", "run_seconds",
    )  # fmt: skip
    on_node = ("x", "q", node_id, "test")
    died = ("failed", "out_of_memory", None, 9, "WorkerDied", "over 256 MiB", None)
    raised = ("failed", "exception", None, None, "ValueError", "no", "Traceback")
    assert picked([first, second], *columns) == [
        (job.id, 1, 1, *on_node, 99, *died, 2**28, Decimal("12.346"), Decimal("1.5")),
        (job.id, 2, 2, *on_node, None, *raised, None, None, Decimal(3)),
    ]


async def test_an_attempt_stays_when_its_node_is_forgotten_and_is_open_while_it_runs(
    db: PostgresJobsDB, session: Session
) -> None:
    job = await claimed(db)
    await db.report_progress(job.claim, Progress(0.5, "middle", "half"))
    await session.execute("delete from haulage.nodes")

    row = await only(session, "attempts")

    shown = picked([row], "job_id", "node_name", "outcome", "ended_at", "progress_stage")
    assert shown == [(job.id, None, None, None, "middle")]
    assert is_about(row["run_seconds"], 0)


async def test_a_stage_lasts_until_the_next_one_or_the_end(
    db: PostgresJobsDB, session: Session
) -> None:
    node_id = await new_node(db)
    job, other = await claimed(db, node_id, pipeline="x"), await claimed(db, node_id)
    for fraction, stage in ((0.1, "read"), (0.4, "think")):
        progress = Progress(fraction, stage, f"{stage}s")
        await db.report_progress(job.claim, progress, is_milestone=True)
    await db.report_progress(other.claim, Progress(0.2, "wait"), is_milestone=True)
    await complete(db, job)
    events = await session.fetch(
        "select id, stage from haulage.job_events where job_id = $1", UUID(job.id)
    )
    ago = {"pending": 100, "running": 90, "read": 80, "think": 45.5, "completed": 15}
    async with session.transaction():  # one instant to count from
        for event in events:
            await set_times(session, "job_events", event["id"], created_at=ago[event["stage"]])

    rows = sorted(await view(session, "milestones"), key=itemgetter("event_id"))

    columns = ("pipeline", "claim_no", "attempt", "stage", "fraction", "message", "stage_seconds")
    assert picked(rows, "job_id", *columns) == [
        (job.id, "x", 1, 1, "read", Decimal("0.1"), "reads", Decimal("34.500")),
        (job.id, "x", 1, 1, "think", Decimal("0.4"), "thinks", Decimal("30.500")),
        (other.id, "by-default", 1, 1, "wait", Decimal("0.2"), None, None),
    ]
