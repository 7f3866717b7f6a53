"""Group commit: what is submitted while the store is busy goes to it together.

    submit ──▶ queue ──▶ at most GROUPS_IN_FLIGHT calls of the store, each with all that waits

Nobody waits for company: a submission that finds the store idle goes at once, and groups grow by
what comes while the ones before them are being committed. A group that fails is taken apart, so
that its members' mistakes stay their own. For the event loop's thread.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from app.domain.errors import DatabaseUnavailableError

GROUPS_IN_FLIGHT: Final = 2
MAX_GROUP_ROWS: Final = 100
MAX_GROUP_BYTES: Final = 1024 * 1024
# Larger ones go alone: what they cost is not the commit, and others need not wait for it.
MAX_MEMBER_BYTES: Final = 64 * 1024

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


@dataclass(slots=True, eq=False)
class _Member(Generic[_Item, _Answer]):
    item: _Item
    size_bytes: int
    answer: asyncio.Future[_Answer]


class Grouping(Generic[_Item, _Answer]):
    """Submissions of many callers, handed on in groups.

    Args:
        store: stores items and gives an answer or an error for each; raises where nothing is
            stored, or may be: it is asked again then, with one item at a time.
    """

    def __init__(
        self, store: Callable[[Sequence[_Item]], Awaitable[Sequence[_Answer | Exception]]]
    ) -> None:
        self._store = store
        self._queue: deque[_Member[_Item, _Answer]] = deque()
        self._in_flight = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._unanswered: set[asyncio.Future[_Answer]] = set()

    async def submit(self, item: _Item, size_bytes: int) -> _Answer:
        """What the store answers to this item.

        Whoever is cancelled before its group has left stores nothing; later it may be stored.
        """
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._unanswered.add(answer)
        answer.add_done_callback(self._unanswered.discard)
        member = _Member(item, size_bytes, answer)
        if size_bytes > MAX_MEMBER_BYTES:
            self._send_alone(member)
        else:
            self._queue.append(member)
            self._send_next()
        return await answer

    async def flush(self, timeout_seconds: float) -> None:
        """Return once nobody waits for an answer any more; after the time-out by an error."""
        if self._unanswered:
            await asyncio.wait(self._unanswered, timeout=timeout_seconds)
        _refuse(self._queue)
        self._queue.clear()
        # What is still under way goes on for nobody.
        ending = set(self._tasks)
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # In nobody's context. Else each group would inherit that of the one before, down to the
        # caller who found the store idle: and with it a deadline, where a driver keeps it there.
        task = asyncio.create_task(work, name="haulage-submit", context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _send_alone(self, member: _Member[_Item, _Answer]) -> None:
        task = self._run(self._hand_on([member]))
        # It works for one caller, so it ends with him.
        member.answer.add_done_callback(lambda answer: answer.cancelled() and task.cancel())

    def _send_next(self) -> None:
        if self._queue and self._in_flight < GROUPS_IN_FLIGHT:
            self._in_flight += 1
            self._run(self._send_group())

    async def _send_group(self) -> None:
        # Taken here, one turn of the loop later: with all that this turn brings.
        try:
            await self._hand_on(self._take())
        finally:
            self._in_flight -= 1
            self._send_next()

    def _take(self) -> list[_Member[_Item, _Answer]]:
        group: list[_Member[_Item, _Answer]] = []
        size_bytes = 0
        while self._queue and len(group) < MAX_GROUP_ROWS:
            if self._queue[0].answer.done():  # its caller has given up
                self._queue.popleft()
                continue
            size_bytes += self._queue[0].size_bytes
            if group and size_bytes > MAX_GROUP_BYTES:
                break
            group.append(self._queue.popleft())
        return group

    async def _hand_on(self, group: Sequence[_Member[_Item, _Answer]]) -> None:
        if not group:
            return
        try:
            answers = await self._store([member.item for member in group])
        except asyncio.CancelledError:
            _refuse(group)
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, it belongs to its submitter
            if len(group) == 1:
                _answer(group[0], error)
                return
            # Beside the groups: the one that hinders all others may take its time.
            for member in group:
                if not member.answer.done():
                    self._send_alone(member)
            return
        for member, answer in zip(group, answers, strict=True):
            _answer(member, answer)


def _refuse(members: Sequence[_Member[Any, Any]] | deque[_Member[Any, Any]]) -> None:
    for member in members:
        _answer(member, DatabaseUnavailableError("closed before it was answered"))


def _answer(member: _Member[Any, _Answer], answer: _Answer | Exception) -> None:
    if member.answer.done():
        return
    if isinstance(answer, Exception):
        member.answer.set_exception(answer)
    else:
        member.answer.set_result(answer)
