"""`worker_entry` step by step in this process: every way to end has its exit code and verdict."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.mock_database import MockDatabase, claimed_job
from unit.test_session import AWAY

from app.domain.errors import DatabaseUnavailableError, LeaseLostError, PipelineLoadError
from app.domain.jobs import Cause, Claim, ErrorInfo, JobStatus, LogLine, Progress, Usage
from app.domain.keys import new_key
from app.domain.lifecycle import Verdict
from app.worker import entry, session
from app.worker.entry import ExitCode, worker_entry
from app.worker.loading import _load_analysis

ROOT = Path(__file__).parents[2]
KEY = new_key()
JOB = claimed_job()
LOST = LeaseLostError(JOB.id, JOB.claim_no)


class Store(MockDatabase):
    """Keeps the lines and the usage, and says in which order things happened."""

    def __init__(self, payload: str = "{}") -> None:
        super().__init__()
        self.payload = payload
        self.lines: list[LogLine] = []
        self.usage: Usage | None = None

    async def load_payload(self, claim: Claim) -> str:
        await self._called("load_payload")
        return self.payload

    async def append_logs(self, claim: Claim, lines: Any) -> None:
        await super().append_logs(claim, lines)
        self.lines += lines

    async def finish_job(self, claim: Claim, verdict: Verdict, usage: Usage | None = None) -> bool:
        self.usage = usage
        return await super().finish_job(claim, verdict, usage)


@pytest.fixture(autouse=True)
def _this_process_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The entry takes logging, loop and signals of its process; we need ours afterwards."""
    monkeypatch.setattr(session, "retry_delay_seconds", lambda *_args, **_options: 0.001)
    monkeypatch.setattr(entry, "retry_delay_seconds", lambda *_args, **_options: 0.001)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    asyncio.set_event_loop(None)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def run(
    pipeline: str, store: Store | None = None, payload: str | None = "{}", **keywords: Any
) -> tuple[int, Store]:
    """The exit code, and the store as the worker left it."""
    store = store or Store()
    target = pipeline if ":" in pipeline else f"unit.sample_pipelines:{pipeline}"
    try:
        worker_entry(JOB.id, payload, lambda: store, target, **keywords)
    except SystemExit as end:
        return int(str(end.code)), store
    return 0, store


def verdict_of(store: Store) -> Verdict:
    [(claim, verdict)] = store.finished
    assert claim == JOB.claim
    return verdict


def error_of(store: Store) -> ErrorInfo:
    error = verdict_of(store).error
    assert error is not None
    return error


# -- the good way -----------------------------------------------------------------------------


def test_a_result_is_stored_with_what_it_cost() -> None:
    code, store = run(
        "Echo",
        payload='{"a": [1]}',
        attempt=2,
        max_attempts=3,
        constructor_args='{"greeting": "hullo", "marks": 2}',
    )

    assert code == ExitCode.SETTLED
    verdict = verdict_of(store)
    assert verdict.status is JobStatus.COMPLETED
    assert json.loads(verdict.result or "") == {
        "echo": {"a": [1]},
        "attempt": 2,
        "greeting": "hullo!!",
    }
    assert store.usage is not None
    assert store.usage.peak_memory_bytes is not None
    assert store.usage.peak_memory_bytes > 1_000_000
    assert store.usage.cpu_seconds is not None


def test_the_steps_come_in_order_and_the_connection_is_closed_last() -> None:
    _, store = run("Echo")

    assert store.calls[0] == "report_started"
    assert store.calls[-2:] == ["finish_job", "close"]
    assert set(store.calls[1:-2]) == {"report_progress", "append_logs"}


