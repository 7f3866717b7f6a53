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

from app.db.ids import new_id
from app.domain.errors import (
    CallKeyError,
    CheckpointNameError,
    DatabaseUnavailableError,
    DatasetError,
    DatasetNotFoundError,
    InvalidJsonError,
    JobCancelledError,
    LeaseLostError,
    TooLargeError,
)
from app.domain.jobs import Attempt, AttemptOutcome, Cause, Claim, LogLine, Progress, Usage
from app.domain.lifecycle import Completed, Verdict, decide
from app.domain.sharing import (
    MAX_CALL_ANSWER_BYTES,
    MAX_CALL_COST,
    MAX_CALL_TOKENS,
    Dataset,
    FailedCalls,
    PaidCall,
)
from app.pipelines.interface import PipelineContext
from app.worker import session as module
from app.worker import shared
from app.worker.logs import LogBuffer
from app.worker.session import MAX_MILESTONES, WorkerSession

JOB = claimed_job(pipeline="mine")
OTHER_JOB = new_id()
KEY = "c0" * 32
DATASET = Dataset(new_id(), "a.csv", ("id", "text", "group"), 5, {}, KEY)
PAGE_ROWS = 2
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
        self.other_checkpoints: dict[str, str] = {}
        self.paid: list[PaidCall] = []
        self.totals: list[tuple[str, str, int]] = []
        self.failed: list[tuple[str, str, FailedCalls]] = []
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
        assert job_id in {JOB.id, OTHER_JOB}
        return (self.checkpoints if job_id == JOB.id else self.other_checkpoints).get(stage)

    async def load_call(self, key: str) -> str | None:
        await self._pass("load_call")
        return next((call.answer for call in self.paid if call.key == key), None)

    async def save_call(self, claim: Claim, call: PaidCall) -> None:
        assert claim == JOB.claim
        await self._pass("save_call")
        self.paid.append(call)

    async def count_cached_calls(self, claim: Claim, stage: str, model: str, total: int) -> None:
        assert claim == JOB.claim
        await self._pass("count_cached_calls")
        self.totals.append((stage, model, total))

    async def count_failed_calls(
        self, claim: Claim, stage: str, model: str, total: FailedCalls
    ) -> None:
        assert claim == JOB.claim
        await self._pass("count_failed_calls")
        self.failed.append((stage, model, total))

    async def get_dataset(self, dataset_id: str) -> Dataset:
        await self._pass("get_dataset")
        if dataset_id != DATASET.id:
            raise DatasetNotFoundError(dataset_id)
        return DATASET

    async def list_dataset_rows(
        self, dataset_id: str, positions: Sequence[int], *, after_row: int = 0
    ) -> list[tuple[int, list[str]]]:
        await self._pass("list_dataset_rows")
        numbers = range(after_row + 1, min(DATASET.row_count, after_row + PAGE_ROWS) + 1)
        rows = {number: [f"{number}", f"text {number}", "group"] for number in numbers}
        return [(number, [row[at] for at in positions]) for number, row in rows.items()]


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


async def test_a_checkpoint_of_another_job_can_be_taken_over(worker: Worker) -> None:
    worker.store.checkpoints["embed"] = "[1]"
    worker.store.other_checkpoints["embed"] = "[2]"

    assert await worker.session.load_checkpoint("embed", of_job=OTHER_JOB) == [2]
    assert await worker.session.load_checkpoint("name", of_job=OTHER_JOB) is None
    assert await worker.session.load_checkpoint("embed") == [1]


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


# -- paid calls -------------------------------------------------------------------------------


async def test_an_answer_comes_back_as_it_was_saved(worker: Worker) -> None:
    answer: dict[str, Any] = {"text": "ja, 日本", "tokens": [1, 2.5, None]}
    assert await worker.session.load_call(KEY) is None

    await worker.session.save_call(
        KEY, answer, stage="name", model="m", prompt_tokens=3, completion_tokens=2, cost=0.5
    )

    assert await worker.session.load_call(KEY) == answer
    [call] = worker.store.paid
    assert call == PaidCall(KEY, call.answer, "name", "m", 3, 2, 0.5)


