"""Views of throughput, latency, failures and use: each number beside one worked out by hand."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from operator import itemgetter

import pytest
from contract.steps import CALL, claimed, complete, new_job, new_node
from reporting.rows import (
    Session,
    ended,
    now,
    picked,
    view,
)

from app.db.postgres.adapter import PostgresJobsDB
from app.domain.jobs import ErrorInfo
from app.domain.keys import Scope, new_key
from app.domain.lifecycle import Raised, decide
from app.domain.sharing import FailedCalls

DAY = timedelta(days=1)


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
    await complete(db, other)

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
    assert {row["job_id"]: row["finished_at"] is None for row in rows} == {
        job.id: True,
        other.id: False,
    }
