"""Transactions of the MongoDB adapter that stand still where a test wants them to.

A document is held by a transaction that has changed it. A single update of it waits inside the
server for that transaction's end; another transaction gets a conflict and is done again by the
adapter. In which order several of them come through nobody decides, so a transaction of a staged
call waits here before it tries again, and once more before it commits. All that it does, and
all that it meets, is the adapter's and the server's own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any, Self, TypeVar

from pymongo.errors import PyMongoError

from app.db.mongo.adapter import MongoJobsDB
from app.db.mongo.calls import Session

_Answer = TypeVar("_Answer")

_staged_call: ContextVar["StagedCall | None"] = ContextVar("staged_call", default=None)


class StagedCall:
    """A call whose transactions stop on their way; a single update never does.

    Whatever is not over at the block's end is cancelled.

    Attributes:
        may_begin: until then nothing of it happens.
        has_met: a conflict with somebody else's transaction has ended its try.
        may_repeat: until then it makes no other try.
        has_written: all but the commit is done, in a transaction that is open.
        may_commit: until then it stays so.
    """

    def __init__(self, call: Coroutine[Any, Any, Any]) -> None:
        self.may_begin = asyncio.Event()
        self.has_met = asyncio.Event()
        self.may_repeat = asyncio.Event()
        self.has_written = asyncio.Event()
        self.may_commit = asyncio.Event()
        self._call = call
        self.task: asyncio.Task[Any] = asyncio.create_task(self._run())

    async def _run(self) -> Any:
        await self.may_begin.wait()
        _staged_call.set(self)  # of this task alone
        return await self._call

    async def until_over(self) -> None:
        """Let it go on, and return when it has come to whatever end."""
        self.may_repeat.set()
        self.may_commit.set()
        await asyncio.wait([self.task])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        self._call.close()


class StagedMongoJobsDB(MongoJobsDB):
    """The adapter, but that its transactions tell what they meet and stop for a staged call.

    Args:
        held_up: has an entry for each transaction, also of other adapters, that has met a conflict
            and is not over.
    """

    def __init__(self, url: str, held_up: set[object], **options: Any) -> None:
        super().__init__(url, **options)
        self._held_up = held_up

    async def _in_transaction(
        self,
        work: Callable[[Session], Awaitable[_Answer]],
        timeout_seconds: float | None = None,
    ) -> _Answer:
        this = object()

        async def staged(session: Session) -> _Answer:
            return await self._staged(this, work(session))

        try:
            return await super()._in_transaction(staged, timeout_seconds)
        finally:
            self._held_up.discard(this)

    async def _try_turn(
        self, limit: int, work: Callable[[Session, int, int], Awaitable[int]]
    ) -> int | None:
        this = object()

        async def staged(session: Session, now: int, limit: int) -> int:
            return await self._staged(this, work(session, now, limit))

        try:
            return await super()._try_turn(limit, staged)
        finally:
            self._held_up.discard(this)

    async def _end_abandoned(self) -> None:
        """Those that stand still here are not abandoned."""

    async def _staged(self, transaction: object, work: Awaitable[_Answer]) -> _Answer:
        call = _staged_call.get()
        try:
            answer = await work
        except PyMongoError as error:
            if error.has_error_label("TransientTransactionError"):
                self._held_up.add(transaction)
                if call is not None:
                    call.has_met.set()
                    await call.may_repeat.wait()
            raise
        if call is not None:
            call.has_written.set()
            await call.may_commit.wait()
        return answer
