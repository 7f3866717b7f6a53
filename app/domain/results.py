"""Results as the store tells of them: which there is, and parts of it as JSON text."""

from dataclasses import dataclass
from typing import Final

from app.domain.jobs import JobStatus

# Copying one takes well under a millisecond; a whole result may take a hundred.
RESULT_PIECE_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class ResultState:
    """Whether a job has a result, columns in the statement's order.

    Attributes:
        claim_no: of the claim that stored it; None where there is no result. A result is never
            changed, so together with the job's id this names it for ever.
    """

    status: JobStatus
    claim_no: int | None


@dataclass(frozen=True, slots=True)
class PartPage:
    """Some items of a list within a result.

    Attributes:
        items: JSON list.
        count: how many items it has.
        has_more: whether others follow.
    """

    items: str
    count: int
    has_more: bool


@dataclass(frozen=True, slots=True)
class ThemeQuotes:
    """Quotes of a theme, and the theme without them as a JSON object."""

    theme: str
    quotes: PartPage