@pytest.mark.parametrize(
    "secret",
    ["correct-horse-battery", "Bearer abcdefgh0123", "postgresql://u:s3cret-pass@db/x", KEY],
)
def test_no_secret_is_stored_of_what_a_job_says(
    monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    """Neither one that is known by its form nor what the arguments say where to find."""
    monkeypatch.setenv("MODEL_ACCESS", "correct-horse-battery")
    told: list[str] = []

    class Telling(Store):
        async def report_progress(
            self, claim: Claim, progress: Progress, *, is_milestone: bool = False
        ) -> None:
            await super().report_progress(claim, progress, is_milestone=is_milestone)
            told.append(progress.message or "")

    _, store = run(
        "Leaks",
        Telling(),
        payload=json.dumps({"secret": secret}),
        constructor_args='{"defaults": {"llm": {"api_key_env": "MODEL_ACCESS"}}}',
    )

    error = error_of(store)
    told += [line.text for line in store.lines]
    told += [error.message, error.traceback or ""]
    hidden = secret.removeprefix("postgresql://u:").removesuffix("@db/x").removeprefix("Bearer ")
    assert not [text for text in told if hidden in text]
    # Each of them was told, only without it: a line, a print, progress, message and traceback.
    assert sum("***" in text for text in told) >= 5


def test_no_secret_is_stored_of_why_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", "correct-horse-battery")

    _, store = run("FindsNothing", payload='{"secret": "correct-horse-battery"}')

    assert json.loads(verdict_of(store).result or "") == {"nothing_to_do": "nothing for ***"}


def test_prints_and_log_lines_are_stored_before_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    _, store = run("Echo", pipeline_name="mine")

    kept = {(line.source, line.text) for line in store.lines}
    assert ("stdout", "printed by the pipeline") in kept
    assert ("pipeline.mine", "logged by the pipeline") in kept
    print("ours again")  # noqa: T201
    assert capfd.readouterr().out == "ours again\n"


def test_a_large_payload_is_read_from_the_database() -> None:
    store = Store(payload='{"large": true}')
    store.faults = [("load_payload", AWAY)]

    code, _ = run("Echo", store, payload=None)

    assert code == ExitCode.SETTLED
    assert json.loads(verdict_of(store).result or "")["echo"] == {"large": True}


# -- a pipeline's own ends --------------------------------------------------------------------


def test_an_exception_fails_the_attempt_with_its_traceback() -> None:
    code, store = run("Raises")

    assert code == ExitCode.SETTLED
    assert (verdict_of(store).status, verdict_of(store).cause) == (
        JobStatus.FAILED,
        Cause.EXCEPTION,
    )
    error = error_of(store)
    assert (error.error_class, error.message) == (
        "LookupError",
        "not found\N{REPLACEMENT CHARACTER}",
    )
    assert error.traceback is not None
    assert "in run" in error.traceback


def test_an_exception_is_postponed_when_attempts_are_left() -> None:
    _, store = run("Raises", max_attempts=2)

    assert verdict_of(store).status is JobStatus.PENDING


@pytest.mark.parametrize(
    ("pipeline", "words"), [("Exits", "SystemExit"), ("CancelsItself", "CancelledError")]
)
def test_an_attempt_fails_when_its_pipeline_exits_or_cancels_itself(
    pipeline: str, words: str
) -> None:
    code, store = run(pipeline)

    assert code == ExitCode.SETTLED
    assert verdict_of(store).status is JobStatus.FAILED
    assert error_of(store).error_class == words


def test_an_attempt_fails_when_a_task_of_its_pipeline_exits() -> None:
    code, store = run("LeavesATaskThatExits")

    assert code == ExitCode.SETTLED
    assert verdict_of(store).cause is Cause.EXCEPTION
    error = error_of(store)
    assert (error.error_class, error.message) == ("SystemExit", "enough")
    assert "in _leave" in (error.traceback or "")
    assert store.calls[-2:] == ["finish_job", "close"]


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_pipeline_that_cancels_all_tasks_cancels_none_but_its_own(*, goes_on: bool) -> None:
    code, store = run("CancelsAllTasks", payload=json.dumps({"goes on": goes_on}))

    assert code == ExitCode.SETTLED
    verdict = verdict_of(store)
    assert verdict.status is (JobStatus.COMPLETED if goes_on else JobStatus.FAILED)
    assert "report_progress" in store.calls or not goes_on


def test_tasks_that_a_pipeline_leaves_are_cancelled_before_its_end_is_told() -> None:
    code, store = run("LeavesTasks")

    assert code == ExitCode.SETTLED
    assert verdict_of(store).status is JobStatus.COMPLETED
    assert "cleaned up" in [line.text for line in store.lines]


def test_a_result_is_stored_when_the_loop_has_no_executor_left() -> None:
    _, store = run("UsesUpThreads")

    assert verdict_of(store).status is JobStatus.COMPLETED


@pytest.mark.parametrize("what", ["set", "nan", "nul"])
def test_a_result_that_cannot_be_stored_fails_the_attempt(what: str) -> None:
    _, store = run("Returns", payload=json.dumps({"what": what}))

    assert verdict_of(store).cause is Cause.RESULT_REFUSED
    assert error_of(store).error_class == "InvalidJsonError"


def test_a_result_that_is_too_large_fails_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "MAX_RESULT_BYTES", 100)

    _, store = run("Returns", payload='{"what": "large"}')

    assert verdict_of(store).cause is Cause.RESULT_REFUSED
    assert "exceeds the limit of 100 bytes" in error_of(store).message


@pytest.mark.parametrize("pipeline", ["nowhere:X", "RaisesWhenMade", "HasNoRun", "IsSynchronous"])
def test_a_pipeline_that_cannot_be_loaded_fails_the_attempt(pipeline: str) -> None:
    code, store = run(pipeline)

    assert code == ExitCode.SETTLED
    assert verdict_of(store).cause is Cause.LOAD_FAILED
    assert error_of(store).error_class == "PipelineLoadError"


# -- ends that the manager has to judge -------------------------------------------------------


def test_nothing_is_written_when_the_worker_is_told_to_end() -> None:
    code, store = run("IsTerminated")

    assert code == ExitCode.TERMINATED
    assert store.finished == []
    assert store.calls[-1] == "close"


