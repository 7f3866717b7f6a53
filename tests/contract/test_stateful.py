"""Any sequence of calls leaves the store and the model of the contract in the same state.

Hypothesis makes up sequences in which nodes claim, workers write, watchers rescue and people
cancel and retry; above all every claim that was ever handed out may try any write at any later
time. Each answer is compared with the model's, and after each step so is the state of the store.

    HYPOTHESIS_PROFILE=long pytest tests/contract/test_stateful.py    # ten times as many, random

The calls come one after the other; both orders of each race are staged in the other modules.
"""

import asyncio
import hashlib
import json
import os
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, TypeVar, get_args

import pytest
from contract.agreement import (
    MAX_JOBS,
    STAGES,
    compare_answers,
    compare_belongings,
    compare_job,
    compare_running_jobs,
)
from contract.choices import (
    DAY,
    FUTURE,
    OUTCOMES,
    job_options,
    known_pipelines,
    outcomes,
    reports,
    rescuers_outcomes,
    some_claimer,
    some_job_to_cancel,
    some_job_to_retry,
    some_node_to_end,
    some_node_to_renew,
    some_run,
    some_run_to_rescue,
    waiting_job,
)
from contract.model import Model, ModelJob, ModelNode, ModelRun
from contract.steps import CALL, LINE
from contract.stores import PAUSED_QUEUES, Store
from hypothesis import Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from app.db.ids import new_id
from app.db.interface import DBInterface
from app.domain.errors import HaulageError
from app.domain.jobs import (
    Claim,
    ClaimedJob,
    JobOptions,
    JobStatus,
    NodeInfo,
    Progress,
    Usage,
)
from app.domain.lifecycle import (
    Completed,
    NodeLost,
    Outcome,
    Verdict,
    decide,
)
from app.domain.sharing import FailedCalls

_Answer = TypeVar("_Answer")

_SETTINGS: Final = settings(
    # After its first ten Hypothesis tries near copies of each sequence: more seeds tell us more.
    max_examples=10,
    stateful_step_count=40,
    deadline=None,
    # What fails fails again by its seed, without a folder of former failures.
    database=None,
    # Explaining runs a failure many times again, each with its own database calls.
    phases=(Phase.generate, Phase.shrink),
)
_SEEDS: Final = {
    "normal": range(6),
    "long": random.sample(range(1_000_000), 60),
}[os.environ.get("HYPOTHESIS_PROFILE", "normal")]

_CENTURY: Final = timedelta(days=36_500)
_LEASE_SECONDS: Final = 86_400.0
_MAX_NODES: Final = 6
_STEPS_PER_LOOK: Final = 6

# Without these most steps would be refused: a step that can do nothing has to be the exception.
_has_runs = precondition(lambda machine: machine.model.runs)
_has_holders = precondition(lambda machine: machine.model.holders)
_has_due_jobs = precondition(lambda machine: machine.model.due)


