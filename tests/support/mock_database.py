"""`MockDatabase`: a scripted `DBInterface` for unit tests of the scheduler.

It gives canned answers and faults and remembers what it was asked; it imitates no database.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from support.mock_following import MockFollowing

from app.db.ids import new_id
from app.domain.errors import DatasetNotFoundError, JobNotFoundError
from app.domain.jobs import (
    Attempt,
    Claim,
    ClaimedJob,
    Job,
    JobOptions,
    JobStatus,
    LogLine,
    Milestone,
    NodeInfo,
    Progress,
    RunningJob,
    Usage,
    WakeUp,
)
from app.domain.keys import ApiKey, Pending, PendingCaps, Scope
from app.domain.lifecycle import Verdict
from app.domain.managing import (
    BulkChange,
    JobCount,
    JobFilter,
    JobPage,
    NodeState,
    QueueState,
)
from app.domain.results import PartPage, ResultState, ThemeQuotes
from app.domain.sharing import CallUsage, Dataset, DatasetSummary, FailedCalls, JsonRow, PaidCall
from app.domain.submissions import Batch, BatchReceipt, Submission
from app.domain.webhooks import Delivery, DueDelivery, Replay, Rotation, TryEnded, Webhook


def claimed_job(**changes: Any) -> ClaimedJob:
    """A job as a claim gives it."""
    fields: dict[str, Any] = {
        "id": new_id(),
        "claim_no": 1,
        "pipeline": "demo-echo",
        "attempt": 1,
        "max_attempts": 1,
        "node_losses": 0,
        "timeout_seconds": None,
        "start_timeout_seconds": None,
        "stall_seconds": None,
        "memory_limit_bytes": None,
        "claimed_at": datetime.now(UTC),
        "payload": "{}",
    }
    return ClaimedJob(**{**fields, **changes})


def running_job(job: ClaimedJob, node_id: str, **changes: Any) -> RunningJob:
    """The running row of a claimed job."""
    fields: dict[str, Any] = {
        "id": job.id,
        "claim_no": job.claim_no,
        "node_id": node_id,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "node_losses": job.node_losses,
        "run_seconds": 1.0,
        "cancel_requested": False,
    }
    return RunningJob(**{**fields, **changes})


_NOT_ASKED = "no scheduler asks for this"


@dataclass
class MockDatabase(MockFollowing):
    """Answers from its fields; a queued fault is raised instead, once, by the method it names."""

    pending: list[ClaimedJob] = field(default_factory=list)
    running: int = 0
    running_rows: list[RunningJob] = field(default_factory=list)
    lost_rows: list[RunningJob] = field(default_factory=list)
    is_renewing: bool = True
    has_finish_won: bool = True
    faults: list[tuple[str, BaseException]] = field(default_factory=list)
    hanging: set[str] = field(default_factory=set)
    claim_limits: list[int] = field(default_factory=list)
    finished: list[tuple[Claim, Verdict]] = field(default_factory=list)
    rescued: list[tuple[Claim, Verdict]] = field(default_factory=list)
    nodes: list[NodeInfo] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    prunable: dict[str, int] = field(default_factory=dict)
    prune_limits: list[int] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    wake_up: WakeUp = WakeUp.JOBS
    is_listening: bool = True

    async def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.hanging:
            await asyncio.Event().wait()
        for index, (method, fault) in enumerate(self.faults):
            if method == name:
                del self.faults[index]
                raise fault

    async def open(self) -> None:
        await self._called("open")

    async def close(self) -> None:
        await self._called("close")

    async def ping(self) -> None:
        await self._called("ping")

    async def schema_revision(self) -> str | None:
        await self._called("schema_revision")
        return None

    async def insert_pending_job(
        self, payload: dict[str, Any] | str, options: JobOptions | None = None
    ) -> str:
        await self._called("insert_pending_job")
        return new_id()

    async def insert_pending_jobs(
        self, submissions: Sequence[Submission], *, key: str | None = None
    ) -> BatchReceipt:
        raise AssertionError(_NOT_ASKED)

    async def get_batch(self, batch_id: str) -> Batch:
        raise AssertionError(_NOT_ASKED)

    async def get_job(self, job_id: str) -> Job:
        await self._called("get_job")
        raise JobNotFoundError(job_id)

    async def list_milestones(self, job_id: str) -> list[Milestone]:
        return []

    async def list_attempts(self, job_id: str) -> list[Attempt]:
        return self.attempts

    async def list_logs(self, job_id: str, limit: int = 1_000) -> list[LogLine]:
        return []

    async def get_result(self, job_id: str) -> bytes | None:
        await self._called("get_result")
        raise JobNotFoundError(job_id)

    async def list_result_pieces(self, job_id: str) -> list[bytes]:
        raise AssertionError(_NOT_ASKED)

    async def get_result_state(self, job_id: str) -> ResultState:
        raise AssertionError(_NOT_ASKED)

    async def get_result_themes(self, job_id: str) -> str | None:
        raise AssertionError(_NOT_ASKED)

    async def get_theme_quotes(
        self, job_id: str, theme_id: str, limit: int, *, after: int = 0
    ) -> ThemeQuotes | None:
        raise AssertionError(_NOT_ASKED)

    async def list_assignments(self, job_id: str, limit: int, *, after: int = 0) -> PartPage | None:
        raise AssertionError(_NOT_ASKED)

    async def list_usage(self, job_id: str) -> list[CallUsage]:
        return []

    async def insert_dataset(
        self,
        name: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        sha256: str,
        detected: Mapping[str, Any],
        submitted_by: str = "",
    ) -> Dataset:
        await self._called("insert_dataset")
        count = sum(1 for _ in rows)
        return Dataset(new_id(), name, tuple(columns), count, detected, sha256)

    async def get_dataset(self, dataset_id: str) -> Dataset:
        await self._called("get_dataset")
        raise DatasetNotFoundError(dataset_id)

    async def list_datasets_of_file(self, sha256: str) -> list[Dataset]:
        return []

    async def list_dataset_rows(
        self, dataset_id: str, positions: Sequence[int], *, after_row: int = 0
    ) -> list[tuple[int, list[str]]]:
        await self._called("list_dataset_rows")
        return []

    async def list_datasets(
        self, limit: int, *, before_id: str | None = None
    ) -> list[DatasetSummary]:
        raise AssertionError(_NOT_ASKED)

    async def list_dataset_json(
        self, dataset_id: str, limit: int, *, after_row: int = 0
    ) -> list[JsonRow]:
        raise AssertionError(_NOT_ASKED)

    async def delete_dataset(self, dataset_id: str) -> None:
        raise AssertionError(_NOT_ASKED)

    async def cancel_job(self, job_id: str) -> JobStatus:
        await self._called("cancel_job")
        raise JobNotFoundError(job_id)

    async def retry_job(self, job_id: str, caps: PendingCaps | None = None) -> None:
        await self._called("retry_job")
        raise JobNotFoundError(job_id)

    async def claim_next_pending_job(
        self, node_id: str, pipelines: Sequence[str] | None = None
    ) -> ClaimedJob | None:
        claimed = await self.claim_pending_jobs(node_id, 1, pipelines)
        return claimed[0] if claimed else None

    async def claim_pending_jobs(
        self, node_id: str, limit: int, pipelines: Sequence[str] | None = None
    ) -> list[ClaimedJob]:
        await self._called("claim_pending_jobs")
        self.claim_limits.append(limit)
        claimed, self.pending = self.pending[:limit], self.pending[limit:]
        return claimed

    async def count_running_jobs(self, node_id: str | None = None) -> int:
        await self._called("count_running_jobs")
        return self.running

    async def list_running_jobs(self, node_id: str) -> list[RunningJob]:
        await self._called("list_running_jobs")
        return self.running_rows

    async def list_lost_jobs(self, limit: int) -> list[RunningJob]:
        await self._called("list_lost_jobs")
        return self.lost_rows

    async def load_payload(self, claim: Claim) -> str:
        return "{}"

    async def report_started(self, claim: Claim, pid: int) -> None:
        await self._called("report_started")

    async def report_progress(
        self, claim: Claim, progress: Progress, *, is_milestone: bool = False
    ) -> None:
        await self._called("report_progress")

    async def append_logs(self, claim: Claim, lines: Sequence[LogLine]) -> None:
        await self._called("append_logs")

    async def save_checkpoint(self, claim: Claim, stage: str, data: str) -> None:
        await self._called("save_checkpoint")

    async def load_checkpoint(self, job_id: str, stage: str) -> str | None:
        return None

    async def load_call(self, key: str) -> str | None:
        await self._called("load_call")
        return None

    async def save_call(self, claim: Claim, call: PaidCall) -> None:
        await self._called("save_call")

    async def count_cached_calls(self, claim: Claim, stage: str, model: str, total: int) -> None:
        await self._called("count_cached_calls")

    async def count_failed_calls(
        self, claim: Claim, stage: str, model: str, total: FailedCalls
    ) -> None:
        await self._called("count_failed_calls")

    async def finish_job(self, claim: Claim, verdict: Verdict, usage: Usage | None = None) -> bool:
        await self._called("finish_job")
        self.finished.append((claim, verdict))
        return self.has_finish_won

    async def rescue_job(self, claim: Claim, verdict: Verdict) -> bool:
        await self._called("rescue_job")
        self.rescued.append((claim, verdict))
        return True

    async def insert_key(
        self,
        name: str,
        key: str,
        scope: Scope,
        *,
        max_pending_jobs: int | None = None,
        max_pending_bytes: int | None = None,
    ) -> ApiKey:
        raise AssertionError(_NOT_ASKED)

    async def find_key(self, sha256: bytes) -> ApiKey | None:
        await self._called("find_key")
        return None

    async def find_submission(self, submitter: str, key: str, fingerprint: bytes) -> str | None:
        raise AssertionError(_NOT_ASKED)

    async def count_keys_used(self, submitter: str, idempotency_keys: Sequence[str]) -> int:
        raise AssertionError(_NOT_ASKED)

    async def count_datasets(self, submitter: str) -> int:
        raise AssertionError(_NOT_ASKED)

    async def get_dataset_submitter(self, dataset_id: str) -> str | None:
        raise AssertionError(_NOT_ASKED)

    async def has_keys(self) -> bool:
        await self._called("has_keys")
        return False

    async def list_keys(self) -> list[ApiKey]:
        raise AssertionError(_NOT_ASKED)

    async def revoke_key(self, key_id: str) -> bool:
        raise AssertionError(_NOT_ASKED)

    async def note_key_use(self, key_id: str) -> None:
        raise AssertionError(_NOT_ASKED)

    async def count_pending(self, submitter: str) -> Pending:
        raise AssertionError(_NOT_ASKED)

    async def get_submitter(self, job_id: str) -> str | None:
        raise AssertionError(_NOT_ASKED)

    async def rotate_secret(
        self, webhook_id: str, secret: str, old_valid_seconds: float
    ) -> Rotation | None:
        raise AssertionError(_NOT_ASKED)

    async def insert_webhook(self, url: str, events: Sequence[str], secret: str) -> Webhook:
        raise AssertionError(_NOT_ASKED)

    async def list_webhooks(self) -> list[Webhook]:
        raise AssertionError(_NOT_ASKED)

    async def get_webhook(self, webhook_id: str) -> Webhook | None:
        raise AssertionError(_NOT_ASKED)

    async def enable_webhook(self, webhook_id: str) -> bool:
        raise AssertionError(_NOT_ASKED)

    async def disable_webhook(self, webhook_id: str, reason: str) -> bool:
        raise AssertionError(_NOT_ASKED)

    async def delete_webhook(self, webhook_id: str) -> bool:
        raise AssertionError(_NOT_ASKED)

    async def list_deliveries(
        self, webhook_id: str, limit: int, before: tuple[datetime, str] | None = None
    ) -> list[Delivery]:
        raise AssertionError(_NOT_ASKED)

    async def replay_delivery(self, delivery_id: str) -> Replay | None:
        raise AssertionError(_NOT_ASKED)

    async def claim_deliveries(
        self, limit: int, per_webhook: int, taken: Mapping[str, int], lease_seconds: float
    ) -> list[DueDelivery]:
        raise AssertionError(_NOT_ASKED)

    async def give_back_try(self, delivery: DueDelivery) -> None:
        raise AssertionError(_NOT_ASKED)

    async def end_try(self, delivery: DueDelivery, ended: TryEnded) -> bool:
        raise AssertionError(_NOT_ASKED)

    async def register_node(self, node: NodeInfo) -> None:
        await self._called("register_node")
        self.nodes.append(node)

    async def renew_node(self, node_id: str) -> bool:
        await self._called("renew_node")
        return self.is_renewing

    async def drain_node(self, node_id: str) -> None:
        await self._called("drain_node")

    async def deregister_node(self, node_id: str) -> None:
        await self._called("deregister_node")

    # What the scheduler never asks for.

    async def list_jobs(
        self, wanted: JobFilter, *, limit: int, before: str | None = None
    ) -> JobPage:
        raise AssertionError(_NOT_ASKED)

    async def count_jobs(self, wanted: JobFilter) -> JobCount:
        raise AssertionError(_NOT_ASKED)

    async def get_payload(self, job_id: str) -> str:
        raise AssertionError(_NOT_ASKED)

    async def list_checkpoint_stages(self, job_id: str) -> list[str]:
        raise AssertionError(_NOT_ASKED)

    async def delete_job(self, job_id: str) -> None:
        raise AssertionError(_NOT_ASKED)

    async def cancel_jobs(self, wanted: JobFilter) -> BulkChange:
        raise AssertionError(_NOT_ASKED)

    async def retry_jobs(self, wanted: JobFilter, caps: PendingCaps | None = None) -> BulkChange:
        raise AssertionError(_NOT_ASKED)

    async def list_queues(self, limit: int, after: str = "") -> list[QueueState]:
        raise AssertionError(_NOT_ASKED)

    async def pause_queue(self, name: str) -> None:
        raise AssertionError(_NOT_ASKED)

    async def resume_queue(self, name: str) -> None:
        raise AssertionError(_NOT_ASKED)

    async def list_nodes(
        self, limit: int, behind: tuple[bool, str] | None = None
    ) -> list[NodeState]:
        raise AssertionError(_NOT_ASKED)

    async def hold_node(self, node_id: str) -> NodeState:
        raise AssertionError(_NOT_ASKED)

    async def resume_node(self, node_id: str) -> NodeState:
        raise AssertionError(_NOT_ASKED)

    async def prune_jobs(self, status: JobStatus, age_seconds: float, limit: int) -> int:
        return await self._pruned(f"prune_{status}", limit)

    async def prune_datasets(self, age_seconds: float, limit: int) -> int:
        return await self._pruned("prune_datasets", limit)

    async def prune_calls(self, age_seconds: float, limit: int) -> int:
        return await self._pruned("prune_calls", limit)

    async def prune_nodes(self, age_seconds: float, limit: int) -> int:
        return await self._pruned("prune_nodes", limit)

    async def prune_tombstones(self, age_seconds: float, limit: int) -> int:
        return await self._pruned("prune_tombstones", limit)

    async def _pruned(self, name: str, limit: int) -> int:
        self.prune_limits.append(limit)
        await self._called(name)
        gone = min(self.prunable.get(name, 0), limit)
        self.prunable[name] = self.prunable.get(name, 0) - gone
        return gone

    async def wake_ups(self) -> AsyncGenerator[WakeUp, None]:
        while True:
            await self.wake.wait()
            self.wake.clear()
            yield self.wake_up