def test_the_job_does_not_begin_when_the_claim_is_lost_already() -> None:
    store = Store()
    store.faults = [("report_started", LOST)]

    code, _ = run("Echo", store)

    assert code == ExitCode.CLAIM_LOST
    assert store.calls == ["report_started", "close"]


@pytest.mark.parametrize("method", ["report_progress", "save_checkpoint", "finish_job"])
def test_a_claim_lost_on_the_way_ends_without_a_word(method: str) -> None:
    store = Store()
    store.faults = [(method, LOST)]
    store.has_finish_won = False

    code, _ = run("Saves" if method == "save_checkpoint" else "Echo", store)

    assert code == ExitCode.CLAIM_LOST
    assert store.calls[-1] == "close"


def test_a_job_that_somebody_else_settled_is_a_lost_claim() -> None:
    store = Store()
    store.has_finish_won = False

    code, _ = run("Echo", store)

    assert code == ExitCode.CLAIM_LOST


def test_a_database_that_is_away_for_a_moment_costs_nothing() -> None:
    store = Store()
    store.faults = [
        ("report_started", AWAY),
        ("report_started", AWAY),
        ("report_progress", AWAY),
        ("finish_job", AWAY),
        ("finish_job", AWAY),
    ]

    code, _ = run("Echo", store)

    assert code == ExitCode.SETTLED
    assert verdict_of(store).status is JobStatus.COMPLETED


def test_a_job_is_left_untouched_when_the_database_stays_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entry, "CONNECT_PATIENCE_SECONDS", 0.01)

    class AwayStore(Store):
        async def report_started(self, claim: Claim, pid: int) -> None:
            raise DatabaseUnavailableError("no route")

    code, store = run("Echo", AwayStore())

    assert code == ExitCode.NOT_CONNECTED
    assert store.finished == []
    assert store.calls == ["close"]


def test_a_fault_of_our_own_is_told_where_the_service_logs(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def broken() -> Store:
        raise RuntimeError("no adapter")

    with pytest.raises(SystemExit) as end:
        worker_entry(JOB.id, "{}", broken, "unit.sample_pipelines:Echo")

    assert end.value.code == ExitCode.BROKEN
    assert "RuntimeError: no adapter" in capfd.readouterr().err


def test_the_connection_is_closed_when_the_end_could_not_be_written() -> None:
    store = Store()
    store.faults = [("finish_job", RuntimeError("never"))] * 2

    code, _ = run("Echo", store)

    assert code == ExitCode.BROKEN
    assert store.calls[-1] == "close"


# -- loading ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("", "package.module:Class"),
        ("os", "package.module:Class"),
        ("os:", "package.module:Class"),
        (":system", "package.module:Class"),
        ("os:system", "not a class"),
        ("no_such_module:X", "ModuleNotFoundError"),
        ("..x:Y", "TypeError"),
        ("os:no_such_name", "AttributeError"),
        ("os:path.no_such_name", "AttributeError"),
        ("unit.sample_pipelines:an_object", "not a class"),
        ("unit.sample_pipelines:a_function", "not a class"),
        ("unit.sample_pipelines:HasNoRun", "async def run"),
        ("unit.sample_pipelines:IsSynchronous", "async def run"),
        ("unit.sample_pipelines:RaisesWhenMade", "constructor raised OSError: no model file"),
    ],
)
def test_a_target_is_refused_when_it_is_no_pipeline(target: str, reason: str) -> None:
    with pytest.raises(PipelineLoadError) as caught:
        _load_analysis(target)

    assert caught.value.target == target
    assert reason in caught.value.reason


@pytest.mark.parametrize("body", ["raise SystemExit(3)", "1 / 0", "import nowhere_at_all", "x ="])
def test_a_module_that_fails_at_import_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    (tmp_path / "failing_at_import.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(PipelineLoadError) as caught:
        _load_analysis("failing_at_import:X")

    assert caught.value.__cause__ is not None


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(PipelineLoadError, match="unexpected keyword"):
        _load_analysis("unit.sample_pipelines:Echo", {"volume": 11})


def test_a_nested_class_is_a_pipeline_too() -> None:
    assert type(_load_analysis("unit.sample_pipelines:Echo.Inner")).__name__ == "Inner"


# -- what a worker carries around -------------------------------------------------------------


def test_a_worker_carries_nothing_of_the_web_and_schema_stacks() -> None:
    program = (
        "import sys, app.worker.entry, app.db.postgres.adapter, asyncpg\n"
        "from app.worker.loading import _load_analysis\n"
        "_load_analysis('app.pipelines.demo:Echo')\n"
        "print(' '.join(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=True,
    )

    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {
        "alembic",
        "click",
        "fastapi",
        "httpx2",
        "numpy",
        "pydantic",
        "pydantic_settings",
        "rich",
        "sqlalchemy",
        "starlette",
        "uvicorn",
    }
    ours = {name for name in done.stdout.split() if name.startswith("app.")}
    assert not ours & {"app.config", "app.main", "app.db.migrate", "app.db.schema"}
    assert not any(name.startswith(("app.api", "app.orchestrator", "app.cli")) for name in ours)
