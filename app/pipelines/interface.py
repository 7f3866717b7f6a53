"""What a pipeline is and what it is given; a user's class needs no import from here.

A pipeline is any class with an asynchronous `run(payload, context)`. The classes here are
protocols: they exist for type checkers and readers, nothing is checked by inheritance.
"""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, Protocol, runtime_checkable

from app.domain.sharing import CallUsage, Dataset

# JSON as the json module gives it: dict, list, str, int, float, bool or None.
Json = Any


@runtime_checkable
class PipelineContext(Protocol):
    """A job's view of itself, handed to `run`. Every method is safe to call from the job's loop."""

    @property
    def job_id(self) -> str:
        """The job's UUID."""

    @property
    def attempt(self) -> int:
        """1 for the first attempt, counting up; a graceful release does not count."""

    @property
    def is_last_attempt(self) -> bool:
        """True where a failure, or `retry_later`, would end the job as failed."""

    @property
    def deadline(self) -> datetime | None:
        """When the run-time limit ends this attempt (UTC), None without a limit."""

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this job: for effects outside the database."""

    @property
    def logger(self) -> logging.Logger:
        """Lines written here reach the job's log; so do stdout, stderr and every other logger."""

    @property
    def is_cancelled(self) -> bool:
        """True once the job is to end (cancel, limit, shutdown); poll it in long loops."""

    def check_cancelled(self) -> None:
        """Raise JobCancelledError once the job is to end."""

    def retry_later(self, delay_seconds: float, reason: str) -> NoReturn:
        """End this attempt and have another one, `delay_seconds` from now at the earliest.

        It counts as an attempt: with `max_attempts` used up the job fails with `reason`.
        """

    def give_up(self, reason: str) -> NoReturn:
        """Fail the job for good: no further attempt is made, however many are left."""

    def nothing_to_do(self, reason: str) -> NoReturn:
        """Complete the job without a result of its own: {"nothing_to_do": reason} is stored."""

    async def progress(
        self, fraction: float, stage: str | None = None, message: str | None = None
    ) -> None:
        """Report progress; a change of `stage` is kept for good as a milestone.

        Args:
            fraction: 0.0 to 1.0 of the whole job.
            stage: short name of the stage that is now under way.
            message: one line for people.

        Within a stage reports are coalesced, so calling often is cheap. An attempt keeps 1,000
        milestones; later stages show in the latest progress only.
        """

    async def save_checkpoint(self, stage: str, data: Json) -> None:
        """Keep an intermediate result of `stage` (JSON, at most 64 MiB), replacing an earlier one.

        It survives this attempt: a retried job finds it with `load_checkpoint`.
        """

    async def load_checkpoint(self, stage: str, *, of_job: str | None = None) -> Json | None:
        """The intermediate result kept under `stage` by this or an earlier attempt, else None.

        Args:
            of_job: id of another job to take it from; a job that is unknown has kept nothing.
        """

    async def load_call(self, key: str) -> Json | None:
        """The answer of a finished paid call, kept under `key` by any job, else None.

        Args:
            key: a sha256 in hexadecimal over everything that the answer depends on.
        """

    async def save_call(
        self,
        key: str,
        answer: Json,
        *,
        stage: str,
        model: str,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cost: float = 0.0,
    ) -> None:
        """Keep the answer of a finished paid call, with what it cost, in one transaction.

        It survives this attempt and serves every job. Kept once: the first answer under a key
        stays, and a repetition within an attempt is not counted again. NUL and lone surrogates in
        texts are replaced; what is out of bounds in tokens or cost is cut to them.

        Args:
            answer: JSON of at most 1 MiB.
            cost: in the currency of the prices.
        """

    async def count_cached_calls(self, stage: str, model: str, calls: int) -> None:
        """Add to the job's usage that so many more calls of `stage` found their answers kept."""

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
        """Add requests of `stage` that gave no answer to the job's usage, and what they may cost.

        So that a bound on requests, tokens or cost holds over all attempts. What is out of bounds
        is cut to them.
        """

    async def load_usage(self) -> Sequence[CallUsage]:
        """What the job's calls have cost so far, in all its attempts, by stage and model."""

    async def dataset(self, dataset_id: str) -> Dataset:
        """What is known of a stored dataset; DatasetError where there is none of this id."""

    def dataset_rows(
        self, dataset_id: str, columns: Sequence[str]
    ) -> AsyncIterator[Mapping[str, str]]:
        """The rows of a stored dataset in their order, with these columns."""


@runtime_checkable
class PipeLineInterface(Protocol):
    """A kind of work. Constructed once per job, in the job's own process."""

    async def run(self, payload: Mapping[str, Any], context: PipelineContext) -> Json:
        """Do the work and return the job's result (JSON, at most 64 MiB).

        An exception ends the attempt as failed and is kept with its traceback.

        The class may say what its jobs get where they say nothing themselves:

            job_defaults = {"max_attempts": 3, "timeout_seconds": 600}

        and `start_timeout_seconds`, `stall_seconds`, `memory_limit_bytes` (see Limits).
        """


PipelineInterface = PipeLineInterface
