"""What jobs share: answers of paid calls with what they cost, and datasets; and their bounds."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

# The answer of one paid call; far above what a model writes in one go.
MAX_CALL_ANSWER_BYTES: Final = 1024 * 1024
# What a call is said to have used is its server's word; no true figure comes near these.
MAX_CALL_TOKENS: Final = 10**9
MAX_CALL_COST: Final = 10**6
MAX_DATASET_BYTES: Final = 64 * 1024 * 1024
MAX_DATASET_ROWS: Final = 200_000
MAX_DATASET_COLUMNS: Final = 1_000
MAX_CELL_CHARACTERS: Final = 100_000
# What every store can keep in one place: a document of MongoDB holds 16 MiB.
MAX_DATASET_ROW_BYTES: Final = 15 * 1024 * 1024
MAX_DATASET_HEADER_BYTES: Final = 4 * 1024 * 1024
DATASET_PAGE_ROWS: Final = 1_000
# Of rows that are sent as one answer; a single row may be longer.
MAX_PAGE_BYTES: Final = 1024 * 1024
# The same file may be stored as often as its reader changes.
DATASETS_OF_FILE: Final = 100
# What was found out about a dataset's file.
MAX_DETECTED_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PaidCall:
    """A finished call that cost something, to be kept for every job.

    Attributes:
        key: sha256, hexadecimal, over everything that the answer depends on.
        answer: JSON text.
        cost: in the currency of the caller's prices.
    """

    key: str
    answer: str
    stage: str
    model: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class FailedCalls:
    """Requests that gave no answer, and what they may have cost all the same."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0

    def __add__(self, other: "FailedCalls") -> "FailedCalls":
        return FailedCalls(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cost + other.cost,
        )


@dataclass(frozen=True, slots=True)
class CallUsage:
    """What a job's calls of one stage and model cost, columns in the statement's order.

    Attributes:
        calls: requests that the job made, in all its attempts, failed ones too.
        cached_calls: that found their answers kept.
    """

    stage: str
    model: str
    calls: int
    cached_calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float


@dataclass(frozen=True, slots=True)
class Dataset:
    """A stored table of texts.

    Attributes:
        detected: what was found out about the file it came from (encoding, header rows, dropped
            personal columns, questions by column), as JSON.
        sha256: of that file, hexadecimal.
        created_at: when it was stored.
    """

    id: str
    name: str
    columns: tuple[str, ...]
    row_count: int
    detected: Mapping[str, Any]
    sha256: str
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """What a list tells of a dataset, columns in the statement's order."""

    id: str
    name: str
    row_count: int
    column_count: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class JsonRow:
    """A row of a dataset, columns in the statement's order.

    Attributes:
        text: its cells as a JSON list.
    """

    row_no: int
    text: str


def dataset_of(payload: Mapping[str, Any]) -> str | None:
    """The dataset that a payload names under `dataset.id`, in canonical form, None without one.

    Other pipelines may mean something else by that key, so only what has the form of our ids
    counts.
    """
    named = payload.get("dataset")
    given = named.get("id") if isinstance(named, Mapping) else None
    if not isinstance(given, str):
        return None
    try:
        return str(UUID(given))
    except ValueError:
        return None
