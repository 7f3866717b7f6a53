"""What jobs share, as one of them sees it: answers of paid calls, datasets, names of stages.

Part of `WorkerSession`, which knows how to insist on a database that is away.
"""

import asyncio
import json
import re
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from app.db.interface import DBInterface
from app.domain.errors import CallKeyError, CheckpointNameError, DatasetError
from app.domain.jobs import Claim
from app.domain.json_values import dump_storable, storable_text, with_storable_texts
from app.domain.sharing import (
    MAX_CALL_ANSWER_BYTES,
    MAX_CALL_COST,
    MAX_CALL_TOKENS,
    CallUsage,
    Dataset,
    FailedCalls,
    PaidCall,
)

MAX_NAME_CHARACTERS: Final = 200
MAX_STAGE_CHARACTERS: Final = 200
# How long a job that is to end may go on storing what it has paid for.
SAVING_SECONDS: Final = 2.0

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_T = TypeVar("_T")


class Insist(Protocol):
    """Repeats a call of the store until it is answered."""

    async def __call__(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """See WorkerSession.insist."""


class SharedStore:
    """Paid calls and datasets for the holder of a claim."""

    def __init__(self, claim: Claim, db: DBInterface, insist: Insist) -> None:
        self._claim = claim
        self._db = db
        self._insist = insist
        self._found: Counter[tuple[str, str]] = Counter()
        self._failed: defaultdict[tuple[str, str], FailedCalls] = defaultdict(FailedCalls)

    async def load_call(self, key: str) -> Any | None:
        """See PipelineContext."""
        _check_key(key)
        text = await self._insist(lambda: self._db.load_call(key))
        return None if text is None else json.loads(text)

    async def save_call(
        self,
        key: str,
        answer: Any,
        *,
        stage: str,
        model: str,
        prompt_tokens: int,
        completion_tokens: int,
        cost: float,
    ) -> None:
        """See PipelineContext."""
        _check_key(key)
        call = PaidCall(
            key=key,
            answer=dump_storable(
                with_storable_texts(answer), "answer of a call", MAX_CALL_ANSWER_BYTES
            ),
            stage=_name(stage),
            model=_name(model),
            prompt_tokens=_tokens(prompt_tokens),
            completion_tokens=_tokens(completion_tokens),
            cost=float(_bounded(cost, MAX_CALL_COST)),
        )
        saving = asyncio.ensure_future(self._insist(lambda: self._db.save_call(self._claim, call)))
        # Else the attempt that follows a shutdown would pay for the call again.
        await _in_any_case(saving)

    async def count_cached_calls(self, stage: str, model: str, calls: int) -> None:
        """See PipelineContext."""
        name = _name(stage), _name(model)
        self._found[name] += max(0, calls)
        # The total: the store may be told twice of the same calls, or of fewer after more.
        total = min(self._found[name], MAX_CALL_TOKENS)
        await self._insist(lambda: self._db.count_cached_calls(self._claim, *name, total))

    async def count_failed_calls(self, stage: str, model: str, failed: FailedCalls) -> None:
        """See PipelineContext."""
        name = _name(stage), _name(model)
        self._failed[name] = _within_bounds(self._failed[name] + _within_bounds(failed))
        counting = asyncio.ensure_future(self._insist(lambda: self._count_failed(name)))
        await _in_any_case(counting)

    async def _count_failed(self, name: tuple[str, str]) -> None:
        """The total of now: what was counted while the store was away is told with it."""
        await self._db.count_failed_calls(self._claim, *name, self._failed[name])

    async def load_usage(self) -> Sequence[CallUsage]:
        """See PipelineContext."""
        return await self._insist(lambda: self._db.list_usage(self._claim.job_id))

    async def dataset(self, dataset_id: str) -> Dataset:
        """See PipelineContext."""
        return await self._insist(lambda: self._db.get_dataset(dataset_id))

    async def dataset_rows(
        self, dataset_id: str, columns: Sequence[str]
    ) -> AsyncGenerator[Mapping[str, str], None]:
        """See PipelineContext."""
        stored = await self.dataset(dataset_id)
        positions = _positions(stored, columns)
        row_no = 0
        while True:
            next_page = partial(self._db.list_dataset_rows, dataset_id, positions, after_row=row_no)
            page = await self._insist(next_page)
            if not page:
                return
            for _, cells in page:
                yield dict(zip(columns, cells, strict=True))
            row_no, _ = page[-1]


async def _in_any_case(saving: asyncio.Future[None]) -> None:
    """See it through, within bounds also where the job is to end."""
    try:
        await asyncio.shield(saving)
    except asyncio.CancelledError:
        try:
            await asyncio.wait({saving}, timeout=SAVING_SECONDS)
        finally:
            saving.cancel()
        raise


def _positions(stored: Dataset, columns: Sequence[str]) -> list[int]:
    for name in columns:
        if name not in stored.columns:
            known = ", ".join(stored.columns)
            raise DatasetError(f"dataset {stored.name!r} has no column {name!r}; found: {known}")
    return [stored.columns.index(name) for name in columns]


def _check_key(key: str) -> None:
    if not _SHA256.fullmatch(key):
        raise CallKeyError(key)


def _name(text: str) -> str:
    return storable_text(text, MAX_NAME_CHARACTERS)


def _tokens(count: float) -> int:
    return int(_bounded(count, MAX_CALL_TOKENS))


def _within_bounds(failed: FailedCalls) -> FailedCalls:
    return FailedCalls(
        _tokens(failed.calls),
        _tokens(failed.prompt_tokens),
        _tokens(failed.completion_tokens),
        float(_bounded(failed.cost, MAX_CALL_COST)),
    )


def _bounded(told: float, most: int) -> float:
    """What a server says, within bounds before anything is made of it: it may be of any size.

    In this order NaN becomes 0.
    """
    return min(most, max(0, told))


def check_name(stage: str) -> None:
    """CheckpointNameError where this cannot be the name of a checkpoint."""
    if not 1 <= len(stage) <= MAX_STAGE_CHARACTERS:
        raise CheckpointNameError(f"has 1 to {MAX_STAGE_CHARACTERS} characters, not {len(stage)}")
    if storable_text(stage) != stage:
        raise CheckpointNameError("holds NUL or a lone surrogate, which cannot be stored")
