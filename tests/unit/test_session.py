"""`WorkerSession`: what a pipeline reports is stored once, in order, whatever the database does."""

import asyncio
import dataclasses
import json
import logging
import math
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from support.mock_database import MockDatabase, claimed_job
from support.waiting import eventually

from app.domain.errors import (
    CheckpointNameError,
    DatabaseUnavailableError,
    InvalidJsonError,
    JobCancelledError,
    LeaseLostError,
)
from app.domain.jobs import Attempt, AttemptOutcome, Cause, Claim, LogLine, Progress, Usage
from app.domain.lifecycle import Completed, Verdict, decide
from app.pipelines.interface import PipelineContext
from app.worker import session as module
from app.worker.logs import LogBuffer
from app.worker.session import MAX_MILESTONES, WorkerSession

JOB = claimed_job(pipeline="mine")
AWAY = DatabaseUnavailableError("no route")
LOST = LeaseLostError(JOB.id, JOB.claim_no)
# Nothing is flushed by the clock unless a test wants it.
NEVER_SECONDS = 3_600.0


class Store(MockDatabase):
    """Remembers what was reported; each write takes a few steps of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.progress: list[Progress] = []
        self.milestones: list[str | None] = []
        self.lines: list[str] = []
        self.checkpoints: dict[str, str] = {}
        self.gates: dict[str, asyncio.Event] = {}

    async def _pass(self, method: str) -> None:
        await self._called(method)
        if method in self.gates:
            await self.gates[method].wait()
        for _ in range(3):
            await asyncio.sleep(0)

    async def report_progress(
        self, claim: Claim, progress: Progress, *, is_milestone: bool = False
    ) -> None:
        assert claim == JOB.claim
        await self._pass("report_progress")
        self.progress.append(progress)
        if is_milestone:
            self.milestones.append(progress.stage)

    async def append_logs(self, claim: Claim, lines: Sequence[LogLine]) -> None:
        assert claim == JOB.claim
        await self._pass("append_logs")
        self.lines += [line.text for line in lines]

    async def save_checkpoint(self, claim: Claim, stage: str, data: str) -> None:
        assert claim == JOB.claim
        await self._pass("save_checkpoint")
        self.checkpoints[stage] = data

    async def load_checkpoint(self, job_id: str, stage: str) -> str | None:
        await self._pass("load_checkpoint")
        return self.checkpoints.get(stage)


class Worker:
    """A session with its store and its log."""

    def __init__(self, flush_interval_seconds: float = NEVER_SECONDS) -> None:
        self.store = Store()
        self.logs = LogBuffer()
        self.losses = 0
        self.session = WorkerSession(
            JOB,
            self.store,
            self.logs,
            self._lose,
            flush_interval_seconds=flush_interval_seconds,
        )

    def _lose(self) -> None:
        self.losses += 1


@pytest.fixture(autouse=True)
def _retries_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "retry_delay_seconds", lambda *_args, **_options: 0.001)


@pytest.fixture
async def worker() -> AsyncGenerator[Worker, None]:
    """An open session that flushes when it is told news."""
    made = Worker()
    made.session.open()
    yield made
    made.store.gates.clear()
    await made.session.close()


async def test_a_session_is_what_a_pipeline_is_promised() -> None:
    deadline = claimed_job(
        pipeline="mine", timeout_seconds=60.0, claimed_at=datetime(2024, 1, 1, tzinfo=UTC)
    )
    session = WorkerSession(deadline, Store(), LogBuffer(), lambda: None)

    assert isinstance(session, PipelineContext)
    assert (session.job_id, session.attempt) == (deadline.id, 1)
    assert session.deadline == datetime(2024, 1, 1, 0, 1, tzinfo=UTC)
    assert session.idempotency_key == f"haulage-{deadline.id}"
    assert session.logger.name == "pipeline.mine"
    assert WorkerSession(JOB, Store(), LogBuffer(), lambda: None).deadline is None


async def test_a_pipeline_learns_that_it_is_to_end(worker: Worker) -> None:
    session = worker.session
    session.check_cancelled()
    assert not session.is_cancelled

    session.cancel()

    assert session.is_cancelled
    with pytest.raises(JobCancelledError):
        session.check_cancelled()


# -- progress ---------------------------------------------------------------------------------


async def test_a_change_of_stage_is_stored_before_progress_returns(worker: Worker) -> None:
    await worker.session.progress(0.1, "load", "reading")
    assert worker.store.milestones == ["load"]

    await worker.session.progress(0.5, "embed")
    assert worker.store.milestones == ["load", "embed"]
    assert worker.store.progress == [
        Progress(0.1, "load", "reading"),
        Progress(0.5, "embed", None),
    ]


async def test_reports_within_a_stage_are_merged(worker: Worker) -> None:
    await worker.session.progress(0.0, "load")
    for n in range(1, 1_000):
        await worker.session.progress(n / 1_000, message=f"row {n}")
    await worker.session.close()

    assert worker.store.milestones == ["load"]
    assert worker.store.progress == [
        Progress(0.0, "load", None),
        Progress(0.999, "load", "row 999"),
    ]


async def test_the_same_stage_again_is_no_milestone_but_a_return_to_it_is(worker: Worker) -> None:
    for stage in ("a", "a", "b", None, "a"):
        await worker.session.progress(0.5, stage)

    assert worker.store.milestones == ["a", "b", "a"]


async def test_the_latest_report_is_stored_with_the_interval() -> None:
    worker = Worker(flush_interval_seconds=0.005)
    worker.session.open()
    worker.session._stored_at = math.inf  # so that only the clock stores it
    await worker.session.progress(0.25)

    async def is_stored() -> bool:
        return worker.store.progress == [Progress(0.25)]

    await eventually(is_stored, "the report")
    await worker.session.close()


@pytest.mark.parametrize(
    ("given", "stored"),
    [(-1, 0.0), (2, 1.0), (math.nan, 0.0), (math.inf, 1.0), (-math.inf, 0.0), (True, 1.0)],
)
async def test_a_fraction_is_kept_between_nothing_and_all(
    worker: Worker, given: float, stored: float
) -> None:
    await worker.session.progress(given, "a")

    assert worker.store.progress[0].fraction == stored


async def test_texts_are_cleaned_and_cut(worker: Worker) -> None:
    await worker.session.progress(0.5, "s\x00" + "x" * 1_000, "m\ud800" + "y" * 10_000)

    [report] = worker.store.progress
    assert report.stage is not None
    assert report.message is not None
    assert len(report.stage) == 200
    assert len(report.message) == 4_000
    assert "\x00" not in report.stage
    assert report.message.encode()


async def test_milestones_made_at_once_are_stored_in_their_order(worker: Worker) -> None:
    stages = [f"stage {n}" for n in range(20)]

    await asyncio.gather(*(worker.session.progress(0.5, stage) for stage in stages))

    assert worker.store.milestones == stages


async def test_a_milestone_is_stored_before_progress_returns_when_a_flush_was_under_way(
    worker: Worker,
) -> None:
    gate = worker.store.gates["append_logs"] = asyncio.Event()
    worker.logs.add(20, "stdout", "a line")
    await worker.session.progress(0.1, "first")
    await eventually(lambda: _is_called(worker, "append_logs"), "a flush in the middle")

    reporting = asyncio.create_task(worker.session.progress(0.2, "second"))
    await asyncio.sleep(0)
    gate.set()
    await reporting

    assert worker.store.milestones == ["first", "second"]


async def test_a_pipeline_does_not_stand_still_while_the_database_hangs(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STORE_PATIENCE_SECONDS", 0.01)
    gate = worker.store.gates["report_progress"] = asyncio.Event()

    async with asyncio.timeout(10.0):
        for stage in ("a", "b", "c"):
            await worker.session.progress(0.5, stage)
    assert worker.store.milestones == []

    gate.set()
    await worker.session.close()
    assert worker.store.milestones == ["a", "b", "c"]


async def test_reports_are_stored_in_order_once_the_database_is_back(worker: Worker) -> None:
    worker.store.faults += [("report_progress", AWAY) for _ in range(5)]

    for stage in ("a", "b", "c"):
        await worker.session.progress(0.5, stage)
    await worker.session.close()

    assert worker.store.milestones == ["a", "b", "c"]


async def test_the_number_of_milestones_is_bounded(worker: Worker) -> None:
    for n in range(MAX_MILESTONES + 5):
        worker.session._stage = str(n)
        worker.session._milestones_left = max(0, MAX_MILESTONES - n)
        if n >= MAX_MILESTONES - 1:
            await worker.session.progress(0.5, "next")

    assert len(worker.store.milestones) == 1


async def test_a_report_that_the_store_never_takes_stops_nothing(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    worker.store.faults += [("report_progress", ValueError("cannot be encoded"))]
    await worker.session.progress(0.1, "bad")
    await worker.session.progress(0.2, "good")
    worker.logs.add(20, "stdout", "a line")
    await worker.session.close()

    assert worker.store.milestones == ["good"]
    assert worker.store.lines[-1] == "a line"
    assert "cannot be encoded" in caplog.text


# -- logs -------------------------------------------------------------------------------------


async def test_lines_are_stored_once_and_in_order_when_storing_them_fails_at_first(
    worker: Worker,
) -> None:
    worker.store.faults += [("append_logs", AWAY) for _ in range(3)]
    for n in range(1_200):
        worker.logs.add(20, "stdout", str(n))

    await worker.session.progress(0.1, "a")
    await worker.session.progress(0.1, "b")
    await worker.session.close()
    await worker.session.close()

    assert worker.store.lines == [str(n) for n in range(1_200)]


async def test_what_was_cut_off_is_told_at_the_end() -> None:
    worker = Worker()
    worker.logs = LogBuffer(max_lines=1)
    session = WorkerSession(JOB, worker.store, worker.logs, lambda: None)
    session.open()
    for n in range(3):
        worker.logs.add(20, "stdout", str(n))

    await session.close()

    assert worker.store.lines[0] == "0"
    assert worker.store.lines[1].startswith("2 more lines")


async def test_closing_is_bounded_while_the_database_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CLOSING_FLUSH_SECONDS", 0.05)
    worker = Worker()
    worker.store.hanging.add("append_logs")
    worker.session.open()
    worker.logs.add(20, "stdout", "a line")

    async with asyncio.timeout(10.0):
        await worker.session.close()


async def test_a_write_under_way_is_not_repeated_when_the_session_closes(worker: Worker) -> None:
    gate = worker.store.gates["append_logs"] = asyncio.Event()
    worker.logs.add(20, "stdout", "once")
    await worker.session.progress(0.1, "a")
    await eventually(lambda: _is_called(worker, "append_logs"), "a write under way")

    closing = asyncio.create_task(worker.session.close())
    await asyncio.sleep(0)
    gate.set()
    await closing

    assert worker.store.lines == ["once"]


# -- checkpoints and the end ------------------------------------------------------------------


async def test_checkpoints_come_back_as_they_were_saved(worker: Worker) -> None:
    data: dict[str, Any] = {"n": [1, 2.5, None], "t": "日本"}
    assert await worker.session.load_checkpoint("embed") is None

    await worker.session.save_checkpoint("embed", data)

    assert await worker.session.load_checkpoint("embed") == data
    assert json.loads(worker.store.checkpoints["embed"]) == data


async def test_a_checkpoint_is_saved_again_until_the_database_is_back(worker: Worker) -> None:
    worker.store.faults += [("save_checkpoint", AWAY) for _ in range(3)]

    await worker.session.save_checkpoint("a", [1])

    assert worker.store.checkpoints == {"a": "[1]"}
    assert worker.store.calls.count("save_checkpoint") == 4


async def test_a_checkpoint_that_cannot_be_stored_is_the_pipeline_s_own_error(
    worker: Worker,
) -> None:
    with pytest.raises(InvalidJsonError):
        await worker.session.save_checkpoint("a", {"x": {1, 2}})

    assert worker.store.calls == []


@pytest.mark.parametrize("stage", ["", "x" * 201, "a\x00b", "\ud800"])
async def test_a_checkpoint_is_refused_when_its_name_cannot_be_stored(
    worker: Worker, stage: str
) -> None:
    with pytest.raises(CheckpointNameError):
        await worker.session.save_checkpoint(stage, [1])
    with pytest.raises(CheckpointNameError):
        await worker.session.load_checkpoint(stage)

    assert worker.store.calls == []


@pytest.mark.parametrize("won", [True, False])
async def test_the_end_is_written_until_the_database_has_taken_it(
    worker: Worker, *, won: bool
) -> None:
    worker.store.has_finish_won = won
    worker.store.faults += [("finish_job", AWAY) for _ in range(10)]
    verdict = decide(Completed("1"), JOB)

    assert await worker.session.finish(verdict, Usage()) is won

    assert worker.store.finished == [(JOB.claim, verdict)]


def ended_as(verdict: Verdict, **changes: Any) -> Attempt:
    """The row of an attempt that has ended so."""
    fields: dict[str, Any] = {
        **{field.name: None for field in dataclasses.fields(Attempt)},
        "claim_no": JOB.claim_no,
        "attempt": JOB.attempt,
        "node_id": "node",
        "started_at": JOB.claimed_at,
        "ended_at": JOB.claimed_at,
        "outcome": verdict.outcome,
        "cause": verdict.cause,
        **changes,
    }
    return Attempt(**fields)


@pytest.mark.parametrize(
    ("is_away_first", "changes", "has_settled"),
    [
        # The answer of the first try got lost, its commit did not.
        (True, {}, True),
        # Somebody else has ended the attempt, or another attempt ended so.
        (True, {"outcome": AttemptOutcome.LOST, "cause": Cause.NODE_LOST}, False),
        (True, {"claim_no": JOB.claim_no + 1}, False),
        # The very first answer says that somebody else did.
        (False, {}, False),
    ],
)
async def test_an_end_whose_answer_got_lost_is_known_for_its_own(
    worker: Worker, changes: dict[str, Any], *, is_away_first: bool, has_settled: bool
) -> None:
    verdict = decide(Completed("1"), JOB)
    worker.store.has_finish_won = False
    worker.store.attempts = [ended_as(verdict, **changes)]
    if is_away_first:
        worker.store.faults += [("finish_job", AWAY)]

    assert await worker.session.finish(verdict, Usage()) is has_settled


# -- the lost claim ---------------------------------------------------------------------------


async def test_the_worker_ends_once_when_its_claim_is_lost(worker: Worker) -> None:
    worker.store.faults += [("report_progress", LOST), ("save_checkpoint", LOST)]

    await worker.session.progress(0.5, "a")
    with pytest.raises(LeaseLostError):
        await worker.session.save_checkpoint("b", 1)

    assert worker.losses == 1


async def test_a_session_whose_claim_is_lost_flushes_no_more(worker: Worker) -> None:
    worker.store.faults += [("append_logs", LOST)]
    worker.logs.add(20, "stdout", "a")
    await worker.session.progress(0.5, "a")
    await eventually(lambda: _has_lost(worker), "the loss")
    calls = len(worker.store.calls)

    worker.session._has_news.set()
    for _ in range(20):
        await asyncio.sleep(0)

    assert len(worker.store.calls) == calls


async def test_a_retry_ends_when_the_claim_was_lost_meanwhile(worker: Worker) -> None:
    worker.store.faults += [("save_checkpoint", AWAY), ("save_checkpoint", LOST)]

    with pytest.raises(LeaseLostError):
        await worker.session.save_checkpoint("a", 1)

    assert worker.losses == 1


def test_the_session_s_own_logger_is_no_pipeline_s() -> None:
    assert not logging.getLogger("haulage.worker").name.startswith("pipeline.")


async def _is_called(worker: Worker, method: str) -> bool:
    return method in worker.store.calls


async def _has_lost(worker: Worker) -> bool:
    return worker.losses > 0


# -- signs of life ----------------------------------------------------------------------------


async def test_progress_checkpoints_and_retries_are_signs_of_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "retry_delay_seconds", lambda *_args, **_options: 0.001)
    signs: list[None] = []
    store = Store()
    session = WorkerSession(
        JOB, store, LogBuffer(), lambda: None, on_sign_of_life=lambda: signs.append(None)
    )

    await session.progress(0.5)
    assert len(signs) == 1
    store.faults = [("save_checkpoint", AWAY), ("save_checkpoint", AWAY)]
    await session.save_checkpoint("stage", [1])

    # The calls themselves, each time that the database was asked, and that it was away.
    assert len(signs) == 2 + 3 + 2
