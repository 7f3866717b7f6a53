"""Views and functions as SQL files: what a database has at the newest revision.

`reporting/*.sql` has one view a file, its comments beside it; `analyses.sql` also has the function
by which views tell analyses from other results. `functions/*.sql` has one function a file. A
revision carries its own copy in `migrations/frozen`, which `migrations/freeze.py` writes and nobody
edits once it was released. Tests compare the outcome of both.
"""

import re
from collections.abc import Iterator
from importlib.resources import files
from types import MappingProxyType
from typing import Final, Literal

Kind = Literal["reporting", "functions"]

REPORTING: Final = "reporting"
"""The schema of the views, and the only one that readers are let into."""

ORDER: Final = MappingProxyType(
    {
        # Whoever selects from another view comes after it.
        "reporting": (
            "jobs",
            "attempts",
            "milestones",
            "job_tags",
            "llm_usage",
            "hourly_throughput",
            "daily_throughput",
            "pipeline_latency_24h",
            "pipeline_latency_7d",
            "failure_rates",
            "failures_grouped",
            "submitter_use",
            "queue_now",
            "oldest_pending",
            "running_now",
            "retries",
            "stuck_candidates",
            "nodes",
            "scaling",
            "analyses",
            "themes",
            "theme_quotes",
            "responses",
            "response_themes",
            "theme_by_segment",
            "theme_trend",
            "insights",
        ),
        "functions": ("enqueue",),
    }
)
"""Names of the files of each kind, in the order of their making."""

# Up to a semicolon at the end of a line, unless that is within a body between dollar signs.
_STATEMENT: Final = re.compile(r"((?:\$(\w*)\$.*?\$\2\$|[^$])*?);[ \t]*(?:\n|\Z)", re.DOTALL)


def source(kind: Kind) -> str:
    """All files of one kind, in order."""
    folder = files("app.db") / kind
    return "\n".join((folder / f"{name}.sql").read_text("utf-8") for name in ORDER[kind])


def statements(text: str) -> Iterator[str]:
    """One by one what a file has: drivers and alembic take no more at a time."""
    for found in _STATEMENT.finditer(text):
        yield found[1].strip()
