"""Calls of one database on a small pool that connects lazily; each has a bounded time.

What an adapter of this store is built on: it knows connections and transactions, no jobs.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeVar

import pymongo
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import (
    DuplicateKeyError,
    ExecutionTimeout,
    PyMongoError,
    WriteConcernError,
)
from pymongo.read_concern import ReadConcern

from app.db.ids import as_uuid
from app.db.mongo.abandoned import ABANDONED_SECONDS, end_abandoned
from app.db.mongo.connections import (
    CLOSE_SECONDS,
    DEFAULT_DATABASE,
    PING_TIMEOUT_SECONDS,
    TIME_LIMIT_EXCEEDED,
    Client,
    Document,
    check_cancelled,
    close_client,
    create_client,
    noticing_cancels,
    unavailable_errors,
)
from app.db.mongo.indexes import SCHEMA_ID
from app.db.mongo.instants import NOW
from app.db.mongo.signals import DebouncedSignal
from app.domain.errors import (
    DatabaseUnavailableError,
    JobDeletedError,
    JobNotFoundError,
    LeaseLostError,
)
from app.domain.jobs import Claim, WakeUp

Session = AsyncClientSession
Collection = AsyncCollection[Document]

# Somebody else's insert of the same key may win between our look and ours; then ours looks again.
_KEY_TRIES: Final = 5

_Answer = TypeVar("_Answer")


class MongoCalls:
    """A client and, where wanted, one more connection for wake-ups."""

    def __init__(
        self,
        url: str,
        application_name: str,
        *,
        max_connections: int,
        command_timeout_seconds: float,
        notify: bool,
    ) -> None:
        self._url = url
        self._application_name = application_name
        self._max_connections = max_connections
        self._command_timeout_seconds = command_timeout_seconds
        self._is_notifying = notify
        self._single_places = asyncio.Semaphore(max_connections)
        self._transaction_places = asyncio.Semaphore(max_connections)
        self._client: Client | None = None
        self._signal: DebouncedSignal | None = None
        self._clearing: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """See DBInterface."""
        await self.ping()

    async def close(self) -> None:
        """See DBInterface."""
        client, self._client = self._client, None
        signal, self._signal = self._signal, None
        async with asyncio.TaskGroup() as closing:
            if signal is not None:
                closing.create_task(signal.close())
            if client is not None:
                closing.create_task(close_client(client))
        if self._clearing:
            # Without a client they end; one that lost its cancel in the driver, a moment later.
            await asyncio.wait(self._clearing, timeout=CLOSE_SECONDS)

    async def ping(self) -> None:
        """See DBInterface."""
        async with self._bounded(PING_TIMEOUT_SECONDS):
            said = await self._database().command("hello")
            if not said.get("isWritablePrimary"):
                raise DatabaseUnavailableError("the server takes no writes")

    async def schema_revision(self) -> str | None:
        """See DBInterface."""
        async with self._bounded():
            found = await self._collection("schema").find_one({"_id": SCHEMA_ID})
        return None if found is None else str(found["revision"])

    def _connected(self) -> Client:
        if self._client is None:
            self._client = create_client(
                self._url,
                self._application_name,
                self._max_connections + 1,
                self._command_timeout_seconds,
            )
            if self._is_notifying:
                self._signal = DebouncedSignal(self._url)
        return self._client

    def _database(self) -> AsyncDatabase[Document]:
        return self._connected().get_default_database(DEFAULT_DATABASE)

    def _collection(self, name: str) -> Collection:
        check_cancelled()
        return self._database()[name]

    def _request_wake_up(self, wake_up: WakeUp) -> None:
        if self._signal is not None:
            self._signal.request(wake_up)

    @asynccontextmanager
    async def _bounded(self, timeout_seconds: float | None = None) -> AsyncGenerator[None, None]:
        """Single calls, no transaction; the time-out covers all of it, the driver's retries too.

        They leave a connection to transactions: an update waits in the server for the end of a
        transaction that has changed its document, and that end may be waiting here.
        """
        with self._within(timeout_seconds):
            async with asyncio.timeout(timeout_seconds or self._command_timeout_seconds):
                await self._single_places.acquire()
            try:
                async with self._clearing_the_way():
                    yield
                check_cancelled()
            finally:
                self._single_places.release()

    @asynccontextmanager
    async def _at_one_instant(
        self, timeout_seconds: float | None = None
    ) -> AsyncGenerator[Session, None]:
        """As `_bounded`, for reads that together see no change half done.

        Also for a single one of several documents: it may be answered in parts.
        """
        async with (
            self._bounded(timeout_seconds),
            self._connected().start_session(snapshot=True) as session,
        ):
            yield session

    @asynccontextmanager
    async def _limited_by_server(self, limit_seconds: float) -> AsyncGenerator[Document, None]:
        """Options of one command that the server gives up after so long: ExecutionTimeout.

        Then nothing of it goes on, but what it had done may not have reached a majority. With a
        limit of the driver's the connection would be given up in the same moment, and nobody would
        know what the server still does.
        """
        patience = self._command_timeout_seconds
        limit_ms = round(min(limit_seconds, patience / 2) * 1_000)
        try:
            async with asyncio.timeout(patience):
                with pymongo.timeout(None):
                    yield {"maxTimeMS": limit_ms}
        except WriteConcernError as error:
            if error.code != TIME_LIMIT_EXCEEDED:
                raise
            raise ExecutionTimeout(str(error), error.code) from error

    @asynccontextmanager
    async def _clearing_the_way(self) -> AsyncGenerator[None, None]:
        """End what is in the way of a call that takes long: transactions whose process is gone."""
        loop = asyncio.get_running_loop()
        clearing: list[asyncio.Task[None]] = []

        def begin() -> None:
            clearing.append(
                loop.create_task(self._keep_ending_abandoned(), name="haulage-abandoned")
            )
            self._clearing.update(clearing)
            clearing[0].add_done_callback(self._clearing.discard)

        # A timer is cheaper than a task, and hardly any call takes so long.
        timer = loop.call_later(ABANDONED_SECONDS, begin)
        try:
            yield
        finally:
            timer.cancel()
            for task in clearing:
                # Not waited for: the driver may take its time where the server is away.
                task.cancel()

    async def _end_abandoned(self) -> None:
        # Of a server that is away the call itself will tell, and where we may not look, or it knows
        # no such command, everybody waits for the server's own limit.
        with suppress(OSError, TimeoutError, PyMongoError), pymongo.timeout(ABANDONED_SECONDS):
            await end_abandoned(self._connected())

    async def _keep_ending_abandoned(self) -> None:
        with noticing_cancels():
            while True:
                await self._end_abandoned()
                check_cancelled()
                await asyncio.sleep(ABANDONED_SECONDS)

    @contextmanager
    def _within(self, timeout_seconds: float | None = None) -> Iterator[None]:
        patience = timeout_seconds or self._command_timeout_seconds
        with unavailable_errors(), pymongo.timeout(patience), noticing_cancels():
            yield

    async def _in_transaction(
        self,
        work: Callable[[Session], Awaitable[_Answer]],
        timeout_seconds: float | None = None,
    ) -> _Answer:
        """What `work` returns, all of its writes or none; done again where another one's conflict.

        It may therefore run several times. A conflict is found by writes alone: who only reads a
        document is not in the way of who changes it meanwhile.
        """
        patience = timeout_seconds or self._command_timeout_seconds
        client = self._connected()
        with self._within(patience):
            for tries_left in reversed(range(_KEY_TRIES)):
                async with (
                    asyncio.timeout(patience),
                    self._transaction_places,
                    self._clearing_the_way(),
                    client.start_session() as session,
                ):
                    try:
                        return await session.with_transaction(
                            work, read_concern=ReadConcern("snapshot")
                        )
                    except DuplicateKeyError:
                        if not tries_left:
                            raise
        raise AssertionError  # the last try returns or raises

    async def _missing(self, job_id: str) -> JobNotFoundError:
        """Why there is no such job."""
        async with self._bounded():
            deleted = await self._collection("deleted_jobs").find_one({"_id": job_key(job_id)})
        return JobNotFoundError(job_id) if deleted is None else JobDeletedError(job_id)

    async def _is_there(self, job_id: str, session: Session | None = None) -> bool:
        """Whether there is such a job: what belonged to a deleted one may go a little later."""
        key = {"_id": key_of(job_id)}
        return await self._collection("jobs").find_one(key, {"_id": 1}, session=session) is not None

    async def _hold(self, claim: Claim, session: Session) -> Document:
        """Write to the job's document in a transaction if the claim is the running one.

        Whoever writes beside a job's document does this first, so that of its end and this write
        one conflicts with the other and comes after it. Returns what is needed of the document,
        and the server's `now`.
        """
        held = await self._collection("jobs").find_one_and_update(
            held_by(claim),
            {"$inc": {"writes": 1}},
            projection={"claim_no": 1, "latest": 1, "writes": 1, "last_line_id": 1, "now": NOW},
            return_document=pymongo.ReturnDocument.AFTER,
            session=session,
        )
        if held is None:
            raise LeaseLostError(claim.job_id, claim.claim_no)
        return held


def key_of(text: str | None) -> str:
    """The key that an id spells in any form; one that no document has where it spells none."""
    found = None if text is None else as_uuid(text)
    return "" if found is None else str(found)


def job_key(job_id: str) -> str:
    """The key of a job; JobNotFoundError where the text is no id at all."""
    key = key_of(job_id)
    if not key:
        raise JobNotFoundError(job_id)
    return key


def held_by(claim: Claim) -> Document:
    """The filter that every write about a running job begins with."""
    return {"_id": key_of(claim.job_id), "claim_no": claim.claim_no, "status": "running"}


def literal(value: Any) -> Document:
    """A value within an expression; there a text that begins with $ would be a field's name."""
    return {"$literal": value}


def unless_there(document: Document, computed: Document) -> list[Document]:
    """An update that makes a document of an upsert and changes nothing where there is one.

    Args:
        document: values.
        computed: expressions, such as the server's clock.
    """
    made = {name: literal(value) for name, value in document.items()} | computed
    # Whatever is made has a status or an instant; what an upsert begins with has its key alone.
    is_new = {"$eq": [{"$type": "$created_at"}, "missing"]}
    return [{"$replaceWith": {"$cond": [is_new, {"$mergeObjects": ["$$ROOT", made]}, "$$ROOT"]}}]


def made_by(upsert: Document | None) -> Document:
    """The document that an upsert has left: there always is one."""
    assert upsert is not None  # noqa: S101
    return upsert
