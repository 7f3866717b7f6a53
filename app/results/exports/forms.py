"""Which forms there are, and which tables an analysis has."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Form:
    """How a form is sent."""

    media_type: str
    disposition: Literal["attachment", "inline"]


FORMS: Final = MappingProxyType(
    {
        "csv": Form("text/csv; charset=utf-8", "attachment"),
        "xlsx": Form(
            "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "attachment"
        ),
        "html": Form("text/html; charset=utf-8", "inline"),
    }
)

PARTS: Final = ("responses", "themes", "quotes", "insights")
"""Tables of an analysis; the first is what a CSV has if none is named."""

SHEETS: Final = ("themes", "quotes", "responses", "insights")
"""The same as a workbook has them."""