async def test_an_answer_is_saved_again_until_the_database_is_back(worker: Worker) -> None:
    worker.store.faults += [(name, AWAY) for name in ("save_call", "save_call", "load_call")]

    await worker.session.save_call(KEY, "a", stage="name", model="m")

    assert await worker.session.load_call(KEY) == "a"
    assert len(worker.store.paid) == 1
    assert worker.store.calls.count("save_call") == 3


async def test_texts_of_an_answer_are_made_storable(worker: Worker) -> None:
    answer = {"a\x00": ["\ud800b", ("\\u0000", "\x00\x00")]}

    await worker.session.save_call(KEY, answer, stage="n\x00", model="\ud800" + "m" * 300)

    replaced = "\N{REPLACEMENT CHARACTER}"
    assert await worker.session.load_call(KEY) == {
        f"a{replaced}": ["?b", ["\\u0000", replaced * 2]]
    }
    [call] = worker.store.paid
    assert call.stage == f"n{replaced}"
    assert len(call.model) == 200
    assert call.model.encode()


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ((-1, 0, -0.5), (0, 0, 0.0)),
        ((10**30, 10**30, math.inf), (MAX_CALL_TOKENS, MAX_CALL_TOKENS, MAX_CALL_COST)),
        ((1, 1, math.nan), (1, 1, 0.0)),
        ((math.inf, -math.inf, 10**400), (MAX_CALL_TOKENS, 0, MAX_CALL_COST)),
        ((math.nan, 2.5, -(10**400)), (0, 2, 0.0)),
    ],
)
async def test_what_a_server_says_about_its_usage_is_cut_to_bounds(
    worker: Worker, told: tuple[int, int, float], kept: tuple[int, int, float]
) -> None:
    prompt, completion, cost = told
    await worker.session.save_call(
        KEY,
        "a",
        stage="name",
        model="m",
        prompt_tokens=prompt,
        completion_tokens=completion,
        cost=cost,
    )

    [call] = worker.store.paid
    assert (call.prompt_tokens, call.completion_tokens, call.cost) == kept


async def test_an_answer_that_cannot_be_stored_is_the_pipeline_s_own_error(worker: Worker) -> None:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    for answer, error in [
        ({1, 2}, InvalidJsonError),
        (math.nan, InvalidJsonError),
        (deep, InvalidJsonError),
        ("x" * MAX_CALL_ANSWER_BYTES, TooLargeError),
    ]:
        with pytest.raises(error):
            await worker.session.save_call(KEY, answer, stage="name", model="m")

    assert worker.store.calls == []


async def test_an_answer_is_kept_when_its_job_is_to_end_meanwhile(worker: Worker) -> None:
    gate = worker.store.gates["save_call"] = asyncio.Event()
    saving = asyncio.create_task(worker.session.save_call(KEY, "a", stage="name", model="m"))
    await eventually(lambda: _is_called(worker, "save_call"), "a write under way")

    saving.cancel()
    await asyncio.sleep(0)
    gate.set()

    with pytest.raises(asyncio.CancelledError):
        await saving
    assert len(worker.store.paid) == 1


async def test_a_job_ends_although_its_answer_cannot_be_kept(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "SAVING_SECONDS", 0.01)
    worker.store.hanging.add("save_call")
    saving = asyncio.create_task(worker.session.save_call(KEY, "a", stage="name", model="m"))
    await eventually(lambda: _is_called(worker, "save_call"), "a write under way")

    saving.cancel()

    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(10.0):
            await saving
    assert worker.store.paid == []


@pytest.mark.parametrize("key", ["", "c0", "C0" * 32, "zz" * 32, "c0" * 33, "c0" * 32 + "\n"])
async def test_a_key_that_is_no_sha256_is_refused(worker: Worker, key: str) -> None:
    with pytest.raises(CallKeyError):
        await worker.session.load_call(key)
    with pytest.raises(CallKeyError):
        await worker.session.save_call(key, "a", stage="name", model="m")

    assert worker.store.calls == []


