"""Submissions in MongoDB: single ones in groups, batches whole or not at all; it runs no jobs.

Whether an idempotency key is new is decided by the unique index. Within a transaction a duplicate
ends everything, so keys are looked for first; where somebody else's job comes in between, the
transaction is done again and finds it.
"""

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from pymongo import UpdateOne

from app.db.grouping import Grouping
from app.db.ids import new_id
from app.db.mongo.calls import MongoCalls, Session, key_of, unless_there
from app.db.mongo.connections import Document
from app.db.mongo.datasets import WHOLE
from app.db.mongo.documents import new_job, new_job_instants
from app.db.mongo.instants import instant, micros, now_plus, span
from app.db.mongo.texts import normal_text, packed, text_of
from app.domain.errors import (
    BatchNotFoundError,
    BatchPartlyDeletedError,
    DatasetNotFoundError,
    IdempotencyKeyReusedError,
    InvalidJsonError,
    TooLargeError,
)
from app.domain.jobs import MAX_METADATA_BYTES, MAX_PAYLOAD_BYTES, JobOptions, JobStatus, WakeUp
from app.domain.json_values import check_size, check_storable, dump_field, dump_storable
from app.domain.sharing import dataset_of
from app.domain.submissions import (
    MAX_BATCH_BYTES,
    MAX_BATCH_ROWS,
    Batch,
    BatchReceipt,
    Submission,
    part_key,
)

BATCH_SECONDS: Final = 30.0
CLOSE_SECONDS: Final = 0.5

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Row:
    """A job as it is stored.

    Attributes:
        document: values of the job's document but for those that the server's clock decides.
        payload: pieces of its text.
    """

    id: str
    document: Document
    run_at: Any
    payload: list[Document]
    size_bytes: int
    key: _Key | None
    fingerprint: bytes | None
    is_due: bool


@dataclass(frozen=True, slots=True)
class _Found:
    """The job that a row has come to, whoever made it."""

    id: str
    batch_id: str | None


_Settled = _Found | IdempotencyKeyReusedError


