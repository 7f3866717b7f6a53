"""Submissions in PostgreSQL: single ones in groups, batches whole or not at all; it runs no jobs.

Whether an idempotency key is new is decided by the unique index inside the INSERT. A key that was
taken is read afterwards, with a snapshot of its own; whoever made it has committed by then.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from app.db.grouping import Grouping
from app.db.ids import as_uuid, new_id
from app.db.postgres.calls import PostgresCalls
from app.db.postgres.connections import CLOSE_SECONDS, unavailable_errors
from app.db.postgres.insisting import in_turn, is_held, tried
from app.db.postgres.statements import STATEMENTS
from app.domain.errors import (
    BatchNotFoundError,
    BatchPartlyDeletedError,
    DatabaseUnavailableError,
    DatasetNotFoundError,
    HaulageError,
    IdempotencyKeyReusedError,
    InvalidJsonError,
    TooLargeError,
)
from app.domain.jobs import MAX_METADATA_BYTES, MAX_PAYLOAD_BYTES, JobOptions, WakeUp
from app.domain.json_values import check_size, check_storable, dump_field, dump_storable
from app.domain.submissions import (
    MAX_BATCH_BYTES,
    MAX_BATCH_ROWS,
    Batch,
    BatchReceipt,
    Submission,
    part_key,
)

# For a whole batch; each statement of it has the server's time-out to itself.
BATCH_SECONDS: Final = 30.0
# How long the members of a group wait for a rival of one of them.
GROUP_LOCK_TIMEOUT: Final = "250ms"
# One that is alone with its rival tries shortly at first, so that many of them at once do not use
# up the connections, then again and again in one of a few places, which they take by turns.
FIRST_LOCK_TIMEOUT: Final = "50ms"
WAITING_LOCK_TIMEOUT: Final = "500ms"
WAITING_PLACES: Final = 2
# Batches at once; one that meets a rival gives its place to the next one.
BATCH_PLACES: Final = 3
BATCH_LOCK_TIMEOUT: Final = "1s"

# What one statement of a batch takes: encoding it is done on the event loop.
STATEMENT_ROWS: Final = 200
STATEMENT_BYTES: Final = 1024 * 1024

_INSERT_TRIES: Final = 2
# A key's job may be deleted between the insert that met it and the look at it.
_KEY_TRIES: Final = 3

# In the detail of a violated foreign key: which one.
_NAMED: Final = re.compile(r"=\(([^()]+)\)")

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Row:
    """A job as the statement takes it.

    Attributes:
        columns: those of the statement from the pipeline to the dataset, in its order.
    """

    id: UUID
    columns: tuple[Any, ...]
    payload: str
    key: _Key | None
    fingerprint: bytes | None
    is_due: bool


@dataclass(frozen=True, slots=True)
class _Found:
    """The job that a row has come to, whoever made it."""

    id: UUID
    batch_id: UUID | None


_Settled = _Found | IdempotencyKeyReusedError


class PostgresSubmitting(PostgresCalls):
    """The part of `DBInterface` about submitting."""

    def __init__(
        self,
        dsn: str,
        application_name: str,
        *,
        default_pipeline: str,
        max_connections: int,
        command_timeout_seconds: float,
        notify: bool,
    ) -> None:
        super().__init__(
            dsn,
            application_name,
            max_connections=max_connections,
            command_timeout_seconds=command_timeout_seconds,
            notify=notify,
        )
        self._default_pipeline = default_pipeline
        self._groups: Grouping[_Row, UUID] = Grouping(self._store)
        self._waiting_places = asyncio.Semaphore(WAITING_PLACES)
        self._batch_places = asyncio.Semaphore(BATCH_PLACES)

    async def close(self) -> None:
        """See DBInterface."""
        await self._groups.flush(CLOSE_SECONDS)
        await super().close()

    async def insert_pending_job(
        self, payload: dict[str, Any] | str, options: JobOptions | None = None
    ) -> str:
        """See DBInterface."""
        row = self._row(payload, options or JobOptions())
        # Waiting for a place in a group and all tries together take no longer than one call may.
        with _unknown_dataset():
            async with unavailable_errors(), asyncio.timeout(self._command_timeout_seconds):
                return str(await self._groups.submit(row, len(row.payload)))

    async def insert_pending_jobs(
        self, submissions: Sequence[Submission], *, key: str | None = None
    ) -> BatchReceipt:
        """See DBInterface."""
        if not 1 <= len(submissions) <= MAX_BATCH_ROWS:
            raise ValueError(f"{len(submissions)} submissions; 1 to {MAX_BATCH_ROWS} are a batch")
        rows = await asyncio.to_thread(self._rows, submissions)
        batch_id = UUID(new_id())
        with _unknown_dataset():
            async with unavailable_errors(), asyncio.timeout(BATCH_SECONDS):
                found = await tried(
                    _INSERT_TRIES,
                    self._command_timeout_seconds,
                    lambda: self._store_batch_in_turn(rows, batch_id, key),
                )
        self._wake_for_due(rows, found)
        batches = {one.batch_id for one in found}
        common = batch_id if batch_id in batches else batches.pop() if len(batches) == 1 else None
        return BatchReceipt(
            id=None if common is None else str(common),
            job_ids=tuple(str(one.id) for one in found),
            replayed=frozenset(
                index
                for index, (row, one) in enumerate(zip(rows, found, strict=True))
                if one.id != row.id
            ),
        )

    async def find_submission(self, submitter: str, key: str, fingerprint: bytes) -> str | None:
        """See DBInterface."""
        found = await self._fetch_row("find_jobs_by_key", [submitter], [key])
        if found is None:
            return None
        if found["payload_hash"] != fingerprint:
            raise IdempotencyKeyReusedError(key, str(found["id"]))
        return str(found["id"])

    async def get_batch(self, batch_id: str) -> Batch:
        """See DBInterface."""
        found = await self._fetch_as(Batch, "get_batch", as_uuid(batch_id))
        if not found:
            raise BatchNotFoundError(batch_id)
        return found[0]

    async def _store(self, rows: Sequence[_Row]) -> list[UUID | Exception]:
        """The jobs of a group, or why not; one that is alone is tried twice."""

        async def store(lock_timeout: str | None) -> list[_Settled]:
            async with self._borrowed() as connection:
                return await _settle(connection, rows, lock_timeout=lock_timeout)

        async def store_alone() -> list[_Settled]:
            if rows[0].key is None:
                return await store(None)
            try:
                return await store(FIRST_LOCK_TIMEOUT)
            except DatabaseUnavailableError as error:
                if not is_held(error):
                    raise
            return await in_turn(self._waiting_places, lambda: store(WAITING_LOCK_TIMEOUT))

        async with unavailable_errors(), asyncio.timeout(self._command_timeout_seconds):
            if len(rows) == 1:
                settled = await tried(_INSERT_TRIES, self._command_timeout_seconds, store_alone)
            else:
                settled = await store(GROUP_LOCK_TIMEOUT)
        self._wake_for_due(rows, settled)
        return [one.id if isinstance(one, _Found) else one for one in settled]

    async def _store_batch_in_turn(
        self, rows: Sequence[_Row], batch_id: UUID, key: str | None
    ) -> list[_Found]:
        return await in_turn(self._batch_places, lambda: self._store_batch(rows, batch_id, key))

    async def _store_batch(
        self, rows: Sequence[_Row], batch_id: UUID, key: str | None
    ) -> list[_Found]:
        settled: dict[UUID, _Settled] = {}
        async with self._borrowed(BATCH_SECONDS) as connection:
            try:
                await connection.execute("begin")
                for some in _statements(rows):
                    found = await _settle(
                        connection, some, batch_id=batch_id, lock_timeout=BATCH_LOCK_TIMEOUT
                    )
                    settled.update(zip((row.id for row in some), found, strict=True))
                is_whole = all(isinstance(one, _Found) for one in settled.values())
                refusal = await _refusal(connection, rows, key) if key and is_whole else None
                await connection.execute("commit" if is_whole and not refusal else "rollback")
            except asyncpg.LockNotAvailableError:
                await connection.execute("rollback")
                raise
            except asyncpg.PostgresError:
                # As `_borrowed` does after every other error: the server rolls back what its client
                # left, and asking it to could wait for long.
                connection.terminate()
                raise
        if refusal is not None:
            raise refusal
        return list(_all_found(settled[row.id] for row in rows))

    def _wake_for_due(self, rows: Iterable[_Row], settled: Iterable[_Settled]) -> None:
        for row, one in zip(rows, settled, strict=True):
            if row.is_due and isinstance(one, _Found) and one.id == row.id:
                self._request_wake_up(WakeUp.JOBS)
                return

    def _rows(self, submissions: Sequence[Submission]) -> list[_Row]:
        rows = []
        size_bytes = 0
        for index, submission in enumerate(submissions):
            try:
                row = self._row(submission.payload, submission.options)
            except InvalidJsonError as error:
                raise InvalidJsonError(f"/{index}{error.pointer}", error.reason) from None
            except TooLargeError as error:
                what = f"{error.what} of submission {index}"
                raise TooLargeError(what, error.size_bytes, error.limit_bytes) from None
            size_bytes += len(row.payload.encode())
            rows.append(row)
        if size_bytes > MAX_BATCH_BYTES:
            raise TooLargeError("the payloads of a batch", size_bytes, MAX_BATCH_BYTES)
        return rows

    def _row(self, payload: dict[str, Any] | str, options: JobOptions) -> _Row:
        """What is submitted, checked; see `insert_pending_job` for the errors."""
        if isinstance(payload, str):
            text = check_size(payload, "payload", MAX_PAYLOAD_BYTES)
        else:
            text = dump_storable(payload, "payload", MAX_PAYLOAD_BYTES)
        # Bounded before anything walks their values, which takes seconds where they are large.
        tags = dump_field(options.tags, "tags", MAX_METADATA_BYTES)
        metadata = dump_field(dict(options.metadata), "metadata", MAX_METADATA_BYTES)
        check_storable(
            {
                "pipeline": options.pipeline,
                "queue": options.queue,
                "submitted_by": options.submitted_by,
                "idempotency_key": options.idempotency_key,
            }
        )
        submitter = options.submitted_by or ""
        columns = (
            options.pipeline or self._default_pipeline,
            options.queue,
            options.priority,
            options.run_at,
            options.delay_seconds,
            options.max_attempts or 1,
            options.limits.timeout_seconds,
            options.limits.start_timeout_seconds,
            options.limits.stall_seconds,
            options.limits.memory_limit_bytes,
            tags,
            metadata,
            submitter,
            options.idempotency_key,
            options.fingerprint,
            None if options.dataset_id is None else UUID(options.dataset_id),
        )
        return _Row(
            id=UUID(options.job_id or new_id()),
            columns=columns,
            payload=text,
            key=None if options.idempotency_key is None else (submitter, options.idempotency_key),
            fingerprint=options.fingerprint,
            is_due=options.run_at is None and options.delay_seconds <= 0,
        )


@contextmanager
def _unknown_dataset() -> Iterator[None]:
    try:
        yield
    except asyncpg.ForeignKeyViolationError as error:
        found = _NAMED.search(error.detail or "")
        raise DatasetNotFoundError(found[1] if found else "") from None


async def _settle(
    connection: "PoolConnectionProxy[asyncpg.Record]",
    rows: Sequence[_Row],
    *,
    batch_id: UUID | None = None,
    lock_timeout: str | None = None,
) -> list[_Settled]:
    """Insert the rows, and find the job of each whose key was taken."""
    settled: dict[UUID, _Settled] = {}
    left = list(rows)
    for _ in range(_KEY_TRIES):
        columns = zip(*((row.id, *row.columns, row.payload) for row in left), strict=True)
        inserted = await connection.fetch(
            STATEMENTS["insert_pending_jobs"].sql, lock_timeout, batch_id, *map(list, columns)
        )
        new = {record["id"] for record in inserted}
        taken = {row.key for row in left if row.key is not None and row.id not in new}
        jobs = await _jobs_by_key(connection, taken) if taken else {}
        for row in left:
            if row.id in new or row.key is None:
                # A row without a key that was there already is ours, from a call before this.
                settled[row.id] = _Found(row.id, batch_id)
            elif (job := jobs.get(row.key)) is not None:
                settled[row.id] = _claimed_by(row, job)
        left = [row for row in left if row.id not in settled]
        if not left:
            return [settled[row.id] for row in rows]
    raise DatabaseUnavailableError("the job of an idempotency key comes and goes too quickly")


async def _jobs_by_key(
    connection: "PoolConnectionProxy[asyncpg.Record]", keys: Iterable[_Key]
) -> dict[_Key, asyncpg.Record]:
    submitters, names = zip(*keys, strict=True)
    found = await connection.fetch(
        STATEMENTS["find_jobs_by_key"].sql, list(submitters), list(names)
    )
    return {(job["submitted_by"], job["idempotency_key"]): job for job in found}


async def _refusal(
    connection: "PoolConnectionProxy[asyncpg.Record]", rows: Sequence[_Row], key: str
) -> HaulageError | None:
    """Why these rows, which are stored by now, cannot be the batch of this key.

    A batch from before is known by any of its jobs, also where those that these rows would meet
    were deleted.
    """
    [submitter] = {row.key[0] for row in rows if row.key is not None}
    parts = ((submitter, part_key(key, index)) for index in range(MAX_BATCH_ROWS))
    ours = {row.id for row in rows}
    known = [
        job for job in (await _jobs_by_key(connection, parts)).values() if job["id"] not in ours
    ]
    for job in known:
        if job["payload_hash"] != rows[0].fingerprint:
            return IdempotencyKeyReusedError(key, str(job["id"]))
    if known and len(known) < len(rows):
        return BatchPartlyDeletedError(key, len(rows) - len(known))
    return None


def _claimed_by(row: _Row, job: asyncpg.Record) -> _Settled:
    if row.fingerprint is None or row.fingerprint == job["payload_hash"]:
        return _Found(job["id"], job["batch_id"])
    return IdempotencyKeyReusedError(job["idempotency_key"], str(job["id"]))


def _all_found(settled: Iterable[_Settled]) -> Iterator[_Found]:
    for index, one in enumerate(settled):
        if isinstance(one, IdempotencyKeyReusedError):
            raise IdempotencyKeyReusedError(one.key, one.job_id, index)
        yield one


def _statements(rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    """The rows of a batch by statements, keys in the order in which every statement takes them."""
    some: list[_Row] = []
    size_bytes = 0
    for row in sorted(rows, key=lambda row: (row.key is None, row.key or ("", ""))):
        size_bytes += len(row.payload)
        if some and (len(some) == STATEMENT_ROWS or size_bytes > STATEMENT_BYTES):
            yield some
            some, size_bytes = [], len(row.payload)
        some.append(row)
    yield some
