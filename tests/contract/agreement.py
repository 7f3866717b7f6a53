"""Whether a store tells the same about jobs and nodes as the model of the contract."""

import json
from typing import Final

from contract.model import Model, ModelJob

from app.db.interface import DBInterface
from app.domain.jobs import Usage

MAX_JOBS: Final = 6
STAGES: Final = ("load", "embed")


async def compare_running_jobs(db: DBInterface, model: Model) -> None:
    """Who runs what, each job in one place, and whose node is lost."""
    running = model.holders
    assert await db.count_running_jobs() == len(running)
    for node in {run.node: None for run in running}:
        rows = await db.list_running_jobs(node.id)
        assert sorted(
            (r.id, r.claim_no, r.node_id, r.attempt, r.max_attempts, r.node_losses) for r in rows
        ) == sorted(
            (r.job.id, r.claim_no, node.id, r.attempt, r.max_attempts, r.node_losses)
            for r in running
            if r.node is node
        )
        assert {r.id for r in rows if r.cancel_requested} == {
            r.job.id for r in running if r.node is node and r.job.is_to_cancel
        }
    lost = await db.list_lost_jobs(MAX_JOBS)
    assert {row.claim for row in lost} == {run.claim for run in model.lost()}


async def compare_job(db: DBInterface, job: ModelJob) -> None:
    """Status, counts, attempts and milestones."""
    stored = await db.get_job(job.id)
    assert stored.status is job.status
    assert (stored.claim_no, stored.attempt) == (job.claim_no, job.attempt)
    assert (stored.node_losses, stored.max_attempts) == (job.node_losses, job.max_attempts)
    assert (stored.finished_at is not None) is job.status.is_terminal
    assert (stored.cancel_requested_at is not None) is job.is_to_cancel
    if (run := job.latest) is not None:
        assert (stored.node_id, stored.pid) == (run.node.id, run.pid)
        assert stored.progress == run.progress
        assert stored.error == (run.verdict and run.verdict.error)
        assert stored.cause is (run.verdict and run.verdict.cause)
    await _compare_attempts(db, job)
    milestones = await db.list_milestones(job.id)
    assert [(m.attempt, m.stage, m.fraction, m.message) for m in milestones] == job.milestones


async def compare_belongings(db: DBInterface, job: ModelJob) -> None:
    """Log, result, checkpoints and usage."""
    assert await db.list_logs(job.id) == job.logs
    result = await db.get_result(job.id)
    assert (result and json.loads(result)) == (job.result and json.loads(job.result))
    for stage in STAGES:
        data, kept = await db.load_checkpoint(job.id, stage), job.checkpoints.get(stage)
        assert (data and json.loads(data)) == (kept and json.loads(kept))
    usage = {
        u.stage: (u.calls, u.cached_calls, u.prompt_tokens) for u in await db.list_usage(job.id)
    }
    for stage in STAGES:
        paid = [call for run in job.runs for call in run.paid.values() if call.stage == stage]
        found = sum(run.found.get(stage, 0) for run in job.runs)
        failed = [run.failed[stage] for run in job.runs if stage in run.failed]
        calls = len(paid) + sum(each.calls for each in failed)
        tokens = sum(call.prompt_tokens for call in paid)
        tokens += sum(each.prompt_tokens for each in failed)
        assert usage.get(stage, (0, 0, 0)) == (calls, found, tokens)


async def compare_answers(db: DBInterface, model: Model) -> None:
    """What is kept of paid calls, for all jobs together."""
    for key, answer in model.answers.items():
        assert json.loads(await db.load_call(key) or "") == json.loads(answer)


async def _compare_attempts(db: DBInterface, job: ModelJob) -> None:
    attempts = await db.list_attempts(job.id)
    assert [attempt.claim_no for attempt in attempts] == [run.claim_no for run in job.runs]
    for attempt, run in zip(attempts, job.runs, strict=True):
        assert (attempt.attempt, attempt.node_id) == (run.attempt, run.node.id)
        assert attempt.pid == run.pid
        assert (attempt.ended_at is None) is (run.verdict is None)
        verdict, usage = run.verdict, run.usage or Usage()
        assert (attempt.peak_memory_bytes, attempt.cpu_seconds) == (
            usage.peak_memory_bytes,
            usage.cpu_seconds,
        )
        assert attempt.outcome is (verdict and verdict.outcome)
        assert attempt.cause is (verdict and verdict.cause)
        assert attempt.exit_code == (verdict and verdict.exit_code)
        assert attempt.signal == (verdict and verdict.signal)
        error = verdict and verdict.error
        assert attempt.error_class == (error and error.error_class)
        assert attempt.error_message == (error and error.message)
