"""A month of work with its history, as a service leaves it; made inside the server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from app.db.definitions import statements

FILL: Final = Path(__file__).with_name("history.sql")


def month_of_work(jobs: int) -> Iterator[str]:
    """Statements that fill an empty database with `jobs` jobs, their attempts and their events.

    One job in fifty waits (1,000 at most), 40 run; 2,000 is the least. Statistics are fresh then.
    """
    for statement in statements(FILL.read_text("utf-8")):
        yield statement.replace("{jobs}", str(jobs))
    yield (
        "vacuum analyze haulage.jobs, haulage.job_attempts, haulage.job_events, haulage.usage,"
        " haulage.nodes, haulage.api_keys"
    )