async def test_cached_calls_are_told_as_totals(worker: Worker) -> None:
    worker.store.faults += [("count_cached_calls", AWAY)]

    await worker.session.count_cached_calls("name", "m", 2)
    await worker.session.count_cached_calls("name", "m", 1)
    await worker.session.count_cached_calls("assign", "m", 1)

    assert worker.store.totals == [("name", "m", 2), ("name", "m", 3), ("assign", "m", 1)]


async def test_failed_calls_are_told_as_totals_within_bounds(worker: Worker) -> None:
    worker.store.faults += [("count_failed_calls", AWAY)]

    await worker.session.count_failed_calls("name", "m", 1, prompt_tokens=9, cost=0.5)
    await worker.session.count_failed_calls("name", "m", 2, completion_tokens=4, cost=math.nan)
    await worker.session.count_failed_calls("name", "m", 0, prompt_tokens=10**30, cost=math.inf)

    assert worker.store.failed == [
        ("name", "m", FailedCalls(1, 9, 0, 0.5)),
        ("name", "m", FailedCalls(3, 9, 4, 0.5)),
        ("name", "m", FailedCalls(3, MAX_CALL_TOKENS, 4, MAX_CALL_COST)),
    ]


async def test_a_failed_call_is_counted_when_its_job_is_to_end_meanwhile(worker: Worker) -> None:
    gate = worker.store.gates["count_failed_calls"] = asyncio.Event()
    counting = asyncio.create_task(worker.session.count_failed_calls("name", "m", 1))
    await eventually(lambda: _is_called(worker, "count_failed_calls"), "a write under way")

    counting.cancel()
    await asyncio.sleep(0)
    gate.set()

    with pytest.raises(asyncio.CancelledError):
        await counting
    assert len(worker.store.failed) == 1


@pytest.mark.parametrize(("max_attempts", "is_last"), [(1, True), (2, False)])
async def test_a_pipeline_knows_whether_there_will_be_another_attempt(
    worker: Worker, max_attempts: int, *, is_last: bool
) -> None:
    worker.session._job = dataclasses.replace(JOB, attempt=1, max_attempts=max_attempts)
    assert worker.session.is_last_attempt is is_last


# -- datasets ---------------------------------------------------------------------------------


async def test_rows_of_a_dataset_are_read_page_by_page(worker: Worker) -> None:
    worker.store.faults += [("get_dataset", AWAY), ("list_dataset_rows", AWAY)]
    session = worker.session

    assert await session.dataset(DATASET.id) == DATASET
    rows = [row async for row in session.dataset_rows(DATASET.id, ["text", "id"])]

    assert rows == [{"text": f"text {n}", "id": f"{n}"} for n in range(1, DATASET.row_count + 1)]


async def test_an_unknown_dataset_or_column_is_told(worker: Worker) -> None:
    with pytest.raises(DatasetNotFoundError, match="no dataset no-id"):
        await worker.session.dataset("no-id")
    with pytest.raises(DatasetNotFoundError):
        await anext(aiter(worker.session.dataset_rows("no-id", ["text"])))
    with pytest.raises(DatasetError, match=r"no column 'answer'; found: id, text, group"):
        await anext(aiter(worker.session.dataset_rows(DATASET.id, ["answer"])))


# -- the lost claim ---------------------------------------------------------------------------


async def test_the_worker_ends_once_when_its_claim_is_lost(worker: Worker) -> None:
    refused = ("report_progress", "save_checkpoint", "save_call", "count_cached_calls")
    worker.store.faults += [(write, LOST) for write in refused]

    await worker.session.progress(0.5, "a")
    with pytest.raises(LeaseLostError):
        await worker.session.save_checkpoint("b", 1)
    with pytest.raises(LeaseLostError):
        await worker.session.save_call(KEY, "a", stage="name", model="m")
    with pytest.raises(LeaseLostError):
        await worker.session.count_cached_calls("name", "m", 1)

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
