"""A job's way through its stages: each one reported, timed, kept, and passed over when it is done.

A checkpoint is the stage's dataclass as JSON, under a key over payload and version: what another
payload or an older program left behind is never taken for one's own.
"""

import base64
import binascii
import dataclasses
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar, get_args, get_type_hints

from app.pipelines.interface import PipelineContext

Stage = TypeVar("Stage")


class Report(Protocol):
    """Tells how far the stage under way has come; raises where the job is to end."""

    async def __call__(self, done: float, message: str) -> None:
        """`done` is the finished part of the stage, 0.0 to 1.0."""


class Milestones:
    """Runs stages in turn and restores those that an earlier attempt of the job has finished.

    Args:
        context: the job's.
        key: changes with everything that a stage's outcome depends on.
        starts: stage -> the fraction of the whole job at which it begins, in order.
    """

    def __init__(self, context: PipelineContext, key: str, starts: dict[str, float]) -> None:
        self._context = context
        self._key = key
        self._starts = starts
        self.seconds: dict[str, float] = {}

    async def reach(
        self,
        stage: str,
        message: str,
        work: Callable[[Report], Awaitable[Stage]],
        kind: type[Stage],
    ) -> Stage:
        """The outcome of `work`, a dataclass of type `kind`: done now, or restored."""
        kept = await self._context.load_checkpoint(stage)
        if isinstance(kept, dict) and kept.get("key") == self._key:
            await self._reporter(stage)(0.0, f"{message} (done before)")
            self.seconds[stage] = kept["seconds"]
            return decode(kind, kept["data"])
        outcome = await self.finish(stage, message, work)
        await self._context.save_checkpoint(
            stage, {"key": self._key, "seconds": self.seconds[stage], "data": encode(outcome)}
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
        return outcome

    def _reporter(self, stage: str) -> Report:
        start = self._starts[stage]
        end = min((value for value in self._starts.values() if value > start), default=1.0)

        async def report(done: float, message: str) -> None:
            self._context.check_cancelled()
            await self._context.progress(start + (end - start) * done, stage, message)

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
    if isinstance(inner, type) and isinstance(value, dict):
        return decode(inner, value)
    if isinstance(inner, type) and isinstance(value, list):
        return [decode(inner, item) for item in value]
    return value
