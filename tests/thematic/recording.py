"""A job's context that writes down what it is told, and can be made to break off."""

import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from app.domain.errors import DatasetError, DatasetNotFoundError, JobCancelledError
from app.domain.sharing import CallUsage, Dataset, PaidCall


class BrokenOffError(Exception):
    """The process died, as far as the test is concerned."""


class RecordingContext:
    """Keeps all in memory.

    Args:
        checkpoints: stage -> JSON text, as an earlier attempt left them.
        calls: key -> JSON text; hand the same ones to a second context, as the store would.
        spent: what earlier attempts of the job paid for.
        of_jobs: id of another job -> its checkpoints.
        datasets: id -> the rows, each with every column.

    Attributes:
        paid: calls that were saved by this context, in their order.
        failed: requests without an answer, one each.
        found: (stage, model) -> calls whose answers it found kept.
    """

    def __init__(
        self,
        checkpoints: dict[str, str] | None = None,
        break_off_at: str | None = None,
        *,
        calls: dict[str, str] | None = None,
        spent: Sequence[PaidCall] = (),
        of_jobs: Mapping[str, Mapping[str, str]] | None = None,
        datasets: Mapping[str, Sequence[Mapping[str, str]]] | None = None,
    ) -> None:
        self.reports: list[tuple[float, str | None, str | None]] = []
        self.checkpoints = {} if checkpoints is None else checkpoints
        self.calls = {} if calls is None else calls
        self.of_jobs = of_jobs or {}
        self.datasets = datasets or {}
        self.paid: list[PaidCall] = []
        self._spent = list(spent)
        self.failed: list[CallUsage] = []
        self.found: Counter[tuple[str, str]] = Counter()
        self.cancelled = False
        self._break_off_at = break_off_at

    job_id = "00000000-0000-7000-8000-000000000000"
    attempt = 1
    is_last_attempt = True
    deadline: datetime | None = None
    idempotency_key = "key"
    logger = logging.getLogger("test")

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled

    def check_cancelled(self) -> None:
        if self.cancelled:
            raise JobCancelledError

    def retry_later(self, delay_seconds: float, reason: str) -> NoReturn:
        raise AssertionError(reason)

    def give_up(self, reason: str) -> NoReturn:
        raise AssertionError(reason)

    def nothing_to_do(self, reason: str) -> NoReturn:
        raise AssertionError(reason)

    async def progress(
        self, fraction: float, stage: str | None = None, message: str | None = None
    ) -> None:
        if stage == self._break_off_at:
            raise BrokenOffError
        self.reports.append((fraction, stage, message))

    async def save_checkpoint(self, stage: str, data: Any) -> None:
        self.checkpoints[stage] = json.dumps(data)

    async def load_checkpoint(self, stage: str, *, of_job: str | None = None) -> Any:
        kept = self.checkpoints if of_job is None else self.of_jobs.get(of_job, {})
        return json.loads(kept[stage]) if stage in kept else None

    async def load_call(self, key: str) -> Any:
        return json.loads(self.calls[key]) if key in self.calls else None

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
        text = json.dumps(answer)
        if all(call.key != key for call in self.paid):
            self.paid.append(
                PaidCall(key, text, stage, model, prompt_tokens, completion_tokens, cost)
            )
        self.calls.setdefault(key, text)

    async def count_cached_calls(self, stage: str, model: str, calls: int) -> None:
        self.found[stage, model] += calls

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
        self.failed.append(
            CallUsage(stage, model, calls, 0, prompt_tokens, completion_tokens, cost)
        )

    async def load_usage(self) -> list[CallUsage]:
        all_paid = [*self._spent, *self.paid]

        def usage(stage: str, model: str) -> CallUsage:
            calls = [call for call in all_paid if (call.stage, call.model) == (stage, model)]
            failed = [call for call in self.failed if (call.stage, call.model) == (stage, model)]
            both: list[PaidCall | CallUsage] = [*calls, *failed]
            return CallUsage(
                stage,
                model,
                len(calls) + sum(call.calls for call in failed),
                self.found[stage, model],
                sum(call.prompt_tokens for call in both),
                sum(call.completion_tokens for call in both),
                sum(call.cost for call in both),
            )

        known = {(call.stage, call.model) for call in all_paid}
        known |= {(call.stage, call.model) for call in self.failed} | self.found.keys()
        return [usage(*names) for names in sorted(known)]

    async def dataset(self, dataset_id: str) -> Dataset:
        if dataset_id not in self.datasets:
            raise DatasetNotFoundError(dataset_id)
        rows = self.datasets[dataset_id]
        columns = tuple(rows[0]) if rows else ()
        return Dataset(dataset_id, "given.csv", columns, len(rows), {}, "0" * 64)

    async def dataset_rows(
        self, dataset_id: str, columns: Sequence[str]
    ) -> AsyncIterator[Mapping[str, str]]:
        stored = await self.dataset(dataset_id)
        if missing := [name for name in columns if name not in stored.columns]:
            raise DatasetError(f"no column {missing[0]!r}")
        for row in self.datasets[dataset_id]:
            yield {name: row[name] for name in columns}

    @property
    def milestones(self) -> list[str | None]:
        return list(dict.fromkeys(stage for _, stage, _ in self.reports))
