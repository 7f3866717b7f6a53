"""The child's side of a claim: what a pipeline sees as its context, and how its words get stored.

    pipeline --progress--> latest progress, milestones --.
    logging, stdout, stderr --> LogBuffer ----------------> flush loop --> guarded writes
    pipeline --checkpoint, paid call--> guarded write at once, retried while the database is away

Every write names the claim. The first one that is refused means that the job belongs to somebody
else: `on_claim_lost` is called and the session writes nothing more.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn, TypeVar

from app.db.interface import DBInterface
from app.domain.errors import (
    DatabaseUnavailableError,
    GiveUpError,
    JobCancelledError,
    LeaseLostError,
    NothingToDoError,
    RetryLaterError,
)
from app.domain.jobs import MAX_CHECKPOINT_BYTES, ClaimedJob, Progress, Usage
from app.domain.json_values import dump_storable, storable_text
from app.domain.lifecycle import Verdict
from app.domain.sharing import CallUsage, Dataset, FailedCalls
from app.loops import retry_delay_seconds
from app.worker.logs import LogBuffer
from app.worker.shared import MAX_STAGE_CHARACTERS, SharedStore, check_name
from app.worker.threads import in_thread

FLUSH_INTERVAL_SECONDS: Final = 0.5
MAX_MILESTONES: Final = 1_000
STORE_PATIENCE_SECONDS: Final = 1.0
CLOSING_FLUSH_SECONDS: Final = 5.0
# A job that waits for the database goes on soon after that is back.
SIGN_SECONDS: Final = 0.5
RETRY_CAP_SECONDS: Final = 2.0

_logger: Final = logging.getLogger("haulage.worker")
_T = TypeVar("_T")


class WorkerSession:
    """Implements `PipelineContext` for one claimed job.

    Args:
        on_claim_lost: ends this process; called once, when a guarded write was refused.
        on_sign_of_life: called at every progress, checkpoint and retry; must be cheap.
    """

    def __init__(
        self,
        job: ClaimedJob,
        db: DBInterface,
        logs: LogBuffer,
        on_claim_lost: Callable[[], None],
        *,
        flush_interval_seconds: float = FLUSH_INTERVAL_SECONDS,
        on_sign_of_life: Callable[[], None] = lambda: None,
    ) -> None:
        self._job = job
        self._db = db
        self._logs = logs
        self._on_claim_lost = on_claim_lost
        self._on_sign_of_life = on_sign_of_life
        self._flush_interval_seconds = flush_interval_seconds
        self._shared = SharedStore(job.claim, db, self.insist)
        self._latest: Progress | None = None
        self._milestones: list[Progress] = []
        self._stage: str | None = None
        self._milestones_left = MAX_MILESTONES
        self._has_news = asyncio.Event()
        self._is_store_away = False
        self._has_complained = False
        self._is_stored = asyncio.Event()
        self._stored_at = time.monotonic()
        self._is_cancelled = False
        self._is_lost = False
        self._is_closing = False
        self._flushing: asyncio.Task[None] | None = None

    # -- what a pipeline sees -----------------------------------------------------------------

    @property
    def job_id(self) -> str:
        """See PipelineContext."""
        return self._job.id

    @property
    def attempt(self) -> int:
        """See PipelineContext."""
        return self._job.attempt

    @property
    def is_last_attempt(self) -> bool:
        """See PipelineContext."""
        return self._job.attempt >= self._job.max_attempts

    @property
    def deadline(self) -> datetime | None:
        """See PipelineContext."""
        if self._job.timeout_seconds is None:
            return None
        return self._job.claimed_at.astimezone(UTC) + timedelta(seconds=self._job.timeout_seconds)

    @property
    def idempotency_key(self) -> str:
        """See PipelineContext."""
        return f"haulage-{self._job.id}"

    @property
    def logger(self) -> logging.Logger:
        """See PipelineContext."""
        return logging.getLogger(f"pipeline.{self._job.pipeline}")

    @property
    def is_cancelled(self) -> bool:
        """See PipelineContext."""
        return self._is_cancelled

    def check_cancelled(self) -> None:
        """See PipelineContext."""
        if self._is_cancelled:
            raise JobCancelledError("the job is to end")

    async def progress(
        self, fraction: float, stage: str | None = None, message: str | None = None
    ) -> None:
        """See PipelineContext."""
        self._on_sign_of_life()
        report = Progress(
            fraction=min(1.0, max(0.0, float(fraction))),
            stage=self._stage if stage is None else storable_text(stage, MAX_STAGE_CHARACTERS),
            message=None if message is None else self._logs.shown(message),
        )
        self._latest = report
        is_milestone = report.stage is not None and report.stage != self._stage
        if is_milestone:
            self._stage = report.stage
            is_milestone = self._milestones_left > 0
        if is_milestone:
            self._milestones_left -= 1
            self._milestones.append(report)
        if is_milestone or time.monotonic() - self._stored_at > self._flush_interval_seconds:
            self._has_news.set()
            if self._is_store_away:
                return
            # Waited for, since a pipeline that blocks the loop next would hide it; bounded, since
            # a pipeline must not stand still for a database that is away.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STORE_PATIENCE_SECONDS):
                    # Looked at again: the flush that ends next may have begun before this report.
                    while self._is_waiting(report):
                        self._is_stored.clear()
                        await self._is_stored.wait()

    async def save_checkpoint(self, stage: str, data: Any) -> None:
        """See PipelineContext."""
        self._on_sign_of_life()
        check_name(stage)
        text = await in_thread(
            lambda: dump_storable(data, f"checkpoint {stage!r}", MAX_CHECKPOINT_BYTES)
        )
        await self.insist(lambda: self._db.save_checkpoint(self._job.claim, stage, text))

    async def load_checkpoint(self, stage: str, *, of_job: str | None = None) -> Any | None:
        """See PipelineContext."""
        check_name(stage)
        job_id = self._job.id if of_job is None else of_job
        text = await self.insist(lambda: self._db.load_checkpoint(job_id, stage))
        return None if text is None else await in_thread(lambda: json.loads(text))

    async def load_call(self, key: str) -> Any | None:
        """See PipelineContext."""
        return await self._shared.load_call(key)

    async def save_call(
        self,
        key: str,
        answer: Any,
        *,
        stage: str,
        model: str,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cost: float = 0.0,
    ) -> None:
        """See PipelineContext."""
        self._on_sign_of_life()
        await self._shared.save_call(
            key,
            answer,
            stage=stage,
            model=model,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cost=cost,
        )

    async def count_cached_calls(self, stage: str, model: str, calls: int) -> None:
        """See PipelineContext."""
        await self._shared.count_cached_calls(stage, model, calls)

    async def count_failed_calls(
        self,
        stage: str,
        model: str,
        calls: int,
        *,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cost: float = 0.0,
    ) -> None:
        """See PipelineContext."""
        await self._shared.count_failed_calls(
            stage, model, FailedCalls(calls, prompt_tokens, completion_tokens, cost)
        )

    async def load_usage(self) -> Sequence[CallUsage]:
        """See PipelineContext."""
        return await self._shared.load_usage()

    async def dataset(self, dataset_id: str) -> Dataset:
        """See PipelineContext."""
        return await self._shared.dataset(dataset_id)

    def dataset_rows(
        self, dataset_id: str, columns: Sequence[str]
    ) -> AsyncIterator[Mapping[str, str]]:
        """See PipelineContext."""
        return self._shared.dataset_rows(dataset_id, columns)

    def retry_later(self, delay_seconds: float, reason: str) -> NoReturn:
        """See PipelineContext."""
        raise RetryLaterError(max(0.0, float(delay_seconds)), reason)

    def give_up(self, reason: str) -> NoReturn:
        """See PipelineContext."""
        raise GiveUpError(reason)

    def nothing_to_do(self, reason: str) -> NoReturn:
        """See PipelineContext."""
        raise NothingToDoError(reason)

    # -- what the worker's entry does with it -------------------------------------------------

    def cancel(self) -> None:
        """The job is to end: `is_cancelled` is true from now on."""
        self._is_cancelled = True

    def open(self) -> None:
        """Start storing what the pipeline reports."""
        self._flushing = asyncio.create_task(self._flush_loop(), name="haulage-flush")
        self._flushing.add_done_callback(self._go_on_flushing)

    def _go_on_flushing(self, flushing: asyncio.Task[None]) -> None:
        # A pipeline that cancels all tasks of its loop means its own.
        if flushing.cancelled() and not self._is_closing:
            self.open()

    async def close(self) -> None:
        """Store what is still waiting, within a few seconds, and stop."""
        if self._flushing is not None:
            # Asked to end, not cancelled: a write under way would be repeated below.
            self._is_closing = True
            self._has_news.set()
            _, pending = await asyncio.wait({self._flushing}, timeout=CLOSING_FLUSH_SECONDS)
            for task in pending:
                task.cancel()
                await asyncio.wait({task})
        self._logs.note_dropped()
        try:
            async with asyncio.timeout(CLOSING_FLUSH_SECONDS):
                await self.insist(self._flush_once)
        except Exception:  # what was reported must never decide about the outcome
            _logger.exception("the last progress and log lines are not stored")

    async def finish(self, verdict: Verdict, usage: Usage) -> bool:
        """Settle the claim, trying until the database answers; whether this session settled it."""
        tries = 0

        def finish() -> Awaitable[bool]:
            nonlocal tries
            tries += 1
            return self._db.finish_job(self._job.claim, verdict, usage)

        if await self.insist(finish):
            return True
        # An earlier try may have been committed and only its answer have got lost.
        return tries > 1 and await self._has_ended_as(verdict)

    async def _has_ended_as(self, verdict: Verdict) -> bool:
        attempts = await self.insist(lambda: self._db.list_attempts(self._job.id))
        ours = [(a.outcome, a.cause) for a in attempts if a.claim_no == self._job.claim_no]
        return ours == [(verdict.outcome, verdict.cause)]

    async def insist(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat `call` while the database is away; a refused write ends the session."""
        failures = 0
        while True:
            try:
                return await self._signing(call())
            except DatabaseUnavailableError as error:
                failures += 1
                self._on_sign_of_life()
                _logger.warning("database is away, trying again: %s", error)
                delay = retry_delay_seconds(failures, max_seconds=RETRY_CAP_SECONDS)
                await asyncio.sleep(delay)
            except LeaseLostError:
                self._lose_claim()
                raise

    async def _signing(self, work: Awaitable[_T]) -> _T:
        """Wait for the database with signs of life: that it hangs is no standstill of the job."""
        waiting = asyncio.ensure_future(work)
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=SIGN_SECONDS)
                self._on_sign_of_life()
            return waiting.result()
        finally:
            if not waiting.done():
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)

    def _lose_claim(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._on_claim_lost()

    async def _flush_loop(self) -> None:
        failures = 0
        while not self._is_lost and not self._is_closing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._flush_interval_seconds):
                    await self._has_news.wait()
            self._has_news.clear()
            try:
                await self._flush_once()
                failures = 0
                self._is_store_away = False
                self._stored_at = time.monotonic()
            except LeaseLostError:
                self._lose_claim()
            except DatabaseUnavailableError:
                failures += 1
                self._on_sign_of_life()
                self._is_store_away = True
                await asyncio.sleep(retry_delay_seconds(failures, max_seconds=RETRY_CAP_SECONDS))

    async def _flush_once(self) -> None:
        claim = self._job.claim
        while self._milestones:
            milestone = self._milestones[0]
            await self._stored(self._db.report_progress(claim, milestone, is_milestone=True))
            self._milestones.pop(0)
            if self._latest is milestone:
                self._latest = None
        if (latest := self._latest) is not None:
            await self._stored(self._db.report_progress(claim, latest))
            if self._latest is latest:
                self._latest = None
        self._is_stored.set()
        while lines := self._logs.take():
            try:
                await self._stored(self._db.append_logs(claim, lines))
            except BaseException:
                self._logs.put_back(lines)
                raise

    def _is_waiting(self, report: Progress) -> bool:
        return self._latest is report or any(report is waiting for waiting in self._milestones)

    async def _stored(self, write: Awaitable[None]) -> None:
        """Wait for a write; one that the store will never take is dropped with a word about it."""
        try:
            await write
        except (DatabaseUnavailableError, LeaseLostError):
            raise
        except Exception as error:  # noqa: BLE001  reports must not end the job that makes them
            # Once: the complaint is a log line too.
            if not self._has_complained:
                self._has_complained = True
                _logger.warning("a report of the job was refused and is dropped: %r", error)
