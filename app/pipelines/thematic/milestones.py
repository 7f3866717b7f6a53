"""A job's way through its stages: each one reported, timed, kept, and passed over when it is done.

A checkpoint is the stage's dataclass as JSON, under a key over everything that its outcome depends
on: its own settings and the key of the stage before it. What another payload or an older program
left behind is never taken for one's own. A job may start from stages of another one; what follows
then hangs on the keys that those have.
"""

import base64
import binascii
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar, get_args, get_type_hints

from app.pipelines.interface import PipelineContext
from app.pipelines.thematic.parameters import ParameterError, StartFrom, digest

Stage = TypeVar("Stage")


class Report(Protocol):
    """Tells how far the stage under way has come; raises where the job is to end."""

    async def __call__(self, done: float, message: str) -> None:
        """`done` is the finished part of the stage, 0.0 to 1.0."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """What the model did for one stage.

    Attributes:
        asked: questions that came to an end.
        rejected: of these, whose first answer failed its checks; `failed`, whose second did too.
    """

    llm_calls: int = 0
    cached_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    retries: int = 0
    cost: float = 0.0
    asked: int = 0
    rejected: int = 0
    failed: int = 0

    def taken_over(self) -> "Cost":
        """As it is for a job that found the outcome made: nothing was paid again."""
        return Cost(
            cached_calls=self.llm_calls + self.cached_calls,
            asked=self.asked,
            rejected=self.rejected,
            failed=self.failed,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Basis:
    """What the checkpoints of a job rest on.

    Attributes:
        version: of the recipe.
        settings: stage -> the parameters that its outcome depends on beside earlier stages.
        fixed: what two jobs must have in common to share a stage: name -> (hash, first stage that
            depends on it).
    """

    version: str
    settings: Mapping[str, Any]
    fixed: Mapping[str, tuple[str, str]]


class Milestones:
    """Runs stages in turn and restores those that are finished.

    Args:
        context: the job's.
        starts: stage -> the fraction of the whole job at which it begins, in order.
        start_from: another job whose stages are taken over, None to do all.
        cost_of: what the model did for a stage in this attempt.
    """

    def __init__(
        self,
        context: PipelineContext,
        basis: Basis,
        starts: Mapping[str, float],
        start_from: StartFrom | None = None,
        cost_of: Callable[[str], Cost] = lambda _: Cost(),
    ) -> None:
        self._context = context
        self._basis = basis
        self._starts = starts
        self._order = list(starts)
        self._start_from = start_from
        self._cost_of = cost_of
        self._key = digest(basis.version)
        self._now: tuple[float, str] = (0.0, self._order[0])
        self.seconds: dict[str, float] = {}
        self.costs: dict[str, Cost] = {}

    async def reach(
        self,
        stage: str,
        message: str,
        work: Callable[[Report], Awaitable[Stage]],
        kind: type[Stage],
    ) -> Stage:
        """The outcome of `work`, a dataclass of type `kind`: done now, or restored.

        Raises:
            ParameterError: it was to be taken from another job that does not have it.
        """
        taken = await self._taken(stage)
        key = taken["key"] if taken else digest([self._key, stage, self._basis.settings.get(stage)])
        kept = taken or await self._context.load_checkpoint(stage)
        self._key = key
        if isinstance(kept, dict) and kept.get("key") == key:
            said = f"{message} (taken over)" if taken else f"{message} (done before)"
            await self._reporter(stage)(0.0, said)
            self.seconds[stage] = kept["seconds"]
            cost = Cost(**kept["cost"])
            self.costs[stage] = cost.taken_over() if taken else cost
            return decode(kind, kept["data"])
        outcome = await self.finish(stage, message, work)
        await self._context.save_checkpoint(
            stage,
            {
                "key": key,
                "version": self._basis.version,
                "fixed": self._fixed(stage),
                "from": None,
                "seconds": self.seconds[stage],
                "cost": dataclasses.asdict(self.costs[stage]),
                "data": encode(outcome),
            },
        )
        return outcome

    async def finish(
        self, stage: str, message: str, work: Callable[[Report], Awaitable[Stage]]
    ) -> Stage:
        """The outcome of `work`, without a checkpoint: for the last stage, the job's result."""
        report = self._reporter(stage)
        await report(0.0, message)
        began = time.perf_counter()
        outcome = await work(report)
        self.seconds[stage] = round(time.perf_counter() - began, 3)
        self.costs[stage] = self._cost_of(stage)
        return outcome

    async def note(self, message: str) -> None:
        """Report what the stage under way waits for."""
        fraction, stage = self._now
        await self._context.progress(fraction, stage, message)

    async def _taken(self, stage: str) -> dict[str, Any] | None:
        """The other job's checkpoint where this stage comes from there, kept as one's own too.

        A job that is tried again then finds it, whatever has become of the other one.
        """
        start = self._start_from
        if start is None or self._order.index(stage) > self._order.index(start.stage):
            return None
        own = await self._context.load_checkpoint(stage)
        if isinstance(own, dict) and own.get("from") == start.job:
            self._check(stage, own, start)
            return own
        kept = await self._context.load_checkpoint(stage, of_job=start.job)
        if not isinstance(kept, dict) or "key" not in kept:
            remedy = f"this job has no finished stage {stage!r}; start from an earlier one"
            raise ParameterError("start_from.job", start.job, remedy)
        self._check(stage, kept, start)
        own = {**kept, "from": start.job}
        await self._context.save_checkpoint(stage, own)
        return own

    def _check(self, stage: str, kept: Mapping[str, Any], start: StartFrom) -> None:
        """Refuse what was made by another program, from another input or with other settings.

        A setting is never ignored because its stage is taken over: it may be one of privacy.
        """
        if kept.get("version") != self._basis.version:
            remedy = f"it was made by version {kept.get('version')}, this is {self._basis.version}"
            raise ParameterError("start_from.job", start.job, remedy)
        for name, fixed in self._fixed(stage).items():
            if kept.get("fixed", {}).get(name) == fixed:
                continue
            first = self._order.index(self._basis.fixed[name][1])
            if first == 0:
                remedy = f"its {stage!r} was made from another {name}; give the same one"
                raise ParameterError("start_from.job", start.job, remedy)
            instead = self._order[first - 1]
            remedy = (
                f"its {stage!r} was made with another {name}; give the same one, or start from "
                f"{instead!r}"
            )
            raise ParameterError("start_from.stage", start.stage, remedy)

    def _fixed(self, stage: str) -> dict[str, str]:
        at = self._order.index(stage)
        return {
            name: fixed
            for name, (fixed, first) in self._basis.fixed.items()
            if self._order.index(first) <= at
        }

    def _reporter(self, stage: str) -> Report:
        start = self._starts[stage]
        end = min((value for value in self._starts.values() if value > start), default=1.0)

        async def report(done: float, message: str) -> None:
            self._context.check_cancelled()
            self._now = (start + (end - start) * done, stage)
            await self._context.progress(*self._now, message)

        return report