class MongoSubmitting(MongoCalls):
    """The part of `DBInterface` about submitting."""

    def __init__(
        self,
        url: str,
        application_name: str,
        *,
        default_pipeline: str,
        max_connections: int,
        command_timeout_seconds: float,
        notify: bool,
    ) -> None:
        super().__init__(
            url,
            application_name,
            max_connections=max_connections,
            command_timeout_seconds=command_timeout_seconds,
            notify=notify,
        )
        self._default_pipeline = default_pipeline
        self._groups: Grouping[_Row, str] = Grouping(self._store_group)

    async def close(self) -> None:
        """See DBInterface."""
        await self._groups.flush(CLOSE_SECONDS)
        await super().close()

    async def insert_pending_job(
        self, payload: dict[str, Any] | str, options: JobOptions | None = None
    ) -> str:
        """See DBInterface."""
        row = await self._row(payload, options or JobOptions())
        # Waiting for a place in a group and all tries together take no longer than one call may.
        with self._within():
            async with asyncio.timeout(self._command_timeout_seconds):
                return await self._groups.submit(row, row.size_bytes)

    async def insert_pending_jobs(
        self, submissions: Sequence[Submission], *, key: str | None = None
    ) -> BatchReceipt:
        """See DBInterface."""
        if not 1 <= len(submissions) <= MAX_BATCH_ROWS:
            raise ValueError(f"{len(submissions)} submissions; 1 to {MAX_BATCH_ROWS} are a batch")
        rows = await self._rows(submissions)
        batch_id = new_id()

        async def store(session: Session) -> list[_Found]:
            settled = await self._settle(rows, session, batch_id)
            found = [_found(index, one) for index, one in enumerate(settled)]
            if key is not None:
                await self._check_whole(rows, key, session)
            return found

        found = await self._in_transaction(store, BATCH_SECONDS)
        self._wake_for_due(rows, found)
        batches = {one.batch_id for one in found}
        common = batch_id if batch_id in batches else batches.pop() if len(batches) == 1 else None
        return BatchReceipt(
            id=common,
            job_ids=tuple(one.id for one in found),
            replayed=frozenset(
                index
                for index, (row, one) in enumerate(zip(rows, found, strict=True))
                if one.id != row.id
            ),
        )

    async def find_submission(self, submitter: str, key: str, fingerprint: bytes) -> str | None:
        """See DBInterface."""
        async with self._bounded():
            job = await self._collection("jobs").find_one(
                {"submitted_by": submitter, "idempotency_key": key}, {"payload_hash": 1}
            )
        if job is None:
            return None
        if job["payload_hash"] != fingerprint:
            raise IdempotencyKeyReusedError(key, job["_id"])
        return str(job["_id"])

    async def get_batch(self, batch_id: str) -> Batch:
        """See DBInterface."""
        async with self._bounded():
            groups = await self._collection("jobs").aggregate(
                [
                    {"$match": {"batch_id": key_of(batch_id)}},
                    {
                        "$group": {
                            "_id": "$status",
                            "n": {"$sum": 1},
                            "created_at": {"$min": "$created_at"},
                        }
                    },
                ]
            )
            counted = {group["_id"]: group async for group in groups}
        if not counted:
            raise BatchNotFoundError(batch_id)
        by_status = {s.value: counted.get(s.value, {}).get("n", 0) for s in JobStatus}
        return Batch(
            id=key_of(batch_id),
            total=sum(by_status.values()),
            created_at=instant(min(group["created_at"] for group in counted.values())),
            **by_status,
        )

    async def _store_group(self, rows: Sequence[_Row]) -> list[str | Exception]:
        """The jobs of a group, or why not."""
        settled = await self._in_transaction(lambda session: self._settle(rows, session))
        self._wake_for_due(rows, settled)
        return [one.id if isinstance(one, _Found) else one for one in settled]

    async def _settle(
        self, rows: Sequence[_Row], session: Session, batch_id: str | None = None
    ) -> list[_Settled]:
        """Insert the rows, and find the job of each whose key was taken."""
        by_key = await self._jobs_by_key((row.key for row in rows if row.key), session)
        new: list[_Row] = []
        settled: list[_Settled] = []
        for row in rows:
            if row.key is not None and (job := by_key.get(row.key)) is not None:
                settled.append(_claimed_by(row, job))
                continue
            new.append(row)
            settled.append(_Found(row.id, batch_id))
            if row.key is not None:
                made = {"_id": row.id, "batch_id": batch_id, "payload_hash": row.fingerprint}
                by_key[row.key] = {**made, "idempotency_key": row.key[1]}
        if new:
            await self._insert(new, batch_id, session)
        return settled

    async def _insert(self, rows: Sequence[_Row], batch_id: str | None, session: Session) -> None:
        await self._pin_datasets({row.document["dataset_id"] for row in rows} - {None}, session)
        made = await self._collection("jobs").bulk_write(
            [
                UpdateOne(
                    {"_id": row.id},
                    unless_there(
                        {**row.document, "batch_id": batch_id}, new_job_instants(row.run_at)
                    ),
                    upsert=True,
                )
                for row in rows
            ],
            session=session,
        )
        # One that was there is ours, from a call whose answer got lost: its payload is there, too.
        ids = set((made.upserted_ids or {}).values())
        payloads = [{"job_id": row.id, **p} for row in rows if row.id in ids for p in row.payload]
        if payloads:
            await self._collection("job_payloads").insert_many(payloads, session=session)

    async def _pin_datasets(self, ids: set[str], session: Session) -> None:
        """Have whoever deletes one of these datasets meanwhile conflict with this transaction."""
        for dataset_id in sorted(ids):
            pinned = await self._collection("datasets").update_one(
                {"_id": dataset_id, **WHOLE}, {"$inc": {"pins": 1}}, session=session
            )
            if not pinned.matched_count:
                raise DatasetNotFoundError(dataset_id)

    async def _jobs_by_key(self, keys: Iterable[_Key], session: Session) -> dict[_Key, Document]:
        names: dict[str, list[str]] = {}
        for submitter, name in keys:
            names.setdefault(submitter, []).append(name)
        if not names:
            return {}
        found = self._collection("jobs").find(
            {
                "$or": [
                    {"submitted_by": submitter, "idempotency_key": {"$in": some}}
                    for submitter, some in names.items()
                ]
            },
            {"submitted_by": 1, "idempotency_key": 1, "payload_hash": 1, "batch_id": 1},
            session=session,
        )
        return {(job["submitted_by"], job["idempotency_key"]): job async for job in found}

    async def _check_whole(self, rows: Sequence[_Row], key: str, session: Session) -> None:
        """Refuse rows, which are stored by now, that cannot be the batch of this key.

        A batch from before is known by any of its jobs, also where those that these rows would
        meet were deleted.
        """
        [submitter] = {row.key[0] for row in rows if row.key is not None}
        parts = [(submitter, part_key(key, index)) for index in range(MAX_BATCH_ROWS)]
        ours = {row.id for row in rows}
        known = [
            job
            for job in (await self._jobs_by_key(parts, session)).values()
            if job["_id"] not in ours
        ]
        for job in known:
            if job["payload_hash"] != rows[0].fingerprint:
                raise IdempotencyKeyReusedError(key, job["_id"])
        if known and len(known) < len(rows):
            raise BatchPartlyDeletedError(key, len(rows) - len(known))

    def _wake_for_due(self, rows: Iterable[_Row], settled: Iterable[_Settled]) -> None:
        for row, one in zip(rows, settled, strict=True):
            if row.is_due and isinstance(one, _Found) and one.id == row.id:
                self._request_wake_up(WakeUp.JOBS)
                return

    async def _rows(self, submissions: Sequence[Submission]) -> list[_Row]:
        rows = []
        size_bytes = 0
        for index, submission in enumerate(submissions):
            try:
                row = await self._row(submission.payload, submission.options)
            except InvalidJsonError as error:
                raise InvalidJsonError(f"/{index}{error.pointer}", error.reason) from None
            except TooLargeError as error:
                what = f"{error.what} of submission {index}"
                raise TooLargeError(what, error.size_bytes, error.limit_bytes) from None
            size_bytes += len(submission.payload.encode())
            rows.append(row)
        if size_bytes > MAX_BATCH_BYTES:
            raise TooLargeError("the payloads of a batch", size_bytes, MAX_BATCH_BYTES)
        return rows

    async def _row(self, payload: dict[str, Any] | str, options: JobOptions) -> _Row:
        """What is submitted, checked; see `insert_pending_job` for the errors."""
        if isinstance(payload, str):
            text = await normal_text(check_size(payload, "payload", MAX_PAYLOAD_BYTES))
        else:
            dump_storable(payload, "payload", MAX_PAYLOAD_BYTES)
            text = text_of(payload)
        dump_field(options.tags, "tags", MAX_METADATA_BYTES)
        dump_field(dict(options.metadata), "metadata", MAX_METADATA_BYTES)
        check_storable(
            {
                "pipeline": options.pipeline,
                "queue": options.queue,
                "submitted_by": options.submitted_by,
                "idempotency_key": options.idempotency_key,
            }
        )
        pieces = await packed(text)
        named = dataset_of(payload) if isinstance(payload, dict) else _dataset_in(text)
        submitter = options.submitted_by or ""
        key = options.idempotency_key
        given = options.run_at
        return _Row(
            id=new_id() if options.job_id is None else str(UUID(options.job_id)),
            document={
                **new_job(options, self._default_pipeline),
                "payload_bytes": sum(len(piece["data"]) for piece in pieces),
            },
            run_at=now_plus(options.delay_seconds)
            if given is None
            else micros(given) + span(options.delay_seconds),
            payload=[{**piece, "dataset": named} for piece in pieces],
            size_bytes=len(text),
            key=None if key is None else (submitter, key),
            fingerprint=options.fingerprint,
            is_due=given is None and options.delay_seconds <= 0,
        )


def _dataset_in(text: str) -> str | None:
    if '"dataset"' not in text:
        return None
    payload = json.loads(text)
    return dataset_of(payload) if isinstance(payload, dict) else None


def _claimed_by(row: _Row, job: Document) -> _Settled:
    if row.fingerprint is None or row.fingerprint == job["payload_hash"]:
        return _Found(job["_id"], job["batch_id"])
    return IdempotencyKeyReusedError(job["idempotency_key"], job["_id"])


def _found(index: int, one: _Settled) -> _Found:
    if isinstance(one, IdempotencyKeyReusedError):
        raise IdempotencyKeyReusedError(one.key, one.job_id, index)
    return one
