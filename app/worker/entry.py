"""The single entry point of every worker process.

    configure logging -> create the event loop -> connect -> load the pipeline -> run
        -> report -> clean up -> exit

Each step's failure has a cause of its own; clean-up always runs. A worker settles its job itself
(outcome -> decide -> finish); where it cannot, its exit code says why and the manager decides.
Nothing of the web stack, SQLAlchemy or pydantic may be imported from here.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import IntEnum
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final, cast
from weakref import WeakSet

from app.db.interface import DBFactory, DBInterface
from app.domain.errors import (
    DatabaseUnavailableError,
    GiveUpError,
    InvalidJsonError,
    LeaseLostError,
    NothingToDoError,
    PipelineLoadError,
    RetryLaterError,
    TooLargeError,
)
from app.domain.jobs import MAX_RESULT_BYTES, Cause, ClaimedJob, ErrorInfo
from app.domain.json_values import describe_exception, dump_storable, message_of
from app.domain.lifecycle import (
    Completed,
    GaveUp,
    NothingToDo,
    Outcome,
    Raised,
    RetryAsked,
    decide,
)
from app.domain.masking import Mask, secret_values
from app.loops import retry_delay_seconds
from app.worker.guard import StopNote
from app.worker.isolation import end_group, isolate, usage
from app.worker.loading import _load_analysis
from app.worker.logs import LogBuffer, OutputCapture
from app.worker.reports import Report, ReportWriter
from app.worker.session import RETRY_CAP_SECONDS, WorkerSession
from app.worker.threads import in_thread

CONNECT_PATIENCE_SECONDS: Final = 30.0
# For tasks that a pipeline leaves behind to be cancelled.
LEFT_TASKS_SECONDS: Final = 0.3

_is_pipelines: Final = ContextVar("_is_pipelines", default=False)


class ExitCode(IntEnum):
    """What a worker's exit code means; success is a stored result, not a 0."""

    SETTLED = 0
    BROKEN = 70
    NOT_CONNECTED = 71
    CLAIM_LOST = 72
    TERMINATED = 73
    NO_LOGGING = 74
    NO_EVENT_LOOP = 75


def worker_entry(
    job_id: str,
    payload: str | None,
    db_factory: DBFactory,
    pipeline: str,
    logger: str | None = None,
    *,
    claim_no: int = 1,
    attempt: int = 1,
    max_attempts: int = 1,
    node_losses: int = 0,
    pipeline_name: str = "",
    constructor_args: str = "{}",
    timeout_seconds: float | None = None,
    claimed_at: str | None = None,
    report_pipe: Connection | None = None,
) -> None:
    """Run one claimed job in this process and end the process.

    Args:
        payload: JSON text; None where the worker reads it from the database.
        pipeline: import path "package.module:Class".
        logger: name of the logger for the worker's own lines.
        constructor_args: JSON object of the pipeline's registered arguments.
        claimed_at: ISO 8601 instant of the claim.
        report_pipe: gets the lines of `app.worker.reports`; nothing else crosses to the manager
            but the exit code.
    """
    job = ClaimedJob(
        id=job_id,
        claim_no=claim_no,
        pipeline=pipeline_name or pipeline,
        attempt=attempt,
        max_attempts=max_attempts,
        node_losses=node_losses,
        timeout_seconds=timeout_seconds,
        # The manager's business.
        start_timeout_seconds=None,
        stall_seconds=None,
        memory_limit_bytes=None,
        claimed_at=datetime.fromisoformat(claimed_at) if claimed_at else datetime.now(UTC),
        payload=payload,
    )
    is_child = multiprocessing.parent_process() is not None
    reports = ReportWriter(report_pipe)
    note = isolate(job.claim, reports) if is_child else StopNote()
    on_sigterm = signal.getsignal(signal.SIGTERM)
    logs = LogBuffer(mask=Mask(secret_values(os.environ, constructor_args)))
    output: OutputCapture | None = None
    broken: str | None = None
    loop: asyncio.AbstractEventLoop | None = None
    # What it means if the step under way is the one that fails.
    exit_code = ExitCode.NO_LOGGING
    try:
        output = OutputCapture(logs)
        exit_code = ExitCode.NO_EVENT_LOOP
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        exit_code = ExitCode.BROKEN
        work = _Work(job, db_factory, pipeline, constructor_args, logs, output, logger)
        work.on_claim_lost = end_group if is_child else work.on_claim_lost
        work.reports = reports
        work.note = note
        exit_code = _settled(work, loop)
    except BaseException:  # noqa: BLE001  whatever it is: clean up and say so
        broken = traceback.format_exc()
    if output is not None:
        with contextlib.suppress(OSError):  # a job may have closed descriptors that are not its
            output.release()
    if broken:
        sys.stderr.write(broken)
        sys.stderr.flush()
    if is_child:
        reports.tell(Report.LEAVING, exit_code)
        # Threads that a pipeline left behind must not hold the process, so no normal exit.
        os._exit(exit_code)
    signal.signal(signal.SIGTERM, on_sigterm)
    if loop is not None:
        loop.close()
    if exit_code is not ExitCode.SETTLED:
        sys.exit(exit_code)