def encode(outcome: object) -> dict[str, Any]:
    """A stage's dataclass as JSON; arrays as base64 of little-endian bytes, dtype and shape."""
    if not dataclasses.is_dataclass(outcome):
        raise TypeError(f"a stage returns a dataclass, not {type(outcome).__name__}")
    # Not dataclasses.asdict: it would copy every text of a large survey.
    return {
        item.name: _encode_value(getattr(outcome, item.name))
        for item in dataclasses.fields(outcome)
    }


def decode(kind: type[Stage], data: dict[str, Any]) -> Stage:
    """The inverse of `encode`; dataclasses within are found by the types of the fields."""
    types = get_type_hints(kind)
    return kind(**{name: _decode_value(types[name], value) for name, value in data.items()})


def _encode_value(value: Any) -> Any:
    if hasattr(value, "dtype") and hasattr(value, "tobytes"):
        little = value.astype(value.dtype.newbyteorder("<"))
        return {
            "dtype": little.dtype.str,
            "shape": list(little.shape),
            "base64": base64.b64encode(little.tobytes()).decode("ascii"),
        }
    if dataclasses.is_dataclass(value):
        return encode(value)
    if isinstance(value, list) and value and dataclasses.is_dataclass(value[0]):
        return [encode(item) for item in value]
    return value


def _decode_value(kind: Any, value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"dtype", "shape", "base64"}:
        import numpy as np  # noqa: PLC0415 - stages without arrays are restored without numpy

        raw = binascii.a2b_base64(value["base64"])
        return np.frombuffer(raw, dtype=value["dtype"]).reshape(value["shape"])
    inner = next((part for part in (kind, *get_args(kind)) if dataclasses.is_dataclass(part)), None)
    if not isinstance(inner, type):
        return value
    if isinstance(value, dict):
        return decode(inner, value)
    return [decode(inner, item) for item in value] if isinstance(value, list) else value
