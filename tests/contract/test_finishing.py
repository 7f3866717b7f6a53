"""The end of an attempt: all of it or nothing, once, whoever writes it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from contract.steps import (
    LINE,
    PROGRESS,
    RAISED,
    claimed,
    complete,
    given_back,
    new_job,
    new_node,
)
from contract.stores import Store

from app.db.interface import DBInterface
from app.domain.errors import LeaseLostError, TooLargeError
from app.domain.jobs import (
    MAX_CHECKPOINT_BYTES,
    Attempt,
    AttemptOutcome,
    Cause,
    Claim,
    ClaimedJob,
    ErrorInfo,
    JobStatus,
    LogLine,
    Progress,
    Usage,
)
from app.domain.lifecycle import (
    MAX_NODE_LOSSES,
    Cancelled,
    Completed,
    Died,
    NodeLost,
    NotStarted,
    Overran,
    Raised,
    Released,
    Verdict,
    decide,
)

KILLED = Died(Cause.SIGNAL, "worker was ended by SIGKILL", signal=9)


async def again(db: DBInterface, node: str, job: ClaimedJob) -> ClaimedJob:
    """The next claim of the same job."""
    claim = await db.claim_next_pending_job(node)
    assert claim is not None
    assert (claim.id, claim.claim_no) == (job.id, job.claim_no + 1)
    return claim


def due_at_once(verdict: Verdict) -> Verdict:
    return replace(verdict, delay_seconds=0.0)


async def test_a_completed_job_keeps_result_usage_and_attempt(db: DBInterface) -> None:
    job = await claimed(db)
    await db.report_started(job.claim, 4_711)

    verdict = decide(Completed('{"a": 1}'), job)
    assert await db.finish_job(job.claim, verdict, Usage(123_456_789_012, 1.25)) is True

    ended = await db.get_job(job.id)
    assert (ended.status, ended.attempt, ended.pid) == (JobStatus.COMPLETED, 1, 4_711)
    assert (ended.error, ended.cause) == (None, None)
    assert ended.finished_at is not None
    result = await db.get_result(job.id)
    assert result is not None
    assert json.loads(result) == {"a": 1}
    [attempt] = await db.list_attempts(job.id)
    assert attempt == Attempt(
        claim_no=1,
        attempt=1,
        node_id=ended.node_id or "",
        pid=4_711,
        started_at=job.claimed_at,
        ended_at=ended.finished_at,
        outcome=AttemptOutcome.COMPLETED,
        cause=None,
        exit_code=None,
        signal=None,
        error_class=None,
        error_message=None,
        traceback=None,
        peak_memory_bytes=123_456_789_012,
        cpu_seconds=1.25,
    )


async def test_progress_is_whole_when_the_job_completed(db: DBInterface) -> None:
    job = await claimed(db)
    await db.report_progress(job.claim, PROGRESS)

    await complete(db, job)

    assert (await db.get_job(job.id)).progress == replace(PROGRESS, fraction=1.0)


async def test_progress_stays_where_it_was_when_the_job_failed(db: DBInterface) -> None:
    job = await claimed(db)
    await db.report_progress(job.claim, PROGRESS)

    await db.finish_job(job.claim, decide(RAISED, job))

    assert (await db.get_job(job.id)).progress == PROGRESS


@pytest.mark.parametrize(
    ("outcome", "error", "exit_code", "signal"),
    [
        (RAISED, ErrorInfo("ValueError", "no", "Traceback"), None, None),
        (Raised(ErrorInfo("E", "", None)), ErrorInfo("E", "", None), None, None),
        (KILLED, ErrorInfo("WorkerDied", "worker was ended by SIGKILL", None), None, 9),
        (Died(Cause.EXIT_CODE, "exit", 70), ErrorInfo("WorkerDied", "exit", None), 70, None),
        (Overran(Cause.STALLED, "idle"), ErrorInfo("LimitExceeded", "idle", None), None, None),
    ],
    ids=["raised", "without a message", "killed", "exited", "overran"],
)
async def test_a_failed_job_tells_why(
    db: DBInterface, outcome: Any, error: ErrorInfo, exit_code: int | None, signal: int | None
) -> None:
    job = await claimed(db)

    assert await db.finish_job(job.claim, decide(outcome, job)) is True

    failed = await db.get_job(job.id)
    assert (failed.status, failed.error, failed.cause) == (JobStatus.FAILED, error, outcome.cause)
    assert await db.get_result(job.id) is None
    [attempt] = await db.list_attempts(job.id)
    assert (attempt.outcome, attempt.cause) == (AttemptOutcome.FAILED, outcome.cause)
    assert (attempt.exit_code, attempt.signal) == (exit_code, signal)
    assert (attempt.error_class, attempt.error_message or "") == (error.error_class, error.message)


async def test_a_cancelled_job_has_no_error(db: DBInterface) -> None:
    job = await claimed(db)

    await db.finish_job(job.claim, decide(Cancelled(), job))

    ended = await db.get_job(job.id)
    assert (ended.status, ended.cause) == (JobStatus.CANCELLED, Cause.CANCELLED)
    assert ended.error is None


async def test_every_attempt_keeps_its_own_error(db: DBInterface) -> None:
    node = await new_node(db)
    job = await claimed(db, node, max_attempts=3)
    for number in (1, 2, 3):
        error = ErrorInfo(f"Error{number}", f"message {number}", f"trace {number}")
        await db.finish_job(job.claim, due_at_once(decide(Raised(error), job)))
        if number < 3:
            job = await again(db, node, job)

    attempts = await db.list_attempts(job.id)
    assert [a.attempt for a in attempts] == [a.claim_no for a in attempts] == [1, 2, 3]
    assert [a.error_class for a in attempts] == ["Error1", "Error2", "Error3"]
    assert [a.traceback for a in attempts] == ["trace 1", "trace 2", "trace 3"]
    ended = await db.get_job(job.id)
    assert ended.status is JobStatus.FAILED
    assert ended.error == ErrorInfo("Error3", "message 3", "trace 3")


async def test_a_postponed_job_waits_its_delay_on_the_store_s_clock(db: DBInterface) -> None:
    node = await new_node(db)
    job = await claimed(db, node, max_attempts=2)

    await db.finish_job(job.claim, replace(decide(RAISED, job), delay_seconds=3_600.0))

    waiting = await db.get_job(job.id)
    assert (waiting.status, waiting.attempt) == (JobStatus.PENDING, 1)
    assert waiting.finished_at is None
    [attempt] = await db.list_attempts(job.id)
    assert attempt.ended_at is not None
    assert waiting.run_at == attempt.ended_at + timedelta(hours=1)
    assert await db.claim_next_pending_job(node) is None


async def test_a_second_end_changes_nothing(db: DBInterface) -> None:
    job = await claimed(db)
    assert await complete(db, job, '"first"') is True
    before = await db.get_job(job.id)

    assert await complete(db, job, '"second"') is False
    assert await db.finish_job(job.claim, decide(RAISED, job)) is False

    assert await db.get_job(job.id) == before
    assert await db.get_result(job.id) == b'"first"'


async def test_nobody_else_is_told_that_he_settled_a_claim_that_ended_alike(
    db: DBInterface,
) -> None:
    job = await claimed(db, max_attempts=2)
    verdict, usage = decide(RAISED, job), Usage(123_456, 0.123_456)
    assert await db.finish_job(job.claim, verdict, usage) is True

    # The manager knows of no usage, another process has its own, another claim is another's.
    assert await db.finish_job(job.claim, verdict) is False
    assert await db.finish_job(job.claim, verdict, Usage(123_456, 0.2)) is False
    assert await db.finish_job(Claim(job.id, 2), verdict, usage) is False
    assert await db.finish_job(job.claim, decide(Completed("1"), job), usage) is False


async def test_one_end_wins_when_many_write_it_at_once(store: Store, db: DBInterface) -> None:
    job = await claimed(db)
    writers = [store.connect() for _ in range(6)]

    won = await asyncio.gather(
        *(complete(writer, job, f'"{n}"') for n, writer in enumerate(writers))
    )

    assert won.count(True) == 1
    assert await db.get_result(job.id) == f'"{won.index(True)}"'.encode()
    assert len(await db.list_attempts(job.id)) == 1


async def test_an_unknown_claim_cannot_be_ended(db: DBInterface) -> None:
    job = await claimed(db)

    assert await db.finish_job(Claim(job.id, 2), decide(Completed("1"), job)) is False


# -- refunds and lost nodes -------------------------------------------------------------------


async def test_the_attempt_is_refunded_when_the_job_was_given_back(db: DBInterface) -> None:
    node = await new_node(db)
    job = await claimed(db, node)
    for _ in range(3):
        await given_back(db, job)
        waiting = await db.get_job(job.id)
        assert (waiting.status, waiting.attempt, waiting.node_losses) == (JobStatus.PENDING, 0, 0)
        job = await again(db, node, job)
        assert (job.attempt, job.max_attempts) == (1, 1)

    await complete(db, job)
    outcomes = [attempt.outcome for attempt in await db.list_attempts(job.id)]
    assert outcomes == [AttemptOutcome.RELEASED] * 3 + [AttemptOutcome.COMPLETED]
    assert [attempt.attempt for attempt in await db.list_attempts(job.id)] == [1] * 4


async def test_lost_nodes_are_counted_apart_until_the_cap_ends_the_job(
    store: Store, db: DBInterface
) -> None:
    job_id = await new_job(db)
    for losses in range(MAX_NODE_LOSSES):
        node = await new_node(db)
        job = await db.claim_next_pending_job(node)
        assert job is not None
        assert (job.attempt, job.node_losses) == (1, losses)
        await store.end_lease(node)
        assert await db.rescue_job(job.claim, decide(NodeLost(node), job)) is True

    ended = await db.get_job(job_id)
    assert (ended.status, ended.node_losses) == (JobStatus.FAILED, MAX_NODE_LOSSES)
    assert ended.cause is Cause.NODE_LOST
    outcomes = [attempt.outcome for attempt in await db.list_attempts(job_id)]
    assert outcomes == [AttemptOutcome.LOST] * MAX_NODE_LOSSES


async def test_a_process_that_did_not_come_up_counts_like_a_lost_node(db: DBInterface) -> None:
    node = await new_node(db)
    job = await claimed(db, node)

    await db.finish_job(job.claim, due_at_once(decide(NotStarted("no memory"), job)))

    job = await again(db, node, job)
    assert (job.attempt, job.node_losses) == (1, 1)


async def test_a_poison_job_ends_when_its_attempts_are_used_up(db: DBInterface) -> None:
    node = await new_node(db)
    job = await claimed(db, node, max_attempts=3)
    for _ in range(2):
        await db.finish_job(job.claim, due_at_once(decide(KILLED, job)))
        job = await again(db, node, job)

    await db.finish_job(job.claim, decide(KILLED, job))

    ended = await db.get_job(job.id)
    assert (ended.status, ended.attempt) == (JobStatus.FAILED, 3)
    assert ended.error is not None
    assert "SIGKILL" in ended.error.message


# -- finish against rescue --------------------------------------------------------------------


@pytest.mark.parametrize("finish_comes_first", [True, False], ids=["finish first", "rescue first"])
async def test_whoever_comes_first_wins_when_a_job_is_finished_and_rescued_at_once(
    store: Store, db: DBInterface, *, finish_comes_first: bool
) -> None:
    node = await new_node(db)
    job = await claimed(db, node)
    await store.end_lease(node)
    rescuer = store.connect()

    calls = [complete(db, job), rescuer.rescue_job(job.claim, decide(NodeLost(node), job))]
    if not finish_comes_first:
        calls.reverse()

    assert await store.in_turn(job.id, *calls) == (True, False)
    ended = await db.get_job(job.id)
    assert ended.status is (JobStatus.COMPLETED if finish_comes_first else JobStatus.PENDING)
    assert (await db.get_result(job.id) is not None) is finish_comes_first
    [attempt] = await db.list_attempts(job.id)
    expected = AttemptOutcome.COMPLETED if finish_comes_first else AttemptOutcome.LOST
    assert attempt.outcome is expected


async def test_a_late_finish_loses_when_the_job_was_rescued_and_claimed_anew(
    store: Store, db: DBInterface
) -> None:
    lost, other = await new_node(db), await new_node(db)
    job = await claimed(db, lost)
    await store.end_lease(lost)
    await db.rescue_job(job.claim, decide(NodeLost(lost), job))
    new = await again(db, other, job)

    assert await complete(db, job, '"late"') is False
    assert await complete(db, new, '"new"') is True
    assert await db.get_result(job.id) == b'"new"'


async def test_a_worker_may_finish_past_the_lease_when_nobody_rescued_its_job(
    store: Store, db: DBInterface
) -> None:
    node = await new_node(db)
    job = await claimed(db, node)
    await store.end_lease(node)

    await db.report_progress(job.claim, Progress(0.9))
    assert await complete(db, job) is True
    assert await db.list_lost_jobs(10) == []


# -- what a job says meanwhile ----------------------------------------------------------------


@pytest.mark.parametrize(
    "result",
    [
        None,
        False,
        "text",
        [],
        {"n": [2**53 + 1, 2**64, -(2**200), 10**999, 0.1]},
        {"text": "naïve 日本 🧵 \u2028 \x01\x7f", "ключ": {"": []}},
        {"rows": [{"i": i, "t": "x" * 80} for i in range(20_000)]},
    ],
    ids=["null", "false", "text", "list", "numbers", "unicode", "two megabytes"],
)
async def test_a_result_comes_back_unchanged(db: DBInterface, result: Any) -> None:
    job = await claimed(db)

    await complete(db, job, json.dumps(result))

    stored = await db.get_result(job.id)
    assert stored is not None
    assert json.loads(stored) == result


async def test_a_result_of_an_earlier_life_is_replaced(store: Store, db: DBInterface) -> None:
    # Two claims of one job may both have got as far as their result.
    node = await new_node(db)
    job = await claimed(db, node)
    await db.finish_job(job.claim, replace(decide(Released(), job), result='"old"'))
    job = await again(db, node, job)

    await complete(db, job, '"new"')

    assert await db.get_result(job.id) == b'"new"'


async def test_milestones_are_kept_in_order_over_all_attempts(db: DBInterface) -> None:
    node = await new_node(db)
    job = await claimed(db, node, max_attempts=2)
    await db.report_progress(job.claim, Progress(0.1, "load", "reading"), is_milestone=True)
    await db.report_progress(job.claim, Progress(0.2, "load", "still reading"))
    await db.report_progress(job.claim, Progress(0.5, "embed"), is_milestone=True)
    await db.finish_job(job.claim, due_at_once(decide(RAISED, job)))
    job = await again(db, node, job)
    assert (await db.get_job(job.id)).progress is None
    await db.report_progress(job.claim, Progress(0.0, "load"), is_milestone=True)

    milestones = await db.list_milestones(job.id)
    told = [(m.attempt, m.stage, m.fraction, m.message) for m in milestones]
    assert told == [(1, "load", 0.1, "reading"), (1, "embed", 0.5, None), (2, "load", 0.0, None)]
    assert [m.id for m in milestones] == sorted(m.id for m in milestones)
    assert (await db.get_job(job.id)).progress == Progress(0.0, "load")


async def test_progress_is_kept_when_its_message_has_twenty_thousand_characters(
    db: DBInterface,
) -> None:
    job = await claimed(db)
    progress = Progress(0.5, "s" * 200, "ä" * 20_000)

    await db.report_progress(job.claim, progress, is_milestone=True)

    assert (await db.get_job(job.id)).progress == progress


async def test_the_last_log_lines_come_in_the_order_in_which_they_were_written(
    db: DBInterface,
) -> None:
    job = await claimed(db)
    at = datetime(2024, 1, 1, tzinfo=UTC)
    # Clocks may step back; the order is that of writing.
    lines = [
        LogLine(n + 1, 20, "stdout", f"line {n} ü", at - timedelta(seconds=n)) for n in range(50)
    ]
    await db.append_logs(job.claim, lines[:20])
    await db.append_logs(job.claim, [])
    await db.append_logs(job.claim, lines[20:])

    assert await db.list_logs(job.id) == lines
    assert await db.list_logs(job.id, limit=7) == lines[-7:]
    assert await db.list_logs(job.id, limit=0) == []


async def test_log_lines_whose_write_is_repeated_are_kept_once(db: DBInterface) -> None:
    node = await new_node(db)
    job = await claimed(db, node, max_attempts=2)
    lines = [replace(LINE, number=n, text=f"line {n}") for n in range(1, 8)]
    await db.append_logs(job.claim, lines[:3])
    # The answer got lost: the same again, then with further ones, and with one that was dropped.
    await db.append_logs(job.claim, lines[:3])
    await db.append_logs(job.claim, lines[:5])
    await db.append_logs(job.claim, lines[6:])
    await db.append_logs(job.claim, [])
    await db.append_logs(job.claim, lines[6:])
    expected = [*lines[:5], lines[6]]
    assert await db.list_logs(job.id) == expected

    # Another attempt counts its lines anew.
    await db.finish_job(job.claim, due_at_once(decide(RAISED, job)))
    again = await db.claim_next_pending_job(node)
    assert again is not None
    await db.append_logs(again.claim, lines[:1])
    assert await db.list_logs(job.id) == [*expected, lines[0]]


@pytest.mark.parametrize(
    "write",
    [
        lambda db, claim: db.append_logs(claim, [LINE, replace(LINE, number=2)]),
        lambda db, claim: db.report_progress(claim, PROGRESS, is_milestone=True),
    ],
    ids=["logs", "milestone"],
)
async def test_a_write_that_is_repeated_before_the_first_one_commits_is_kept_once(
    store: Store, db: DBInterface, write: Callable[[DBInterface, Claim], Awaitable[None]]
) -> None:
    job = await claimed(db)

    async with store.holding(job.id):
        # As when a client gave up on a backend that hangs, and that goes on after all.
        writes = [asyncio.ensure_future(write(db, job.claim)) for _ in range(3)]
        await store.until_blocked(3)
    await asyncio.gather(*writes)

    kept = len(await db.list_logs(job.id)), len(await db.list_milestones(job.id))
    assert kept in ((2, 0), (0, 1))


async def test_a_checkpoint_is_found_and_replaced_by_a_later_attempt(db: DBInterface) -> None:
    node = await new_node(db)
    job = await claimed(db, node, max_attempts=2)
    assert await db.load_checkpoint(job.id, "embed") is None
    await db.save_checkpoint(job.claim, "embed", '{"n": 1}')
    await db.save_checkpoint(job.claim, "embed", '{"n": 2}')
    await db.save_checkpoint(job.claim, "ünïcode stage", "null")
    await db.finish_job(job.claim, due_at_once(decide(RAISED, job)))

    new = await again(db, node, job)
    assert await db.load_checkpoint(job.id, "embed") == '{"n": 2}'
    await db.save_checkpoint(new.claim, "embed", '{"n": 3}')
    with pytest.raises(LeaseLostError):
        await db.save_checkpoint(job.claim, "embed", '{"n": "late"}')

    assert await db.load_checkpoint(job.id, "embed") == '{"n": 3}'
    assert await db.load_checkpoint(job.id, "ünïcode stage") == "null"
    assert await db.load_checkpoint(job.id, "other") is None


async def test_a_checkpoint_of_two_megabytes_is_kept_and_one_above_the_limit_refused(
    db: DBInterface,
) -> None:
    job = await claimed(db)
    text = json.dumps(["x" * 2_000_000])
    await db.save_checkpoint(job.claim, "big", text)

    with pytest.raises(TooLargeError, match="checkpoint 'big'"):
        await db.save_checkpoint(job.claim, "big", "x" * (MAX_CHECKPOINT_BYTES + 1))

    assert await db.load_checkpoint(job.id, "big") == text