def _settled(work: "_Work", loop: asyncio.AbstractEventLoop) -> ExitCode:
    try:
        return loop.run_until_complete(work.perform())
    except BaseException as error:
        work.end_copy()
        if not work.has_begun:
            raise
        # The pipeline took its loop or its descriptors apart, or something that it left behind
        # called sys.exit: with a loop and a connection of its own the end can still be told.
        another = asyncio.new_event_loop()
        asyncio.set_event_loop(another)
        try:
            return another.run_until_complete(work.tell_anew(error))
        finally:
            another.close()


class _Work:
    """One run of one job, step by step."""

    def __init__(
        self,
        job: ClaimedJob,
        db_factory: DBFactory,
        target: str,
        constructor_args: str,
        logs: LogBuffer,
        output: OutputCapture,
        logger: str | None,
    ) -> None:
        self._job = job
        self._db_factory = db_factory
        self._target = target
        self._constructor_args = constructor_args
        self._logs = logs
        self._output = output
        self._logger = logging.getLogger(logger or "haulage.worker")
        self._pid = os.getpid()
        self._outcome: Outcome | None = None
        self._is_cancelled = False
        # What the pipeline started and did not wait for.
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.has_begun = False
        self.on_claim_lost: Callable[[], None] = lambda: None
        self.reports = ReportWriter(None)
        self.note = StopNote()

    async def perform(self) -> ExitCode:
        """Connect, run, report, clean up; every path gives an exit code."""
        return await self._in_session(self._run_and_report)

    async def tell_anew(self, error: BaseException) -> ExitCode:
        """Report the end where `perform` has lost its loop or its connection by `error`."""
        # First, and before a new descriptor can get the number of one that the job has closed.
        self._output.release()
        if self._outcome is None:
            if self._is_to_end:
                return ExitCode.TERMINATED
            is_of_pipeline = isinstance(error, SystemExit | KeyboardInterrupt)
            cause = Cause.EXCEPTION if is_of_pipeline else Cause.WORKER_BROKEN
            self._outcome = Raised(describe_exception(error, self._logs.mask), cause)
        outcome = self._outcome
        return await self._in_session(lambda session, _: self._report(session, outcome))

    async def _in_session(
        self, work: Callable[[WorkerSession, DBInterface], Awaitable[ExitCode]]
    ) -> ExitCode:
        db = self._db_factory()
        session = WorkerSession(
            self._job, db, self._logs, self.on_claim_lost, on_sign_of_life=self.reports.sign
        )
        try:
            return await work(session, db)
        except LeaseLostError:
            return ExitCode.CLAIM_LOST
        finally:
            await db.close()

    async def _run_and_report(self, session: WorkerSession, db: DBInterface) -> ExitCode:
        try:
            await self._connect(db)
        except DatabaseUnavailableError:
            return ExitCode.NOT_CONNECTED
        self.reports.tell(Report.CONNECTED)
        session.open()
        self._outcome = await self._outcome_of_run(session, db)
        if self._outcome is None:
            return ExitCode.TERMINATED
        return await self._report(session, self._outcome)

    @property
    def _is_to_end(self) -> bool:
        """Whether somebody told the worker to end, also where the job took the signal's handler."""
        return self._is_cancelled or self.note.is_written

    async def _connect(self, db: DBInterface) -> None:
        # A server without a free connection, or one that restarts, is worth waiting for: the
        # job has done nothing yet.
        try:
            async with asyncio.timeout(CONNECT_PATIENCE_SECONDS):
                await self._insist_on_start(db)
        except TimeoutError as error:
            said = f"no connection in {CONNECT_PATIENCE_SECONDS:g} s"
            raise DatabaseUnavailableError(said) from error

    async def _insist_on_start(self, db: DBInterface) -> None:
        for failures in itertools.count(1):
            try:
                await db.report_started(self._job.claim, os.getpid())
            except DatabaseUnavailableError as error:
                self.reports.sign()
                if failures == 1:
                    # Stored once there is a connection: why the job began late.
                    self._logger.warning("waiting for a database connection: %s", error)
                # Soon again: meanwhile it occupies a slot.
                await asyncio.sleep(retry_delay_seconds(failures, max_seconds=RETRY_CAP_SECONDS))
            else:
                return

    async def _outcome_of_run(self, session: WorkerSession, db: DBInterface) -> Outcome | None:
        """How the run ended; None where the manager asked for the end and writes it itself."""
        running = asyncio.create_task(self._run(session, db), name="haulage-run")
        loop = asyncio.get_running_loop()

        def on_terminate(*_: object) -> None:
            # Once: who stops a service may signal guard and worker, which is twice for us.
            if not session.is_cancelled:
                # Seen at once by a pipeline that blocks the loop and looks at `is_cancelled`.
                session.cancel()
                self._is_cancelled = True
                loop.call_soon_threadsafe(running.cancel)

        signal.signal(signal.SIGTERM, on_terminate)
        while not running.done():
            # A pipeline that cancels all tasks of its loop means its own: only that one decides.
            with contextlib.suppress(asyncio.CancelledError):
                # Waited for, not awaited: whatever the pipeline raises stays inside its task.
                await asyncio.wait({running})
        if left := set(self._tasks):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(left, timeout=LEFT_TASKS_SECONDS)
        if running.cancelled():
            outcome: Outcome = Raised(ErrorInfo("CancelledError", "the pipeline cancelled itself"))
        elif (failure := running.exception()) is not None:
            outcome = _outcome_of(failure, self._logs.mask)
        else:
            outcome = running.result()
        # An error of a job that was told to end, or its exit, is part of that end; what it has
        # completed counts all the same.
        is_complete = isinstance(outcome, Completed | NothingToDo)
        return None if self._is_to_end and not is_complete else outcome

    async def _run(self, session: WorkerSession, db: DBInterface) -> Outcome:
        self.has_begun = True
        try:
            pipeline = _load_analysis(self._target, json.loads(self._constructor_args))
        except PipelineLoadError as error:
            return Raised(describe_exception(error, self._logs.mask), Cause.LOAD_FAILED)
        finally:
            self.end_copy()
        self.reports.tell(Report.LOADED)
        text = self._job.payload
        if text is None:
            text = await session.insist(lambda: db.load_payload(self._job.claim))
        payload = json.loads(text)
        asyncio.get_running_loop().set_task_factory(self._started)
        _is_pipelines.set(True)
        try:
            try:
                result = await pipeline.run(payload, session)
            finally:
                self.end_copy()
                # Now: on the next turn of the loop one of them could already block it.
                for task in self._tasks:
                    task.cancel()
            # Kept here too: a task that was left may yet end the loop.
            self._outcome = await _stored(result, self._logs.mask)
        except (SystemExit, KeyboardInterrupt) as error:
            # An exit in a pipeline means its own failure; it must not end the worker's loop.
            return Raised(describe_exception(error, self._logs.mask))
        return self._outcome

    def _started(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> "asyncio.Task[Any]":
        task = asyncio.Task(coroutine, loop=loop, **options)
        if _is_pipelines.get():
            self._tasks.add(task)
        return task

    def end_copy(self) -> None:
        """End this process if the pipeline forked it: only the original speaks for the job."""
        if os.getpid() == self._pid:
            return
        error = sys.exception()
        if error is not None:
            traceback.print_exception(error)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(0 if error is None else 1)

    async def _report(self, session: WorkerSession, outcome: Outcome) -> ExitCode:
        self.reports.tell(Report.OUTCOME)
        # Progress and logs first: once the job is settled its claim may write no more.
        await in_thread(self._output.release)
        await session.close()
        verdict = decide(outcome, self._job)
        if not await session.finish(verdict, usage()):
            self._logger.warning("job %s was settled by somebody else", self._job.id)
            return ExitCode.CLAIM_LOST
        return ExitCode.SETTLED


async def _stored(result: object, mask: Mask) -> Outcome:
    try:
        text = await in_thread(partial(dump_storable, result, "result", MAX_RESULT_BYTES))
    except (InvalidJsonError, TooLargeError, RecursionError) as error:
        return Raised(describe_exception(error, mask), Cause.RESULT_REFUSED)
    return Completed(text)


def _outcome_of(failure: BaseException, mask: Mask) -> Outcome:
    """What an exception of a pipeline means; of an odd one nothing but its class is relied upon."""
    kind = type(failure)
    if issubclass(kind, LeaseLostError):
        raise failure
    if issubclass(kind, RetryLaterError):
        delay_seconds = cast(RetryLaterError, failure).delay_seconds
        return RetryAsked(delay_seconds, describe_exception(failure, mask))
    if issubclass(kind, GiveUpError):
        return GaveUp(describe_exception(failure, mask))
    if issubclass(kind, NothingToDoError):
        return NothingToDo(message_of(failure, mask))
    if issubclass(kind, MemoryError):
        # What its frames hold may be all that there was.
        traceback.clear_frames(failure.__traceback__)
    return Raised(describe_exception(failure, mask))
