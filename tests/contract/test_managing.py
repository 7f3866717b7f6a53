"""Lists, deletion, changes of many jobs, queues and nodes; races in both orders."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from contract.steps import (
    CALL,
    LINE,
    PROGRESS,
    RAISED,
    claimed,
    complete,
    new_job,
    new_node,
)
from contract.stores import COUNTED_WAKE_UPS, Store, bound

from app.db.ids import new_id
from app.db.interface import DBInterface
from app.domain.errors import (
    IllegalTransitionError,
    InvalidJsonError,
    JobDeletedError,
    JobNotFoundError,
    LeaseLostError,
    NodeGoneError,
    NodeNotFoundError,
)
from app.domain.jobs import Cause, ClaimedJob, ErrorInfo, JobStatus
from app.domain.lifecycle import Cancelled, Raised, decide
from app.domain.managing import BulkChange, JobCount, JobFilter, JobPage, JobSummary

EVERYTHING = JobFilter()
NOW = datetime.now(UTC)


async def listed(db: DBInterface, wanted: JobFilter, limit: int = 200) -> list[JobSummary]:
    """Everything that the pages hold together."""
    found: list[JobSummary] = []
    before = None
    while True:
        page = await db.list_jobs(wanted, limit=limit, before=before)
        assert len(page.jobs) <= limit
        found += page.jobs
        if page.before is None:
            return found
        assert before is None or page.before < before
        before = page.before


async def ids(db: DBInterface, **conditions: Any) -> list[str]:
    return [job.id for job in await listed(db, JobFilter(**conditions))]


async def ended(db: DBInterface, status: JobStatus, **options: Any) -> ClaimedJob:
    """A job with everything that a job can have, ended so."""
    job = await claimed(db, **options)
    await db.report_progress(job.claim, PROGRESS, is_milestone=True)
    await db.append_logs(job.claim, [LINE])
    await db.save_checkpoint(job.claim, "stage", "{}")
    await db.save_call(job.claim, CALL)
    match status:
        case JobStatus.COMPLETED:
            assert await complete(db, job)
        case JobStatus.FAILED:
            assert await db.finish_job(job.claim, decide(RAISED, job))
        case _:
            assert await db.finish_job(job.claim, decide(Cancelled(), job))
    return job


# -- lists ------------------------------------------------------------------------------------


async def test_pages_hold_every_job_once_and_the_newest_first(db: DBInterface) -> None:
    made = [await new_job(db) for _ in range(7)]

    first = await db.list_jobs(EVERYTHING, limit=3)
    assert [job.id for job in first.jobs] == made[:3:-1]
    # What comes or goes meanwhile moves nothing.
    await new_job(db)
    await db.cancel_job(made[5])
    await db.delete_job(made[5])
    second = await db.list_jobs(EVERYTHING, limit=3, before=first.before)
    assert [job.id for job in second.jobs] == made[3:0:-1]
    third = await db.list_jobs(EVERYTHING, limit=3, before=second.before)
    assert ([job.id for job in third.jobs], third.before) == ([made[0]], None)


async def test_a_page_that_is_just_full_is_the_last_one(db: DBInterface) -> None:
    made = [await new_job(db) for _ in range(3)]

    page = await db.list_jobs(EVERYTHING, limit=3)

    assert ([job.id for job in page.jobs], page.before) == (made[::-1], None)
    assert (await db.list_jobs(EVERYTHING, limit=3, before=made[0])).jobs == ()


async def test_a_job_is_told_with_its_latest_attempt(db: DBInterface) -> None:
    node = await new_node(db)
    job = await claimed(db, node, queue="q", priority=3, tags=("a", "b"), max_attempts=2)
    await db.report_progress(job.claim, PROGRESS)
    [running] = await listed(db, EVERYTHING)
    assert await db.finish_job(job.claim, decide(RAISED, job))
    [waiting] = await listed(db, EVERYTHING)

    assert (running.id, running.status, running.node_id) == (job.id, JobStatus.RUNNING, node)
    assert (running.progress_fraction, running.progress_stage) == (0.5, "middle")
    assert (running.queue, running.priority, running.tags) == ("q", 3, ("a", "b"))
    assert (running.attempt, running.max_attempts, running.error_class) == (1, 2, None)
    assert waiting.status is JobStatus.PENDING
    assert (waiting.error_class, waiting.error_message) == ("ValueError", "no")
    assert waiting.cause == Cause.EXCEPTION


async def test_every_filter_finds_its_own_and_no_others(
    store: Store, db: DBInterface, subtests: pytest.Subtests
) -> None:
    node = await new_node(db)
    running = (await claimed(db, node, pipeline="a", submitted_by="ann")).id
    failed = (await ended(db, JobStatus.FAILED, pipeline="a", tags=("x", "y"))).id
    completed = (await ended(db, JobStatus.COMPLETED, pipeline="b", queue="night")).id
    cancelled = await new_job(db, pipeline="b", tags=("x",))
    await db.cancel_job(cancelled)
    pending = await new_job(db, pipeline="b", submitted_by="ann")
    old = await new_job(db, pipeline="c")
    await store.age(old, 1_800.0)
    failed_on = (await db.get_job(failed)).node_id
    made_at = (await db.get_job(old)).created_at

    expected: list[tuple[dict[str, Any], set[str]]] = [
        ({}, {running, failed, completed, cancelled, pending, old}),
        ({"statuses": (JobStatus.FAILED,)}, {failed}),
        ({"statuses": (JobStatus.RUNNING,)}, {running}),
        ({"statuses": (JobStatus.COMPLETED, JobStatus.CANCELLED)}, {completed, cancelled}),
        ({"statuses": (JobStatus.PENDING, JobStatus.RUNNING)}, {running, pending, old}),
        ({"pipeline": "a"}, {running, failed}),
        ({"queue": "night"}, {completed}),
        ({"tags": ("x",)}, {failed, cancelled}),
        ({"tags": ("y", "x")}, {failed}),
        ({"tags": ("x", "z")}, set()),
        ({"node": node}, {running}),
        ({"node": node, "statuses": (JobStatus.RUNNING,)}, {running}),
        ({"node": failed_on, "statuses": (JobStatus.RUNNING,)}, set()),
        ({"node": failed_on}, {failed}),
        ({"node": "none"}, set()),
        ({"batch": new_id()}, set()),
        ({"created_before": made_at}, set()),
        ({"created_before": made_at + timedelta(microseconds=1)}, {old}),
        (
            {"created_after": made_at, "created_before": made_at + timedelta(1)},
            {running, failed, completed, cancelled, pending, old},
        ),
        (
            {"created_after": made_at + timedelta(microseconds=1)},
            {running, failed, completed, cancelled, pending},
        ),
        ({"created_after": NOW + timedelta(days=2)}, set()),
        ({"created_before": datetime(1, 1, 1, tzinfo=UTC)}, set()),
        ({"created_after": datetime(9999, 12, 31, tzinfo=UTC)}, set()),
        ({"submitted_by": "ann"}, {running, pending}),
        ({"submitted_by": ""}, {failed, completed, cancelled, old}),
        ({"error": "valueERROR: N"}, {failed}),
        ({"ids": (old, failed, "none", new_id())}, {old, failed}),
        ({"ids": ()}, set()),
        ({"ids": (old, failed), "pipeline": "a"}, {failed}),
        ({"pipeline": "'; drop table haulage.jobs; --"}, set()),
    ]
    for conditions, found in expected:
        with subtests.test(str(conditions)):
            # Whatever is missing or doubled shows, in pages of one as well.
            assert sorted(await ids(db, **conditions)) == sorted(found)
            pages = await listed(db, JobFilter(**conditions), limit=1)
            assert [job.id for job in pages] == sorted(found, reverse=True)
            assert await db.count_jobs(JobFilter(**conditions)) == JobCount(len(found), True)


async def test_what_an_error_says_is_taken_word_for_word(db: DBInterface) -> None:
    node = await new_node(db)
    job = await claimed(db, node, max_attempts=2)
    said = ErrorInfo("Odd", r"100% of a_b \ ÄRGER", "Traceback")
    assert await db.finish_job(job.claim, decide(Raised(said, Cause.EXCEPTION), job))

    for part in ("100%", "a_b", "\\", "ärger", "odd: 100"):
        assert await ids(db, error=part) == [job.id], part
    for part in ("1%0", "a%b", "axb", "a__b", "Traceback", "/", "odd:100"):
        assert await ids(db, error=part) == [], part


async def test_only_the_latest_attempt_has_an_error_to_find(db: DBInterface) -> None:
    job = await ended(db, JobStatus.FAILED)
    assert await ids(db, error="no") == [job.id]
    await db.retry_job(job.id)
    again = await db.claim_next_pending_job(await new_node(db))
    assert again is not None

    assert await ids(db, error="no") == []
    assert await complete(db, again)
    assert await ids(db, error="no") == []


async def test_a_search_looks_at_no_more_than_its_bound_and_goes_on_from_there(
    store: Store, db: DBInterface, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(monkeypatch, store, MAX_LOOKED_AT=4)
    rare = await new_job(db, pipeline="rare")
    for _ in range(9):
        await new_job(db, pipeline="common")
    wanted = JobFilter(pipeline="rare")

    page = await db.list_jobs(wanted, limit=2)
    assert page.jobs == ()
    assert page.before is not None
    assert await ids(db, pipeline="rare") == [rare]
    assert len(await listed(db, JobFilter(pipeline="common"), limit=3)) == 9
    assert await db.count_jobs(wanted) == JobCount(0, is_exact=False)
    assert await db.count_jobs(EVERYTHING) == JobCount(4, is_exact=False)


async def test_what_an_index_answers_is_found_behind_any_number_of_others(
    store: Store, db: DBInterface, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(monkeypatch, store, MAX_LOOKED_AT=2)
    failed = await ended(db, JobStatus.FAILED)
    for _ in range(4):
        await ended(db, JobStatus.COMPLETED)

    page = await db.list_jobs(JobFilter(statuses=(JobStatus.FAILED,)), limit=2)
    assert ([job.id for job in page.jobs], page.before) == ([failed.id], None)
    page = await db.list_jobs(JobFilter(error="valueerror"), limit=2)
    assert [job.id for job in page.jobs] == [failed.id]


async def test_nothing_is_counted_beyond_the_bound(
    store: Store, db: DBInterface, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(monkeypatch, store, MAX_COUNTED=3)
    for _ in range(3):
        await new_job(db)
    assert await db.count_jobs(EVERYTHING) == JobCount(3, is_exact=True)
    await new_job(db)
    assert await db.count_jobs(EVERYTHING) == JobCount(3, is_exact=False)


@pytest.mark.parametrize("name", ["pipeline", "queue", "submitted_by", "error"])
@pytest.mark.parametrize("text", ["a\x00b", "\ud800"])
async def test_a_text_that_no_row_can_hold_is_refused(
    db: DBInterface, name: str, text: str
) -> None:
    for search in (db.count_jobs, db.cancel_jobs, db.retry_jobs):
        with pytest.raises(InvalidJsonError) as caught:
            await search(JobFilter(**{name: text}))  # type: ignore[arg-type]
        assert caught.value.pointer == f"/{name}"
    with pytest.raises(InvalidJsonError):
        await db.list_jobs(JobFilter(tags=(text,)), limit=1)


async def test_payload_and_checkpoint_stages_are_told(db: DBInterface) -> None:
    job = await claimed(db)
    await db.save_checkpoint(job.claim, "zeta", "{}")
    await db.save_checkpoint(job.claim, "alpha", "{}")

    assert await db.get_payload(job.id) == "{}"
    assert await db.list_checkpoint_stages(job.id) == ["zeta", "alpha"]
    for unknown in (new_id(), "none"):
        assert await db.list_checkpoint_stages(unknown) == []
        with pytest.raises(JobNotFoundError):
            await db.get_payload(unknown)


# -- deletion ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED])
async def test_a_deleted_job_takes_everything_along_and_is_remembered(
    store: Store, db: DBInterface, status: JobStatus
) -> None:
    other, job = await ended(db, JobStatus.COMPLETED), await ended(db, status)
    expected = store.belongings
    assert await store.left_of(job.id) | {"job_results"} == expected

    await db.delete_job(job.id)

    assert await store.left_of(job.id) == set()
    assert await store.left_of(other.id) == expected
    for ask in (
        db.get_job,
        db.get_result,
        db.get_payload,
        db.cancel_job,
        db.retry_job,
        db.delete_job,
    ):
        with pytest.raises(JobDeletedError) as caught:
            await ask(job.id)
        assert caught.value.job_id == job.id
    assert await ids(db) == [other.id]
    # Whoever ran it once is a stranger.
    assert await complete(db, job) is False
    with pytest.raises(LeaseLostError):
        await db.append_logs(job.claim, [LINE])
    # Paid answers stay for all other jobs.
    assert await db.load_call(CALL.key) is not None


@pytest.mark.parametrize("job_id", [new_id(), "none"])
async def test_an_unknown_job_was_never_deleted(db: DBInterface, job_id: str) -> None:
    with pytest.raises(JobNotFoundError) as caught:
        await db.delete_job(job_id)
    assert type(caught.value) is JobNotFoundError


@pytest.mark.parametrize("is_running", [False, True])
async def test_a_job_that_has_not_ended_is_not_deleted(
    store: Store, db: DBInterface, *, is_running: bool
) -> None:
    job_id = (await claimed(db)).id if is_running else await new_job(db)

    with pytest.raises(IllegalTransitionError, match="cannot be deleted"):
        await db.delete_job(job_id)

    assert "job_payloads" in await store.left_of(job_id)


@pytest.mark.parametrize("is_retry_first", [False, True])
async def test_of_a_retry_and_a_deletion_the_first_one_wins(
    store: Store, db: DBInterface, *, is_retry_first: bool
) -> None:
    job = await ended(db, JobStatus.FAILED)
    acts = [store.connect().delete_job(job.id), store.connect().retry_job(job.id)]
    if is_retry_first:
        acts.reverse()

    done, refused = await store.in_turn(job.id, *acts)

    assert done is None
    assert isinstance(refused, IllegalTransitionError if is_retry_first else JobDeletedError)
    if is_retry_first:
        assert (await db.get_job(job.id)).status is JobStatus.PENDING


# -- many at once -----------------------------------------------------------------------------


async def test_many_jobs_are_cancelled_by_the_rule_for_one(db: DBInterface) -> None:
    node = await new_node(db)
    running = await claimed(db, node)
    completed = await ended(db, JobStatus.COMPLETED)
    pending, other = await new_job(db), await new_job(db, pipeline="other")
    wanted = JobFilter(pipeline="by-default")

    assert await db.cancel_jobs(wanted) == BulkChange(2, 2, 0)

    states = {job.id: job.status for job in await listed(db, EVERYTHING)}
    assert states == {
        running.id: JobStatus.RUNNING,
        completed.id: JobStatus.COMPLETED,
        pending: JobStatus.CANCELLED,
        other: JobStatus.PENDING,
    }
    [row] = await db.list_running_jobs(node)
    assert row.cancel_requested
    # Those that are to end already are not changed again.
    assert await db.cancel_jobs(wanted) == BulkChange(0, 0, 0)
    assert await db.cancel_jobs(JobFilter(statuses=(JobStatus.FAILED,))) == BulkChange(0, 0, 0)


async def test_many_jobs_are_retried_by_the_rule_for_one(db: DBInterface) -> None:
    failed, cancelled = await ended(db, JobStatus.FAILED), await ended(db, JobStatus.CANCELLED)
    completed = await ended(db, JobStatus.COMPLETED)
    alive = await claimed(db)
    wanted = JobFilter(pipeline="by-default")

    assert await db.retry_jobs(wanted) == BulkChange(2, 2, 0)

    for job in (failed, cancelled):
        told = await db.get_job(job.id)
        assert (told.status, told.attempt, told.finished_at) == (JobStatus.PENDING, 0, None)
        assert await db.list_checkpoint_stages(job.id) == ["stage"]
    assert (await db.get_job(completed.id)).status is JobStatus.COMPLETED
    assert (await db.get_job(alive.id)).status is JobStatus.RUNNING
    # Completed ones start over where they are named.
    assert await db.retry_jobs(JobFilter(statuses=(JobStatus.COMPLETED,))) == BulkChange(1, 1, 0)
    assert await db.list_checkpoint_stages(completed.id) == []


async def test_named_jobs_are_changed_and_strangers_among_them_passed_over(
    db: DBInterface,
) -> None:
    completed, pending = await ended(db, JobStatus.COMPLETED), await new_job(db)
    named = JobFilter(ids=(completed.id, pending, new_id(), "none"))

    assert await db.cancel_jobs(named) == BulkChange(1, 1, 0)
    assert await db.retry_jobs(named) == BulkChange(2, 2, 0)
    assert await db.retry_jobs(JobFilter(ids=())) == BulkChange(0, 0, 0)


async def test_one_call_changes_a_bounded_number_and_says_how_many_are_left(
    store: Store, db: DBInterface, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(monkeypatch, store, MAX_BULK=5, MAX_PAGE=2)
    for _ in range(12):
        await new_job(db)

    counts = [await db.cancel_jobs(JobFilter(queue="default")) for _ in range(4)]

    assert counts == [
        BulkChange(12, 5, 7),
        BulkChange(7, 5, 2),
        BulkChange(2, 2, 0),
        BulkChange(0, 0, 0),
    ]


async def test_a_change_goes_on_behind_what_a_search_looks_at(
    store: Store, db: DBInterface, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(monkeypatch, store, MAX_LOOKED_AT=3)
    rare = [await new_job(db, pipeline="rare") for _ in range(4)]
    for _ in range(7):
        await new_job(db)

    assert await db.cancel_jobs(JobFilter(pipeline="rare")) == BulkChange(4, 4, 0)
    assert sorted(await ids(db, statuses=(JobStatus.CANCELLED,))) == rare


@pytest.mark.parametrize("act", ["cancel_jobs", "retry_jobs"])
async def test_a_job_that_has_another_status_when_its_turn_comes_stays_as_it_is(
    store: Store, db: DBInterface, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    meanwhile = store.connect()
    node = await new_node(db)
    if act == "cancel_jobs":
        job_id, asked = await new_job(db), JobStatus.PENDING
    else:
        job_id, asked = (await ended(db, JobStatus.CANCELLED)).id, JobStatus.CANCELLED
    adapter: Any = type(db)
    find = adapter._find

    async def find_and_lose(*arguments: Any, **options: Any) -> JobPage:
        page: JobPage = await find(*arguments, **options)
        if act == "retry_jobs":
            await meanwhile.retry_job(job_id)
        job = await meanwhile.claim_next_pending_job(node)
        assert job is not None
        if act == "retry_jobs":
            assert await complete(meanwhile, job)
        return page

    monkeypatch.setattr(adapter, "_find", find_and_lose)

    change = await getattr(db, act)(JobFilter(statuses=(asked,)))

    assert change == BulkChange(1, 0, 0)
    job = await db.get_job(job_id)
    expected = JobStatus.RUNNING if act == "cancel_jobs" else JobStatus.COMPLETED
    assert (job.status, job.cancel_requested_at) == (expected, None)


@pytest.mark.needs(COUNTED_WAKE_UPS)
async def test_schedulers_are_woken_for_jobs_that_are_retried(
    store: Store, db: DBInterface
) -> None:
    await ended(db, JobStatus.FAILED)
    await db.retry_jobs(JobFilter(statuses=(JobStatus.CANCELLED,)))
    await db.close()
    async with store.counting_wake_ups() as count:
        await db.retry_jobs(JobFilter(statuses=(JobStatus.FAILED,)))
        await db.close()  # sends what is due
        assert await count() == 1


async def test_claims_and_changes_of_many_jobs_at_once_leave_each_job_one_end(
    store: Store, db: DBInterface
) -> None:
    total = 300
    for _ in range(total):
        await new_job(db)
    nodes = [await new_node(db) for _ in range(2)]
    wanted = JobFilter(queue="default")
    is_over = asyncio.Event()

    async def work(node: str) -> int:
        mine, done = store.connect(), 0
        while not is_over.is_set() or await mine.count_jobs(
            JobFilter(statuses=(JobStatus.PENDING,))
        ) != JobCount(0, is_exact=True):
            jobs = await mine.claim_pending_jobs(node, 5)
            for job in jobs:
                assert await complete(mine, job)
            done += len(jobs)
        return done

    async def change() -> list[BulkChange]:
        mine = store.connect()
        changes = []
        for _ in range(6):
            changes.append(await mine.cancel_jobs(wanted))
            changes.append(await mine.retry_jobs(JobFilter(statuses=(JobStatus.CANCELLED,))))
        return changes

    workers = [asyncio.ensure_future(work(node)) for node in nodes]
    changed = await asyncio.gather(change(), change())
    is_over.set()
    done = sum(await asyncio.gather(*workers))

    assert sum(change.changed for one in changed for change in one) > 0
    states = [job.status for job in await listed(db, EVERYTHING)]
    assert len(states) == total
    assert {JobStatus.RUNNING, JobStatus.PENDING}.isdisjoint(states)
    # Completed jobs are not revived here, so each was done by one claim, and once.
    assert done == states.count(JobStatus.COMPLETED)
    attempts = [len(await db.list_attempts(job.id)) for job in await listed(db, EVERYTHING)]
    assert sum(attempts) == done


# -- queues -----------------------------------------------------------------------------------


async def test_queues_tell_what_waits_and_runs(store: Store, db: DBInterface) -> None:
    assert await db.list_queues(9) == []
    await ended(db, JobStatus.COMPLETED, queue="done")
    await claimed(db, queue="busy")
    old = await new_job(db, queue="busy")
    await store.let_wait(old, 100.0)
    await new_job(db, queue="busy")
    await new_job(db, queue="later", delay_seconds=3_600)
    await db.pause_queue("empty")

    busy, empty, later = await db.list_queues(9)

    assert (busy.name, busy.is_paused, busy.pending, busy.scheduled) == ("busy", False, 2, 0)
    assert busy.running == 1
    assert busy.oldest_pending_seconds is not None
    assert 100 <= busy.oldest_pending_seconds < 160
    assert (empty.name, empty.is_paused, empty.pending, empty.running) == ("empty", True, 0, 0)
    assert (later.name, later.pending, later.scheduled) == ("later", 1, 1)
    assert later.oldest_pending_seconds is None
    assert busy.is_exact
    assert empty.is_exact


async def test_queues_come_by_pages_whatever_they_are_known_by(db: DBInterface) -> None:
    await claimed(db, queue="c")
    for name in ("a", "e", "e", "b"):
        await new_job(db, queue=name)
    for name in ("d", "b", "f"):
        await db.pause_queue(name)

    names: list[str] = []
    while page := await db.list_queues(2, names[-1] if names else ""):
        names += [queue.name for queue in page]

    assert names == ["a", "b", "c", "d", "e", "f"]


async def test_no_more_jobs_of_a_queue_are_counted_than_the_bound(
    store: Store, db: DBInterface, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(monkeypatch, store, MAX_COUNTED=3)
    for _ in range(3):
        await new_job(db, queue="full")
    for number in range(6):
        await new_job(db, queue="over", delay_seconds=3_600 if number < 5 else 0)
    for _ in range(4):
        await new_job(db, queue="waiting", delay_seconds=3_600)

    full, over, waiting = await db.list_queues(9)

    assert (full.pending, full.is_exact) == (3, True)
    assert (over.pending, over.is_exact) == (3, False)
    # Those that come first: the one that is due among them.
    assert over.scheduled == 2
    assert over.oldest_pending_seconds is not None
    assert (waiting.pending, waiting.scheduled, waiting.is_exact) == (3, 3, False)


async def test_a_paused_queue_keeps_its_jobs_until_it_is_resumed(db: DBInterface) -> None:
    node = await new_node(db)
    waiting = await new_job(db, queue="a/b")
    for _ in range(2):
        await db.pause_queue("a/b")
    assert [queue.is_paused for queue in await db.list_queues(9)] == [True]
    assert await db.claim_next_pending_job(node) is None

    for _ in range(2):
        await db.resume_queue("a/b")
    await db.resume_queue("unknown")

    assert [(queue.name, queue.is_paused) for queue in await db.list_queues(9)] == [("a/b", False)]
    job = await db.claim_next_pending_job(node)
    assert job is not None
    assert job.id == waiting


@pytest.mark.needs(COUNTED_WAKE_UPS)
@pytest.mark.parametrize("what", ["queue", "node"])
async def test_schedulers_are_woken_by_what_is_resumed(
    store: Store, db: DBInterface, what: str
) -> None:
    node = await new_node(db)
    async with store.counting_wake_ups() as count:
        if what == "queue":
            await db.resume_queue("q")
        else:
            await db.resume_node(node)
        await db.close()
        assert await count() == 1


@pytest.mark.parametrize("name", ["a\x00b", "\ud800"])
async def test_a_queue_that_no_job_can_name_is_refused(db: DBInterface, name: str) -> None:
    for act in (db.pause_queue, db.resume_queue):
        with pytest.raises(InvalidJsonError):
            await act(name)


# -- nodes ------------------------------------------------------------------------------------


async def test_nodes_tell_their_state_and_what_they_run(store: Store, db: DBInterface) -> None:
    lost, stopped = await new_node(db), await new_node(db)
    await store.end_lease(lost)
    await db.deregister_node(stopped)
    idle, busy = await new_node(db), await new_node(db)
    await claimed(db, busy)

    nodes = await db.list_nodes(9)

    assert [node.id for node in nodes[:2]] == [busy, idle]
    assert {node.id: (node.state, node.running) for node in nodes} == {
        lost: ("lost", 0),
        stopped: ("stopped", 0),
        idle: ("active", 0),
        busy: ("active", 1),
    }
    assert (nodes[0].name, nodes[0].capacity, nodes[0].lease_seconds) == ("test", 4, 60.0)
    assert 0 <= nodes[0].heartbeat_seconds < 60
    assert [node.stopped_at is not None for node in nodes] == [n.id == stopped for n in nodes]
    told = [node.id for node in nodes]
    assert told == [busy, idle, stopped, lost]
    for place, node in enumerate(nodes, 1):
        behind = await db.list_nodes(9, (node.is_alive, node.id))
        assert [one.id for one in behind] == told[place:]


async def test_a_node_that_ends_between_two_pages_hides_none(store: Store, db: DBInterface) -> None:
    older, newer = await new_node(db), await new_node(db)
    [first] = await db.list_nodes(1)
    assert first.id == newer
    await store.end_lease(newer)

    rest = await db.list_nodes(9, (first.is_alive, first.id))

    assert [(node.id, node.state) for node in rest] == [(older, "active"), (newer, "lost")]


async def test_a_held_node_claims_nothing_and_finishes_what_it_runs(db: DBInterface) -> None:
    node = await new_node(db)
    job = await claimed(db, node)
    waiting = await new_job(db)

    for _ in range(2):
        held = await db.hold_node(node)
        assert (held.id, held.state, held.running) == (node, "draining", 1)
    assert await db.claim_next_pending_job(node) is None
    assert await db.renew_node(node) is True
    assert await complete(db, job) is True

    for _ in range(2):
        assert (await db.resume_node(node)).state == "active"
    claim = await db.claim_next_pending_job(node)
    assert claim is not None
    assert claim.id == waiting


@pytest.mark.parametrize("end", ["lost", "stopped"])
async def test_a_node_that_has_ended_is_neither_held_nor_resumed(
    store: Store, db: DBInterface, end: str
) -> None:
    node = await new_node(db)
    if end == "lost":
        await store.end_lease(node)
    else:
        await db.deregister_node(node)

    for act in (db.hold_node, db.resume_node):
        with pytest.raises(NodeGoneError) as caught:
            await act(node)
        assert caught.value.state == end
    assert [told.state for told in await db.list_nodes(9)] == [end]


@pytest.mark.parametrize("node", [new_id(), "none", ""])
async def test_an_unknown_node_is_told(db: DBInterface, node: str) -> None:
    for act in (db.hold_node, db.resume_node):
        with pytest.raises(NodeNotFoundError):
            await act(node)
