"""Following jobs: versions, news since a cursor, log lines, pages of history."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from contract.steps import RAISED, claimed, complete, given_back, new_job, new_node
from contract.stores import Store, bound

from app.db.ids import new_id
from app.db.interface import DBInterface
from app.domain.following import FollowCursor, FoundLines, JobNews, LogCursor
from app.domain.jobs import ClaimedJob, JobStatus, LogLine, Progress
from app.domain.lifecycle import decide

EVERYTHING = 100


async def told(db: DBInterface, job_id: str) -> Any:
    """What is visible of a job, without its version."""
    job = await db.get_job(job_id)
    milestones = await db.list_milestones(job_id)
    return (
        [getattr(job, name) for name in job.__slots__ if name not in {"version", "last_event_id"}],
        milestones,
    )


async def news_of(
    db: DBInterface, job_id: str, after: int | None = 0, version: str | None = None
) -> JobNews | None:
    found = await db.list_news([FollowCursor(job_id, after, version)], EVERYTHING)
    assert len(found) <= 1
    return found[0] if found else None


def stages(news: JobNews | None) -> list[str]:
    return [] if news is None else [event.stage for event in news.events]


def log_line(number: int, level: int = 20) -> LogLine:
    return LogLine(number, level, "stdout", f"line {number}", datetime.now(UTC))


async def test_the_version_changes_with_every_visible_change_and_with_no_other(
    store: Store, db: DBInterface, subtests: pytest.Subtests
) -> None:
    node = await new_node(db)
    job = await claimed(db, node, max_attempts=2)
    seen: dict[str, Any] = {}

    async def step(name: str, doing: Any, *, is_visible: bool = True) -> None:
        before = (await db.get_job(job.id)).version
        news_before = await told(db, job.id)
        await doing
        now = await db.get_job(job.id)
        with subtests.test(name):
            assert ((await told(db, job.id)) != news_before) == is_visible
            assert (now.version != before) == is_visible
            assert (now.version in seen) == (not is_visible)
            news = await news_of(db, job.id)
            assert news is not None
            assert news.version == now.version
            assert news.status == now.status
            assert news.progress == now.progress
            assert max(event.id for event in news.events) == now.last_event_id
        seen[now.version] = name

    async def again() -> None:
        nonlocal job
        await store.let_wait(job.id, 3_600)
        found = await db.claim_next_pending_job(node)
        assert found is not None
        job = found

    progress = Progress(0.2, "load", "reading")
    seen[(await db.get_job(job.id)).version] = "claimed"
    await step("started", db.report_started(job.claim, 4_711))
    await step("progress", db.report_progress(job.claim, progress))
    await step("the same again", db.report_progress(job.claim, progress), is_visible=False)
    await step("message", db.report_progress(job.claim, Progress(0.2, "load", "still")))
    await step(
        "milestone",
        db.report_progress(job.claim, Progress(0.2, "code", "still"), is_milestone=True),
    )
    await step("log", db.append_logs(job.claim, [log_line(1)]), is_visible=False)
    await step("checkpoint", db.save_checkpoint(job.claim, "s", "{}"), is_visible=False)
    await step("failure", db.finish_job(job.claim, decide(RAISED, job)))
    await step("claimed again", again())
    await step("wish to cancel", db.cancel_job(job.id))
    await step("the same wish", db.cancel_job(job.id), is_visible=False)
    await step("end", db.finish_job(job.claim, decide(RAISED, job)))
    await step("revived", db.retry_job(job.id))
    await step("cancelled", db.cancel_job(job.id))


async def test_the_milestones_of_one_instant_are_those_up_to_the_last_event(
    db: DBInterface,
) -> None:
    job = await claimed(db)
    await db.report_progress(job.claim, Progress(0.1, "load"), is_milestone=True)
    then = await db.get_job(job.id)
    await db.report_progress(job.claim, Progress(0.2, "code"), is_milestone=True)

    milestones = await db.list_milestones(job.id)

    assert [m.stage for m in milestones] == ["load", "code"]
    assert [m.stage for m in milestones if m.id <= then.last_event_id] == ["load"]


async def test_a_cursor_that_knows_nothing_gets_the_whole_story(db: DBInterface) -> None:
    job = await claimed(db)
    await db.report_progress(job.claim, Progress(0.3, "load", "reading"), is_milestone=True)
    await db.report_progress(job.claim, Progress(0.4, "load", "on"))

    news = await news_of(db, job.id)

    assert news is not None
    assert news.cursor == 0
    assert news.status is JobStatus.RUNNING
    assert news.progress == Progress(0.4, "load", "on")
    assert [(e.kind, e.stage, e.attempt) for e in news.events] == [
        ("status", "pending", 0),
        ("status", "running", 1),
        ("milestone", "load", 1),
    ]
    assert (news.events[2].fraction, news.events[2].message) == (0.3, "reading")
    assert news.events[2].created_at.utcoffset() is not None


async def test_a_cursor_that_knows_the_version_hears_nothing(db: DBInterface) -> None:
    job = await claimed(db)
    version = (await db.get_job(job.id)).version

    assert await news_of(db, job.id, 0, version) is None
    await db.report_progress(job.claim, Progress(0.3))
    assert await news_of(db, job.id, 0, version) is not None


async def test_each_cursor_is_answered_for_itself_and_in_its_place(db: DBInterface) -> None:
    node = await new_node(db)
    first, second = await claimed(db, node), await claimed(db, node)
    known = (await db.get_job(first.id)).version
    begun = await news_of(db, first.id)
    assert begun is not None
    cursors = [
        FollowCursor(first.id, begun.events[0].id),
        FollowCursor(first.id, 0, known),
        FollowCursor(second.id, None),
        FollowCursor(new_id(), 0, "no version"),
        FollowCursor(first.id, 0),
    ]

    found = await db.list_news(cursors, EVERYTHING)

    assert [(n.cursor, n.status, stages(n)) for n in found] == [
        (0, JobStatus.RUNNING, ["running"]),
        (2, JobStatus.RUNNING, []),
        (3, None, []),
        (4, JobStatus.RUNNING, ["pending", "running"]),
    ]
    assert await db.list_news([], EVERYTHING) == []


async def test_a_page_of_events_is_bounded_and_goes_on_after_its_last_one(db: DBInterface) -> None:
    job = await claimed(db)
    for n in range(5):
        await db.report_progress(job.claim, Progress(n / 10, f"s{n}"), is_milestone=True)

    after, found = 0, []
    for _ in range(4):
        [news] = await db.list_news([FollowCursor(job.id, after)], 2)
        found += stages(news)
        after = news.events[-1].id if news.events else after

    assert found == ["pending", "running", "s0", "s1", "s2", "s3", "s4"]


class _Reader:
    """Follows jobs as a process of the API does: by a place of its own in each."""

    def __init__(self, db: DBInterface, *jobs: ClaimedJob) -> None:
        self._db = db
        self.cursors = {job.id: FollowCursor(job.id, 0) for job in jobs}
        self.told: dict[str, list[str]] = {job.id: [] for job in jobs}

    async def look(self) -> None:
        asked = list(self.cursors.values())
        for news in await self._db.list_news(asked, EVERYTHING):
            cursor = asked[news.cursor]
            self.told[cursor.job_id] += stages(news)
            after = news.events[-1].id if news.events else cursor.after
            self.cursors[cursor.job_id] = FollowCursor(cursor.job_id, after, news.version)


async def test_an_event_that_commits_after_a_higher_one_of_another_job_is_told_once(
    store: Store, db: DBInterface
) -> None:
    node = await new_node(db)
    late, early = await claimed(db, node), await claimed(db, node)
    # A store that counts the events of each job has a higher one here as well.
    await db.report_progress(early.claim, Progress(0.4, "before"), is_milestone=True)
    readers = [_Reader(store.connect(), late, early) for _ in range(2)]
    await readers[0].look()

    async with store.writing_milestone(late, "lower") as lower:
        await readers[1].look()
        await db.report_progress(early.claim, Progress(0.5, "higher"), is_milestone=True)
        for reader in readers:
            await reader.look()
            assert reader.told[early.id] == ["pending", "running", "before", "higher"]
            assert reader.told[late.id] == ["pending", "running"]

    higher = (await db.list_milestones(early.id))[-1].id
    assert lower < higher
    for reader in readers * 2:
        await reader.look()
        assert reader.told == {
            late.id: ["pending", "running", "lower"],
            early.id: ["pending", "running", "before", "higher"],
        }


@pytest.mark.parametrize(
    "second",
    [
        lambda db, job: db.report_progress(job.claim, Progress(0.6, "second"), is_milestone=True),
        complete,
    ],
    ids=["milestone", "end"],
)
async def test_two_events_of_one_job_commit_in_the_order_of_their_ids(
    store: Store, db: DBInterface, second: Callable[..., Any]
) -> None:
    job = await claimed(db)
    readers = [_Reader(store.connect(), job) for _ in range(2)]

    async with store.writing_milestone(job, "first") as first:
        writing = asyncio.ensure_future(second(db, job))
        await store.until_blocked(1)
        # The second one has no id before the first one is there to be seen.
        for reader in readers:
            await reader.look()
            assert reader.told[job.id] == ["pending", "running"]
    await readers[0].look()
    await writing

    for reader in readers * 2:
        await reader.look()
        assert reader.told[job.id][:3] == ["pending", "running", "first"]
        assert reader.told[job.id][3] in {"second", "completed"}
        assert len(reader.told[job.id]) == 4
    assert first == (await db.list_milestones(job.id))[0].id
    assert (await db.get_job(job.id)).last_event_id > first


async def test_log_lines_come_by_place_and_level(db: DBInterface) -> None:
    node = await new_node(db)
    job, other = await claimed(db, node), await claimed(db, node)
    await db.append_logs(
        job.claim, [log_line(n, level) for n, level in enumerate((20, 30, 20, 40, 5), 1)]
    )
    await db.append_logs(other.claim, [log_line(1)])

    every, warnings, rest, none, unknown = await db.list_lines(
        [
            LogCursor(job.id),
            LogCursor(job.id, 0, 30),
            LogCursor(other.id),
            LogCursor(other.id, 2**63 - 1),
            LogCursor(new_id()),
        ],
        EVERYTHING,
    )

    assert [(line.number, line.level, line.text) for line in every.lines] == [
        (1, 20, "line 1"),
        (2, 30, "line 2"),
        (3, 20, "line 3"),
        (4, 40, "line 4"),
        (5, 5, "line 5"),
    ]
    assert [line.number for line in warnings.lines] == [2, 4]
    # Behind all that was looked at, whatever was wanted of it.
    assert every.after == warnings.after == every.lines[-1].id
    assert len(rest.lines) == 1
    assert none == FoundLines((), 2**63 - 1, is_whole=True)
    assert unknown == FoundLines((), 0, is_whole=True)
    assert every.lines[0].attempt == 1
    assert every.lines[0].source == "stdout"

    [page] = await db.list_lines([LogCursor(job.id)], 2)
    [following] = await db.list_lines([LogCursor(job.id, page.after)], 2)
    assert [line.number for line in page.lines + following.lines] == [1, 2, 3, 4]
    assert not page.is_whole


async def test_a_look_for_lines_of_a_level_is_bounded_and_goes_on_behind_what_it_saw(
    store: Store, db: DBInterface, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(monkeypatch, store, LOG_LINES_LOOKED_AT=3)
    job = await claimed(db)
    await db.append_logs(
        job.claim, [log_line(n, level) for n, level in enumerate((20, 20, 20, 40, 40, 20), 1)]
    )
    [every] = await db.list_lines([LogCursor(job.id)], EVERYTHING)
    ids = [line.id for line in every.lines]

    looks = [FoundLines((), 0, is_whole=False)]
    while not looks[-1].is_whole:
        looks += await db.list_lines([LogCursor(job.id, looks[-1].after, 40)], 1)

    assert [[line.number for line in look.lines] for look in looks[1:]] == [[], [4], [5], []]
    assert [look.after for look in looks[1:]] == [ids[2], ids[3], ids[4], ids[5]]


@pytest.mark.parametrize(
    ("lines", "level", "left"),
    [(2, 0, [4, 5]), (5, 0, [1, 2, 3, 4, 5]), (9, 0, [1, 2, 3, 4, 5]), (1, 30, [4]), (2, 50, [])],
)
async def test_the_tail_of_a_log_is_found(
    db: DBInterface, lines: int, level: int, left: list[int]
) -> None:
    job = await claimed(db)
    await db.append_logs(
        job.claim, [log_line(n, grade) for n, grade in enumerate((20, 30, 20, 40, 20), 1)]
    )

    after = await db.find_log_tail(job.id, lines, level)

    [found] = await db.list_lines([LogCursor(job.id, after, level)], EVERYTHING)
    assert [line.number for line in found.lines] == left


async def test_attempts_come_by_pages(db: DBInterface) -> None:
    node = await new_node(db)
    job = await claimed(db, node)
    for _ in range(2):
        await given_back(db, job)
        found = await db.claim_next_pending_job(node)
        assert found is not None
        job = found

    assert await db.list_attempts_after(job.id, 0, 9) == await db.list_attempts(job.id)
    assert [a.claim_no for a in await db.list_attempts_after(job.id, 1, 1)] == [2]
    assert await db.list_attempts_after(job.id, 3, 9) == []
    assert await db.list_attempts_after("no id", 0, 9) == []


async def test_checkpoints_are_listed_without_their_data_and_fetched_as_bytes(
    db: DBInterface,
) -> None:
    job = await claimed(db)
    data = {"text": "ü" * 50_000}
    for stage in ("b/ü", "a", "c"):
        await db.save_checkpoint(job.claim, stage, json.dumps(data))

    found = await db.list_checkpoints(job.id, "", 2)
    rest = await db.list_checkpoints(job.id, found[-1].stage, 2)

    assert [c.stage for c in found + rest] == ["a", "b/ü", "c"]
    assert {c.claim_no for c in found} == {job.claim_no}
    assert all(0 < c.stored_bytes < 100_000 for c in found)
    stored = await db.get_checkpoint(job.id, "b/ü")
    assert stored is not None
    assert json.loads(stored) == data
    assert "ü".encode() in stored
    for stage in ("d", "", "a\0", "\ud800"):
        assert await db.get_checkpoint(job.id, stage) is None
    assert await db.get_checkpoint(new_id(), "a") is None
    assert await db.list_checkpoints(await new_job(db), "\0", 2) == []
