"""Jobs with results as they are kept, without a scheduler: reports are about what is there."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from reporting.rows import Session

from app.db.ids import new_id

VIEWS = (
    "analyses",
    "themes",
    "theme_quotes",
    "responses",
    "response_themes",
    "theme_by_segment",
    "theme_trend",
    "insights",
)
"""Those about analyses."""
BEGAN = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)

_KEEP = """
with job as (
    insert into haulage.jobs (
        id, pipeline, status, node_id, claim_no, attempt, created_at, started_at, finished_at
    )
    values ($1::text::uuid, $2, $3, gen_random_uuid(), 1, 1, $4, $4, $5)
    returning id
)
insert into haulage.job_results (job_id, claim_no, result) select id, 1, $6::jsonb from job
"""


async def keep(
    session: Session,
    result: Any,
    *,
    pipeline: str = "thematic",
    status: str = "completed",
    finished_at: datetime = BEGAN + timedelta(seconds=90),
) -> str:
    """Store a job that ended with this result; its id."""
    job_id = new_id()
    await session.execute(_KEEP, job_id, pipeline, status, BEGAN, finished_at, json.dumps(result))
    return job_id
