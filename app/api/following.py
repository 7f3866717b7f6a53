"""Who follows which job: one reader per process asks the database for all of them.

    GET /jobs/{id}?wait=    Waiter ------.
    GET /jobs/{id}/events   JobFollower --+--> Followers --250 ms--> list_news, list_lines
    .../logs?follow=true    LogFollower -'

The reader runs only while somebody follows. A follower keeps its own place in the job's history,
so nothing is lost or told twice whatever happens to the reader, to the database or to other jobs;
what waits for its client is bounded, and what does not fit stays in the table until there is room.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Final

from app.db.ids import as_uuid
from app.db.interface import DBInterface
from app.domain.following import (
    FollowCursor,
    FoundLines,
    JobNews,
    LogCursor,
    StoredEvent,
    StoredLine,
)
from app.domain.jobs import JobStatus, Progress
from app.loops import PeriodicLoop
from app.telemetry import Telemetry, default_telemetry

READ_INTERVAL_SECONDS: Final = 0.25
# Those who come at about the same time are served by one look.
MERGE_SECONDS: Final = 0.05
MAX_FOLLOWERS: Final = 1_000
# What waits for one client.
MAX_QUEUED: Final = 128
# What one look may bring for all followers together; decoding it takes a few milliseconds.
ROWS_PER_LOOK: Final = 1_024
LEAST_ROWS: Final = 8


class Follower(ABC):
    """Somebody who waits for news of a job; for the event loop's thread.

    Attributes:
        status: of the job as last told, None where it is gone.
        is_over: no news will come any more, because the job has ended or is gone.
        is_stopped: no news will come any more, because the process is about to stop.
    """

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.status: JobStatus | None = None
        self.is_over = False
        self.is_stopped = False
        self._version: str | None = None
        self._news = asyncio.Event()

    async def wait(self, timeout_seconds: float) -> bool:
        """Whether there are news within this time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._news.wait()
        return self._news.is_set()

    def stop(self) -> None:
        """Let it end now."""
        self.is_stopped = True
        self._news.set()

    def cursor(self) -> FollowCursor | None:
        """What it knows of the job; None while it can take no more."""
        return FollowCursor(self.job_id, None, self._version)

    @abstractmethod
    def take(self, news: JobNews, *, is_whole: bool) -> None:
        """News of the job; `is_whole` where no events are left."""


class Waiter(Follower):
    """Waits for the job's end or, where it knows a version, for any other one."""

    def __init__(self, job_id: str, known_version: str | None) -> None:
        super().__init__(job_id)
        self._known_version = self._version = known_version

    def take(self, news: JobNews, *, is_whole: bool) -> None:  # noqa: ARG002
        """See Follower."""
        self.status, self._version = news.status, news.version
        is_other = self._known_version is not None and news.version != self._known_version
        self.is_over = news.status is None or news.status.is_terminal
        if self.is_over or is_other:
            self._news.set()


class JobFollower(Follower):
    """Gets every event after `after`, and the latest progress, until the job has ended."""

    def __init__(self, job_id: str, after: int) -> None:
        super().__init__(job_id)
        self._after = after
        self._events: deque[StoredEvent] = deque()
        self._progress: Progress | None = None
        self._told_progress: Progress | None = None

    def cursor(self) -> FollowCursor | None:
        """See Follower."""
        if self.is_over or len(self._events) >= MAX_QUEUED:
            return None
        return FollowCursor(self.job_id, self._after, self._version)

    def take(self, news: JobNews, *, is_whole: bool) -> None:
        """See Follower."""
        for event in news.events:
            if len(self._events) >= MAX_QUEUED:
                is_whole = False
                break
            self._events.append(event)
            self._after = event.id
        self._version = None
        if is_whole:
            # Only now: whoever is told of progress has been told of the milestones before it.
            self._version, self.status = news.version, news.status
            self._progress = news.progress
            self.is_over = news.status is None or news.status.is_terminal
        if self._events or self.is_over or self._progress != self._told_progress:
            self._news.set()

    def pop(self) -> tuple[list[StoredEvent], Progress | None]:
        """Events in their order and then the latest progress, None where it was told already."""
        self._news.clear()
        events, self._events = list(self._events), deque()
        if self._progress == self._told_progress:
            return events, None
        self._told_progress = self._progress
        return events, self._progress


