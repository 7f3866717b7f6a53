"""A month of finished work with its history, as a service leaves it; made inside the server."""

from pathlib import Path
from typing import Final

import asyncpg

from app.db.definitions import statements

FILL: Final = Path(__file__).with_name("history.sql")
TABLES: Final = "haulage.jobs, haulage.job_attempts, haulage.job_events, haulage.usage"


async def fill_history(connection: "asyncpg.Connection[asyncpg.Record]", jobs: int) -> None:
    """Fill an empty database with `jobs` jobs, an attempt for each claim, and their events.

    One in fifty waits (1,000 at most), 40 run; 200 is the least. Statistics are up to date then.
    """
    for statement in statements(FILL.read_text("utf-8")):
        await connection.execute(statement.replace("{jobs}", str(jobs)))
    await connection.execute(f"vacuum analyze {TABLES}, haulage.nodes, haulage.api_keys")
