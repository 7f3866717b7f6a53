"""Views of jobs and of what they did: each number beside one that was worked out by hand."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from operator import itemgetter
from uuid import UUID

import pytest
from contract.steps import CALL, claimed, complete, keyed, new_job, new_node
from reporting.rows import (
    Session,
    ended,
    is_about,
    now,
    only,
    picked,
    set_times,
    view,
)

from app.db.postgres.adapter import PostgresJobsDB
from app.domain.jobs import Cause, ErrorInfo, Limits, Progress, Usage
from app.domain.keys import Scope, new_key
from app.domain.lifecycle import Died, Raised, decide
from app.domain.sharing import FailedCalls

DAY = timedelta(days=1)


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


# -- throughput and latency --------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "America/New_York"])
async def test_hours_and_days_add_up_in_every_time_zone(session: Session, zone: str) -> None:
    await session.execute(f"set timezone = '{zone}'")
    midnight = (await now(session)).replace(hour=0, minute=0, second=0, microsecond=0)
    before = midnight - DAY
    hour = timedelta(hours=1)
    await ended(session, "x", before + 3 * hour, wait=1, run=10)
    await ended(session, "x", before + 4 * hour - timedelta(microseconds=1), wait=2, run=20)
    await ended(session, "x", before + 4 * hour, wait=4, run=40, status="failed")
    await ended(session, "y", before + 4 * hour, wait=8, run=80, status="cancelled")
    await ended(session, "x", before - timedelta(microseconds=1), wait=16, run=160)

    hours, days = await view(session, "hourly_throughput"), await view(session, "daily_throughput")

    counts = ("finished", "completed", "failed", "cancelled", "wait_seconds", "run_seconds")
    hours.sort(key=itemgetter("hour", "pipeline"))
    assert picked(hours, "hour", "pipeline", *counts) == [
        (before - hour, "x", 1, 1, 0, 0, 16, 160),
        (before + 3 * hour, "x", 2, 2, 0, 0, 3, 30),
        (before + 4 * hour, "x", 1, 0, 1, 0, 4, 40),
        (before + 4 * hour, "y", 1, 0, 0, 1, 8, 80),
    ]
    days.sort(key=itemgetter("day", "pipeline"))
    assert picked(days, "day", "pipeline", *counts) == [
        (before - DAY, "x", 1, 1, 0, 0, 16, 160),
        (before, "x", 3, 2, 1, 0, 7, 70),
        (before, "y", 1, 0, 0, 1, 8, 80),
    ]
    some = await session.fetch(
        "select pipeline from reporting.daily_throughput where day >= $1 order by 1", before
    )
    assert [row[0] for row in some] == ["x", "y"]


async def test_throughput_is_empty_when_nothing_has_ended(
    db: PostgresJobsDB, session: Session
) -> None:
    await claimed(db)
    await new_job(db)

    assert await view(session, "hourly_throughput") == []
    assert await view(session, "daily_throughput") == []


async def test_percentiles_are_those_of_the_completed_jobs_of_the_time(session: Session) -> None:
    end = await now(session) - timedelta(hours=1)
    for n in range(1, 11):
        await ended(session, "x", end, wait=n, run=10 * n)
    await ended(session, "x", end, wait=1_000, run=1_000, status="failed")
    await ended(session, "x", end - 2 * DAY, wait=21, run=300)
    await ended(session, "x", end - 8 * DAY, wait=5_000, run=5_000)
    await ended(session, "y", end - 2 * DAY, wait=3, run=4)

    # Linear between the values: of 1 to 10 the share 0.9 is at place 1 + 0.9 x 9 = 9.1.
    of_day = {"p50": "5.5", "p90": "9.1", "p95": "9.55", "p99": "9.91"}
    [row] = await view(session, "pipeline_latency_24h")
    assert row == {
        "pipeline": "x",
        "n": 10,
        **{f"wait_{p}_seconds": Decimal(value) for p, value in of_day.items()},
        **{f"run_{p}_seconds": 10 * Decimal(value) for p, value in of_day.items()},
    }
    # Eleven values: place 1 + 0.9 x 10 = 10 is the 10, then towards 21.
    of_week = {"p50": "6", "p90": "10", "p95": "15.5", "p99": "19.9"}
    first, second = await view(session, "pipeline_latency_7d")
    assert [first[f"wait_{p}_seconds"] for p in of_week] == [Decimal(v) for v in of_week.values()]
    assert (first["n"], first["run_p99_seconds"]) == (11, 280)
    assert picked([second], "pipeline", "n", "wait_p50_seconds", "run_p99_seconds") == [
        ("y", 1, 3, 4)
    ]


# -- failures ----------------------------------------------------------------------------------


async def test_failure_rates_leave_cancelled_jobs_out(session: Session) -> None:
    today = await now(session) - timedelta(hours=1)
    for day, status in (
        *((today, "completed"),) * 3,
        (today, "failed"),
        (today, "cancelled"),
        (today - 2 * DAY, "failed"),
        (today - 8 * DAY, "failed"),
    ):
        await ended(session, "x", day, status=status)
    await ended(session, "y", today - 2 * DAY)

    assert [tuple(row.values()) for row in await view(session, "failure_rates")] == [
        ("x", 3, 1, Decimal("0.25"), 3, 2, Decimal("0.4")),
        ("y", 0, 0, None, 1, 0, Decimal(0)),
    ]


async def test_failures_are_grouped_by_the_first_line_of_their_message(session: Session) -> None:
    last = await now(session) - timedelta(hours=1)
    await ended(session, "x", last - 2 * DAY, status="failed", error="no column\nrow 1")
    newest = await ended(session, "x", last, status="failed", error="\n no column\nrow 2")
    await ended(session, "x", last, status="failed", error="no row")
    await ended(session, "y", last, status="failed", error="no column")
    await ended(session, "x", last - 8 * DAY, status="failed", error="no column")
    await ended(session, "x", last, error="a warning of a completed job")

    rows = await view(session, "failures_grouped")

    columns = ("pipeline", "cause", "error_class", "error", "jobs", "jobs_24h")
    assert picked(rows, *columns) == [
        ("x", "exception", "ValueError", "no column", 2, 1),
        ("x", "exception", "ValueError", "no row", 1, 1),
        ("y", "exception", "ValueError", "no column", 1, 1),
    ]
    group = rows[0]
    assert picked([group], "first_seen_at", "last_seen_at", "last_job_id") == [
        (last - 2 * DAY, last, newest)
    ]


async def test_a_job_counts_for_the_error_of_its_last_attempt(
    db: PostgresJobsDB, session: Session
) -> None:
    node_id = await new_node(db)
    job = await claimed(db, node_id, max_attempts=2)
    await db.finish_job(job.claim, decide(Raised(ErrorInfo("KeyError", "first")), job))
    await session.execute("update haulage.jobs set run_at = now()")
    again = await db.claim_next_pending_job(node_id)
    assert again is not None
    await db.finish_job(again.claim, decide(Raised(ErrorInfo("TypeError", "second")), again))

    rows = await view(session, "failures_grouped")

    assert picked(rows, "error_class", "error", "jobs") == [("TypeError", "second", 1)]


# -- who used what -----------------------------------------------------------------------------


async def test_use_is_told_for_keys_and_for_others(db: PostgresJobsDB, session: Session) -> None:
    end = await now(session) - timedelta(hours=1)
    busy, idle = [await db.insert_key(name, new_key(), Scope.SUBMIT) for name in ("busy", "idle")]
    for status, run in (("completed", 10), ("completed", 20), ("failed", 5), ("cancelled", 1)):
        await ended(session, "x", end, status=status, run=run, submitted_by=busy.id)
    await ended(session, "x", end - 8 * DAY, run=1_000, submitted_by=busy.id)
    await ended(session, "x", end - DAY, run=7)
    await claimed(db, submitted_by=busy.id)
    for _ in range(2):
        await new_job(db, submitted_by=busy.id)
    await new_job(db)
    await db.revoke_key(idle.id)

    rows = {row["submitted_by"]: row for row in await view(session, "submitter_use")}

    columns = (
        "key_name", "pending", "running", "finished_7d", "completed_7d", "failed_7d",
        "cancelled_7d", "run_seconds_7d", "last_finished_at",
    )  # fmt: skip
    assert {who: picked([row], *columns)[0] for who, row in rows.items()} == {
        busy.id: ("busy", 2, 1, 4, 2, 1, 1, 36, end),
        idle.id: ("idle", 0, 0, 0, 0, 0, 0, 0, None),
        "": (None, 1, 0, 1, 1, 0, 0, 7, end - DAY),
    }
    assert rows[idle.id]["key_revoked_at"] is not None
    assert rows[busy.id]["key_revoked_at"] is None


async def test_calls_are_summed_by_job_stage_and_model(
    db: PostgresJobsDB, session: Session
) -> None:
    node_id = await new_node(db)
    job, other = await claimed(db, node_id, pipeline="x"), await claimed(db, node_id)
    await db.save_call(job.claim, CALL)
    await db.save_call(job.claim, replace(CALL, key="c1" * 32))
    await db.save_call(job.claim, replace(CALL, key="c2" * 32, model="large", cost=1.5))
    await db.save_call(other.claim, replace(CALL, key="c3" * 32, stage="assign"))
    await db.count_cached_calls(job.claim, "name", "small", 5)
    await db.count_failed_calls(job.claim, "name", "small", FailedCalls(1, 10, 0, 0.25))

    rows = await view(session, "llm_usage")

    columns = (
        "job_id", "pipeline", "stage", "model", "calls", "cached_calls", "prompt_tokens",
        "completion_tokens", "cost",
    )  # fmt: skip
    assert sorted(picked(rows, *columns)) == sorted(
        [
            (job.id, "x", "name", "large", 1, 0, 120, 30, Decimal("1.5")),
            (job.id, "x", "name", "small", 3, 5, 250, 60, Decimal("0.253")),
            (other.id, "by-default", "assign", "small", 1, 0, 120, 30, Decimal("0.0015")),
        ]
    )
    assert all(row["first_at"] <= row["last_at"] for row in rows)