class LogFollower(Follower):
    """Gets every line after `after`, at least of a level, until the job has ended."""

    def __init__(self, job_id: str, after: int, least_level: int) -> None:
        super().__init__(job_id)
        self._after = after
        self._least_level = least_level
        self._lines: deque[StoredLine] = deque()

    def take(self, news: JobNews, *, is_whole: bool) -> None:  # noqa: ARG002
        """See Follower."""
        self._version, self.status = news.version, news.status

    def log_cursor(self) -> LogCursor | None:
        """Its place in the log; None while it can take no more or knows nothing of the job."""
        if self._version is None or self.is_over or len(self._lines) >= MAX_QUEUED:
            return None
        return LogCursor(self.job_id, self._after, self._least_level)

    def take_lines(self, found: FoundLines) -> None:
        """What the look after the latest news gave."""
        taken = found.lines[: MAX_QUEUED - len(self._lines)]
        self._lines += taken
        is_taken = len(taken) == len(found.lines)
        if is_taken:
            self._after = found.after
        elif taken:
            self._after = taken[-1].id
        is_whole = found.is_whole and is_taken
        # Lines are written by running jobs only: those of an ended one are all there.
        self.is_over = is_whole and (self.status is None or self.status.is_terminal)
        if self._lines or self.is_over:
            self._news.set()

    def pop(self) -> list[StoredLine]:
        """Lines in their order."""
        self._news.clear()
        lines, self._lines = list(self._lines), deque()
        return lines


class Followers:
    """All who follow a job in this process, and the one reader that serves them."""

    def __init__(
        self,
        db: DBInterface,
        telemetry: Telemetry | None = None,
        *,
        max_followers: int = MAX_FOLLOWERS,
    ) -> None:
        self._db = db
        self._max_followers = max_followers
        self._followers: set[Follower] = set()
        self._somebody = asyncio.Event()
        self._is_over = False
        self._loop = PeriodicLoop(
            "follow",
            self._read_once,
            READ_INTERVAL_SECONDS,
            telemetry or default_telemetry(),
            min_gap_seconds=MERGE_SECONDS,
        )

    def __len__(self) -> int:
        return len(self._followers)

    @property
    def is_full(self) -> bool:
        """Whether nobody more can follow for now."""
        return len(self._followers) >= self._max_followers

    @property
    def is_over(self) -> bool:
        """Whether nobody can follow any more: the process is about to stop."""
        return self._is_over

    def end(self) -> None:
        """Let everybody go at once, for good."""
        self._is_over = True
        self._somebody.set()
        for follower in self._followers:
            follower.stop()

    async def close(self) -> None:
        """The same, and the reader has ended afterwards."""
        self.end()
        # It only reads: nothing is lost where the database hangs.
        await self._loop.stop(timeout_seconds=0.1)

    @contextlib.contextmanager
    def following(self, follower: Follower) -> Iterator[None]:
        """Have a follower told within the block."""
        if self._is_over:
            follower.stop()
        else:
            self._somebody.set()
            self._loop.start()
            self._loop.wake()
        self._followers.add(follower)
        try:
            yield
        finally:
            self._followers.discard(follower)
            if not self._followers and not self._is_over:
                self._somebody.clear()

    def look_again(self) -> None:
        """A follower has room again for what is left in the table."""
        self._loop.wake()

    async def wait_for_change(self, job_id: str, known_etag: str | None, seconds: float) -> bool:
        """Wait for a job's end or, where a version of it is known, for any other version.

        Args:
            known_etag: `Job.version`; None waits for the end alone.

        Returns whether it came about, also where the job is gone. Otherwise the time is over, the
        process is about to stop, or too many follow already and nobody has waited.
        """
        key = as_uuid(job_id)
        if key is None or self.is_full or self._is_over:
            return False
        waiter = Waiter(str(key), known_etag)
        with self.following(waiter):
            return await waiter.wait(seconds) and not waiter.is_stopped

    async def _read_once(self) -> None:
        """Tell everybody what is new to them."""
        await self._somebody.wait()
        if self._is_over:
            return
        is_left = await self._read_news()
        # After the news: the log of a job that was seen ended is whole.
        is_left |= await self._read_lines()
        if is_left:
            self._loop.wake()

    async def _read_news(self) -> bool:
        """One question for all; whether somebody with room has not got everything."""
        by_cursor: defaultdict[FollowCursor, list[Follower]] = defaultdict(list)
        for follower in self._followers:
            if (cursor := follower.cursor()) is not None:
                by_cursor[cursor].append(follower)
        if not by_cursor:
            return False
        cursors = list(by_cursor)
        page = _page(len(cursors))
        is_left = False
        for news in await self._db.list_news(cursors, page):
            is_whole = len(news.events) < page
            is_left |= not is_whole
            for follower in by_cursor[cursors[news.cursor]]:
                follower.take(news, is_whole=is_whole)
        return is_left

    async def _read_lines(self) -> bool:
        """The same for logs."""
        by_cursor: defaultdict[LogCursor, list[LogFollower]] = defaultdict(list)
        for follower in self._followers:
            if isinstance(follower, LogFollower) and (cursor := follower.log_cursor()) is not None:
                by_cursor[cursor].append(follower)
        if not by_cursor:
            return False
        cursors = list(by_cursor)
        page = _page(len(cursors))
        is_left = False
        for cursor, found in zip(cursors, await self._db.list_lines(cursors, page), strict=True):
            is_left |= not found.is_whole
            for follower in by_cursor[cursor]:
                follower.take_lines(found)
        return is_left


def _page(cursors: int) -> int:
    return max(LEAST_ROWS, min(MAX_QUEUED, ROWS_PER_LOOK // cursors))
