"""The single entry point of every worker process.

    configure logging -> create the event loop -> connect -> load the pipeline -> run
        -> report -> clean up -> exit

Each step's failure has a cause of its own; clean-up always runs. A worker settles its job itself
(outcome -> decide -> finish); where it cannot, its exit code says why and the manager decides.
Nothing of the web stack, SQLAlchemy or pydantic may be imported from here.
"""

import asyncio
import contextlib
import importlib
import inspect
import json
import logging
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import IntEnum
from multiprocessing.connection import Connection
from typing import Any, Final, cast

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
from app.domain.json_values import describe_exception, dump_storable, storable_text
from app.domain.lifecycle import (
    Completed,
    GaveUp,
    NothingToDo,
    Outcome,
    Raised,
    RetryAsked,
    decide,
)
from app.loops import retry_delay_seconds
from app.pipelines.interface import PipeLineInterface
from app.worker.isolation import end_group, isolate, usage
from app.worker.logs import LogBuffer, OutputCapture
from app.worker.reports import Report, ReportWriter
from app.worker.session import WorkerSession

CONNECT_PATIENCE_SECONDS: Final = 30.0


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
    if is_child:
        isolate(job.claim, reports)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    logs = LogBuffer()
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
        exit_code = loop.run_until_complete(work.perform())
    except BaseException:  # noqa: BLE001  a pipeline's stray sys.exit included: clean up and say so
        broken = traceback.format_exc()
    if output is not None:
        with contextlib.suppress(OSError):  # a job may have closed descriptors that are not its
            output.release()
    if broken:
        sys.stderr.write(broken)
        sys.stderr.flush()
    if is_child:
        # Threads that a pipeline left behind must not hold the process, so no normal exit.
        os._exit(exit_code)
    signal.signal(signal.SIGTERM, on_sigterm)
    if loop is not None:
        loop.close()
    if exit_code is not ExitCode.SETTLED:
        sys.exit(exit_code)


def _load_analysis(
    pipeline: str, constructor_args: Mapping[str, Any] | None = None
) -> PipeLineInterface:
    """Import "package.module:Class", check it and construct it.

    Raises:
        PipelineLoadError: with the reason; an exception of the module itself is its cause.
    """
    found = import_class(pipeline)
    if not inspect.iscoroutinefunction(getattr(found, "run", None)):
        raise PipelineLoadError(
            pipeline, "its class has no `async def run(self, payload, context)`"
        )
    try:
        loaded = cast("PipeLineInterface", found(**(constructor_args or {})))
    except (Exception, SystemExit) as error:
        reason = f"constructor raised {type(error).__name__}: {error}"
        raise PipelineLoadError(pipeline, reason) from error
    return loaded


def import_class(target: str) -> Any:
    """The class at "package.module:Class"; PipelineLoadError."""
    module_name, _, class_name = target.partition(":")
    if not module_name or not class_name:
        raise PipelineLoadError(target, "write it as package.module:Class")
    try:
        found: Any = importlib.import_module(module_name)
        for part in class_name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise PipelineLoadError(target, f"{type(error).__name__}: {error}") from error
    if not inspect.isclass(found):
        raise PipelineLoadError(target, "not a class")
    return found


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
        self.on_claim_lost: Callable[[], None] = lambda: None
        self.reports = ReportWriter(None)

    async def perform(self) -> ExitCode:
        """Connect, run, report, clean up; every path gives an exit code."""
        db = self._db_factory()
        session = WorkerSession(
            self._job, db, self._logs, self.on_claim_lost, on_sign_of_life=self.reports.sign
        )
        try:
            try:
                await self._connect(db)
            except DatabaseUnavailableError:
                return ExitCode.NOT_CONNECTED
            self.reports.tell(Report.CONNECTED)
            session.open()
            outcome = await self._outcome(session, db)
            if outcome is None:
                return ExitCode.TERMINATED
            return await self._report(session, outcome)
        except LeaseLostError:
            return ExitCode.CLAIM_LOST
        finally:
            await db.close()

    async def _connect(self, db: DBInterface) -> None:
        # A server without a free connection, or one that restarts, is worth waiting for: the
        # job has done nothing yet.
        end = asyncio.get_running_loop().time() + CONNECT_PATIENCE_SECONDS
        failures = 0
        while True:
            try:
                await db.report_started(self._job.claim, os.getpid())
            except DatabaseUnavailableError:
                failures += 1
                self.reports.sign()
                delay = retry_delay_seconds(failures)
                if asyncio.get_running_loop().time() + delay > end:
                    raise
                await asyncio.sleep(delay)
            else:
                return

    async def _outcome(self, session: WorkerSession, db: DBInterface) -> Outcome | None:
        """How the run ended; None where the manager asked for the end and writes it itself."""
        running = asyncio.create_task(self._run(session, db), name="haulage-run")

        loop = asyncio.get_running_loop()

        def on_terminate(*_: object) -> None:
            # Once: who stops a service may signal guard and worker, which is twice for us.
            if not session.is_cancelled:
                # Seen at once by a pipeline that blocks the loop and looks at `is_cancelled`.
                session.cancel()
                loop.call_soon_threadsafe(running.cancel)

        signal.signal(signal.SIGTERM, on_terminate)
        # Waited for, not awaited: whatever the pipeline raises stays inside its task.
        await asyncio.wait({running})
        if running.cancelled():
            error = ErrorInfo("CancelledError", "the pipeline cancelled itself")
            return None if session.is_cancelled else Raised(error)
        failure = running.exception()
        if failure is None:
            return running.result()
        if session.is_cancelled:
            return None
        match failure:
            case LeaseLostError():
                raise failure
            case RetryLaterError():
                return RetryAsked(failure.delay_seconds, describe_exception(failure))
            case GiveUpError():
                return GaveUp(describe_exception(failure))
            case NothingToDoError():
                return NothingToDo(storable_text(str(failure)))
            case _:
                return Raised(describe_exception(failure))

    async def _run(self, session: WorkerSession, db: DBInterface) -> Outcome:
        try:
            pipeline = _load_analysis(self._target, json.loads(self._constructor_args))
        except PipelineLoadError as error:
            return Raised(describe_exception(error), Cause.LOAD_FAILED)
        self.reports.tell(Report.LOADED)
        text = self._job.payload
        if text is None:
            text = await session.insist(lambda: db.load_payload(self._job.claim))
        payload = json.loads(text)
        try:
            result = await pipeline.run(payload, session)
        except SystemExit as error:
            # sys.exit in a pipeline means its own failure; it must not end the worker's loop.
            return Raised(describe_exception(error))
        try:
            stored = await asyncio.to_thread(dump_storable, result, "result", MAX_RESULT_BYTES)
        except (InvalidJsonError, TooLargeError, RecursionError) as error:
            return Raised(describe_exception(error), Cause.RESULT_REFUSED)
        return Completed(stored)

    async def _report(self, session: WorkerSession, outcome: Outcome) -> ExitCode:
        self.reports.tell(Report.OUTCOME)
        # Progress and logs first: once the job is settled its claim may write no more.
        await asyncio.to_thread(self._output.release)
        await session.close()
        verdict = decide(outcome, self._job)
        if not await session.finish(verdict, usage()):
            self._logger.warning("job %s was settled by somebody else", self._job.id)
            return ExitCode.CLAIM_LOST
        return ExitCode.SETTLED