class StoreMachine(RuleBasedStateMachine):
    """Asks the store and the model the same, in an event loop of its own for each test."""

    def __init__(self, store: Store, db: DBInterface, runner: asyncio.Runner) -> None:
        super().__init__()
        self._store = store
        self._db = db
        self._runner = runner
        self._steps = 0
        self.model = Model()
        self._do(store.clear())

    # -- submitting and reading ---------------------------------------------------------------

    @initialize(jobs=st.lists(job_options, min_size=3, max_size=4), limit=st.sampled_from([2, 1]))
    def begin(self, jobs: list[JobOptions], limit: int) -> None:
        self.register()
        self.register()
        for options in jobs:
            self.insert(options)
        self.claim(self.model.nodes[0], limit, None)

    @precondition(lambda self: len(self.model.jobs) < MAX_JOBS)
    @rule(options=job_options)
    def insert(self, options: JobOptions) -> None:
        name = f"job{len(self.model.jobs) + 1}"
        job_id = self._do(self._db.insert_pending_job({"name": name}, options))
        stored = self._do(self._db.get_job(job_id))
        delay = timedelta(seconds=options.delay_seconds)
        assert stored.run_at == (options.run_at or stored.created_at) + delay
        job = ModelJob(
            name,
            job_id,
            options,
            pipeline=options.pipeline or "by-default",
            max_attempts=options.max_attempts or 1,
            is_due=options.run_at != FUTURE and (options.run_at is not None or not delay),
            run_at=stored.run_at,
        )
        self.model.jobs.append(job)
        self._look_at(job)

    # -- ending and starting over -------------------------------------------------------------

    @_has_holders
    @rule(job=some_job_to_cancel)
    def cancel(self, job: ModelJob) -> None:
        self._same(self._db.cancel_job(job.id), lambda: self.model.cancel(job))
        self._look_at(job)

    @precondition(lambda self: any(job.status.is_terminal for job in self.model.jobs))
    @rule(job=some_job_to_retry)
    def retry(self, job: ModelJob) -> None:
        before = self._do(self._db.get_job(job.id))
        is_revived = job.status.is_terminal
        self._same(self._db.retry_job(job.id), lambda: self.model.retry(job))
        if is_revived:
            assert before.finished_at is not None
            job.run_at = self._do(self._db.get_job(job.id)).run_at
            assert job.run_at > before.finished_at
        self._look_into(job)

    # -- claiming -----------------------------------------------------------------------------

    @_has_due_jobs
    @rule(node=some_claimer, limit=st.sampled_from([1, 2, 2, 5, 0]), pipelines=known_pipelines)
    def claim(self, node: ModelNode, limit: int, pipelines: Sequence[str] | None) -> None:
        claimed = self._do(self._db.claim_pending_jobs(node.id, limit, pipelines))
        self._look_at_claims(claimed, self.model.claim(node, limit, pipelines))

    @_has_due_jobs
    @rule(node=some_claimer, outcome=outcomes, is_due=st.sampled_from([True, True, False]))
    def run_through(self, node: ModelNode, outcome: Outcome, *, is_due: bool) -> None:
        """The usual life in one step, so that others meet ended jobs and old claims."""
        claimed = self._do(self._db.claim_next_pending_job(node.id))
        runs = self.model.claim(node, 1, None)
        self._look_at_claims([claimed] if claimed else [], runs)
        for run in runs:
            self.write(run, pid=4_711, stage=STAGES[0])
            self.finish(run, outcome, is_due=is_due, usage=None)

    # -- the holder's writes, and those of who holds no more ----------------------------------

    @_has_runs
    @rule(run=some_run, progress=reports, is_milestone=st.sampled_from([True, True, False]))
    def report_progress(self, run: ModelRun, progress: Progress, *, is_milestone: bool) -> None:
        self._same(
            self._db.report_progress(run.claim, progress, is_milestone=is_milestone),
            lambda: self.model.report_progress(run, progress, is_milestone=is_milestone),
        )
        self._look_at(run.job)

    @_has_runs
    @rule(run=some_run, pid=st.sampled_from([4_711, 4_712]), stage=st.sampled_from(STAGES))
    def write(self, run: ModelRun, pid: int, stage: str) -> None:
        """What a worker writes beside its progress and its paid calls."""
        db, model, claim = self._db, self.model, run.claim
        # The first of them may be stored already: its answer got lost.
        numbers = range(max(1, run.last_line_no), run.last_line_no + 3)
        lines = [replace(LINE, number=number, text=f"{run} {number}") for number in numbers]
        data = json.dumps([stage, run.claim_no])
        self._same(db.report_started(claim, pid), lambda: model.report_started(run, pid))
        self._same(_payload(db, claim), lambda: {"name": model.held(run).job.name})
        self._same(db.append_logs(claim, lines), lambda: model.append_logs(run, lines))
        self._same(
            db.save_checkpoint(claim, stage, data), lambda: model.save_checkpoint(run, stage, data)
        )
        self._look_into(run.job)

    @_has_runs
    @rule(
        run=some_run,
        stage=st.sampled_from(STAGES),
        number=st.sampled_from([1, 2]),
        total=st.sampled_from([1, 2, 3]),
    )
    def pay(self, run: ModelRun, stage: str, number: int, total: int) -> None:
        """Calls that other jobs and attempts make as well; the answers tell them apart."""
        db, model, claim = self._db, self.model, run.claim
        key = hashlib.sha256(f"{stage} {number}".encode()).hexdigest()
        answer = json.dumps([repr(run), total])
        call = replace(CALL, key=key, answer=answer, stage=stage, prompt_tokens=total)
        self._same(db.save_call(claim, call), lambda: model.save_call(run, call))
        self._same(
            db.count_cached_calls(claim, stage, call.model, total),
            lambda: model.count_cached_calls(run, stage, total),
        )
        failed = FailedCalls(total, 10 * number)
        self._same(
            db.count_failed_calls(claim, stage, call.model, failed),
            lambda: model.count_failed_calls(run, stage, failed),
        )
        self._look_into(run.job)
        self._do(compare_answers(db, model))

    @_has_runs
    @rule(
        run=some_run,
        outcome=outcomes,
        is_due=st.sampled_from([True, True, False]),
        usage=st.sampled_from([None, Usage(123_456_789_012, 1.25)]),
    )
    def finish(self, run: ModelRun, outcome: Outcome, *, is_due: bool, usage: Usage | None) -> None:
        verdict = self._verdict(run, outcome, is_due=is_due)
        is_settled = self._same(
            self._db.finish_job(run.claim, verdict, usage),
            lambda: self.model.finish(run, verdict, usage),
        )
        self._look_at_end(run, verdict, is_settled=is_settled)

    @_has_holders
    @rule(run=some_run_to_rescue, outcome=rescuers_outcomes)
    def rescue(self, run: ModelRun, outcome: Outcome) -> None:
        verdict = self._verdict(run, outcome)
        is_settled = self._same(
            self._db.rescue_job(run.claim, verdict), lambda: self.model.rescue(run, verdict)
        )
        self._look_at_end(run, verdict, is_settled=is_settled)

    @precondition(lambda self: self.model.lost())
    @rule()
    def rescue_what_is_lost(self) -> None:
        lost = {run.claim: run for run in self.model.lost()}
        for row in self._do(self._db.list_lost_jobs(MAX_JOBS)):
            run = lost.pop(row.claim)
            verdict = decide(NodeLost(row.node_id), row)
            assert self._do(self._db.rescue_job(row.claim, verdict)) is True
            self.model.rescue(run, verdict)
            self._look_at_end(run, verdict, is_settled=True)
        assert not lost

    # -- nodes --------------------------------------------------------------------------------

    @precondition(lambda self: len(self.model.nodes) < _MAX_NODES)
    @rule()
    def register(self) -> None:
        node = ModelNode(f"node{len(self.model.nodes) + 1}", new_id())
        info = NodeInfo(node.id, node.name, os.getpid(), 4, _LEASE_SECONDS, "0")
        self._do(self._db.register_node(info))
        self.model.nodes.append(node)

    @precondition(lambda self: self.model.expired)
    @rule(node=some_node_to_renew)
    def renew(self, node: ModelNode) -> None:
        self._same(self._db.renew_node(node.id), lambda: self.model.renew(node))

    # One rule for all, or no node would live for long.
    @rule(node=some_node_to_end, end=st.sampled_from(["drain", "deregister", "end lease"]))
    def end_node(self, node: ModelNode, end: str) -> None:
        match end:
            case "drain":
                self._do(self._db.drain_node(node.id))
                self.model.drain(node)
            case "deregister":
                self._do(self._db.deregister_node(node.id))
                self.model.deregister(node)
            case _:
                self._do(self._store.end_lease(node.id))
                node.has_lease = False

    # -- behind the store's back --------------------------------------------------------------

    @precondition(lambda self: self.model.scheduled)
    @rule(job=waiting_job)
    def let_wait(self, job: ModelJob) -> None:
        self._do(self._store.let_wait(job.id, _CENTURY.total_seconds()))
        self.model.let_wait(job, _CENTURY)

    @precondition(lambda self: PAUSED_QUEUES in self._store.capabilities)
    @precondition(lambda self: not self.model.paused)
    @rule()
    def pause(self) -> None:
        self._do(self._store.pause("nightly"))
        self.model.paused.add("nightly")

    # -- what always holds --------------------------------------------------------------------

    @invariant()
    def store_and_model_agree(self) -> None:
        """Each step looks at its own jobs, some of them at all: none may touch another's."""
        self._do(compare_running_jobs(self._db, self.model))
        self._steps += 1
        if self._steps % _STEPS_PER_LOOK == 0:
            for job in self.model.jobs:
                self._look_into(job)
            for node in self.model.nodes:
                running = [job for job in self.model.jobs if job.owner is node]
                assert self._do(self._db.count_running_jobs(node.id)) == len(running)

    # -- comparing ----------------------------------------------------------------------------

    def _do(self, asked: Coroutine[Any, Any, _Answer]) -> _Answer:
        return self._runner.run(asked)

    def _same(self, asked: Coroutine[Any, Any, object], expected: Callable[[], object]) -> object:
        """The store's answer, which is also the model's; an error with its fields is one, too."""
        given = _answer(lambda: self._do(asked))
        assert given == _answer(expected)
        return given

    def _verdict(self, run: ModelRun, outcome: Outcome, *, is_due: bool = True) -> Verdict:
        if isinstance(outcome, Completed):
            # A result that names its claim cannot be taken for that of another.
            outcome = Completed(json.dumps(repr(run)))
        verdict = decide(outcome, run, jitter=0.0)
        if verdict.status is not JobStatus.PENDING:
            return verdict
        return replace(verdict, delay_seconds=0.0 if is_due else DAY.total_seconds())

    def _look_at_end(self, run: ModelRun, verdict: Verdict, *, is_settled: object) -> None:
        self._look_into(run.job)
        if is_settled and run.job.status is JobStatus.PENDING:
            *_, attempt = self._do(self._db.list_attempts(run.job.id))
            assert attempt.ended_at is not None
            run.job.run_at = self._do(self._db.get_job(run.job.id)).run_at
            delay = timedelta(seconds=verdict.delay_seconds)
            assert run.job.run_at == attempt.ended_at + delay

    def _look_at_claims(self, claimed: Sequence[ClaimedJob], expected: Sequence[ModelRun]) -> None:
        assert [job.claim for job in claimed] == [run.claim for run in expected]
        for job, run in zip(claimed, expected, strict=True):
            assert (job.attempt, job.max_attempts) == (run.attempt, run.max_attempts)
            assert (job.node_losses, job.pipeline) == (run.node_losses, run.job.pipeline)
            assert json.loads(job.payload or "") == {"name": run.job.name}
            self._look_at(run.job)

    def _look_at(self, job: ModelJob) -> None:
        self._do(compare_job(self._db, job))

    def _look_into(self, job: ModelJob) -> None:
        """Where a step may have written more than the job's state."""
        self._look_at(job)
        self._do(compare_belongings(self._db, job))


async def _payload(db: DBInterface, claim: Claim) -> object:
    return json.loads(await db.load_payload(claim))


def _answer(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except HaulageError as error:
        return type(error), vars(error)


@contextmanager
def _event_loop(store: Store) -> Iterator[asyncio.Runner]:
    """A loop for the rules, which are no coroutines; what was connected in it closes in it."""
    with asyncio.Runner() as runner:
        try:
            yield runner
        finally:
            runner.run(store.close())


@pytest.mark.timeout(900)  # a failure is made smaller for a while; each call has its own bound
@pytest.mark.parametrize("number", _SEEDS)
def test_store_and_model_agree_after_any_sequence_of_calls(store: Store, number: int) -> None:
    with _event_loop(store) as runner:
        db = store.connect(notify=False)

        def machine() -> StoreMachine:
            return StoreMachine(store, db, runner)

        # A function may stand for the class, says the documentation but not the annotation.
        run_state_machine_as_test(seed(number)(machine), settings=_SETTINGS)  # type: ignore[arg-type]


def test_every_outcome_is_tried() -> None:
    assert {type(outcome) for outcome in OUTCOMES} == set(get_args(Outcome))
