"""A thematic analysis that is killed inside every stage: nothing finished is done or paid again."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from support.fake_llm import FakeLLM
from support.processes import living
from support.service import Service, wait_until
from support.sql import attempts, holding, insert_job, make_due, rows, value
from system.conftest import Start
from thematic.surveys import topics

from app.pipelines.thematic.pipeline import STAGES

pytestmark = pytest.mark.timeout(600)

LLM_STAGES: Final = ("name", "review", "assign", "insights")
# The last stage has no checkpoint: its outcome is the job's result.
KEPT_STAGES: Final = tuple(STAGES)[:-1]
LAST_STAGE: Final = tuple(STAGES)[-1]
PAYLOAD: Final = {
    "answers": topics(each=30),
    "id_column": "id",
    "mode": "full",
    "stance": True,
    "max_themes": 4,
}

# A session that waits here has done its write and not committed it.
GATE: Final = (
    "create table gate (place text, stage text)",
    """
    create function wait_at_gate() returns trigger language plpgsql as $$
    begin
        if exists (
            select from gate
            where place = tg_table_name
              and stage = coalesce(to_jsonb(new) ->> 'stage', 'result')
        ) then
            perform pg_advisory_xact_lock(4711);
        end if;
        return null;
    end $$
    """,
    *(
        f"create trigger gate after insert or update on haulage.{table}"
        " for each row execute function wait_at_gate()"
        for table in ("job_checkpoints", "job_events", "job_results")
    ),
)
AT_GATE: Final = """
select pid from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock' and wait_event = 'advisory'
"""


@pytest.fixture
def llm() -> Iterator[FakeLLM]:
    with FakeLLM() as server:
        yield server


@contextmanager
def closed_gate(url: str, place: str, stage: str) -> Iterator[None]:
    """Whoever writes about this stage waits before its commit; at the end it is rolled back."""
    with holding(url, "select pg_advisory_xact_lock(4711)"):
        rows(url, "insert into gate values ($1, $2)", place, stage)
        try:
            yield
        finally:
            rows(url, "delete from gate")
            for [pid] in rows(url, AT_GATE):
                rows(url, "select pg_terminate_backend($1)", pid)
            wait_until(lambda: not rows(url, AT_GATE), "end of the sessions at the gate")


def new_job(url: str, payload: dict[str, Any], max_attempts: int) -> str:
    """A job that is not due before `make_due`."""
    [job_id] = insert_job(url, "thematic", json.dumps(payload), notify=False)
    rows(
        url,
        "update haulage.jobs set run_at = 'infinity', max_attempts = $2 where id::text = $1",
        job_id,
        max_attempts,
    )
    return job_id


def kill_at(url: str, job_id: str, place: str, stage: str) -> None:
    """Let the next attempt come to this write, and kill its process there."""
    with closed_gate(url, place, stage):
        made = len(attempts(url, job_id))
        make_due(url, job_id)
        wait_until(lambda: rows(url, AT_GATE), f"{place} of {stage}", 60)
        [*_, attempt] = attempts(url, job_id)
        assert attempt["pid"] is not None
        os.kill(attempt["pid"], signal.SIGKILL)
        wait_until(lambda: not living({attempt["pid"]}), "death of the worker")
    wait_until(lambda: attempts(url, job_id)[-1]["ended_at"], "end of the attempt")
    assert len(attempts(url, job_id)) >= made


def analysed_anew(service: Service, url: str, payload: dict[str, Any]) -> dict[str, Any]:
    """The result of a job that nobody disturbs and that finds no answer kept."""
    rows(url, "delete from haulage.call_cache")
    job_id = service.enqueue(payload, "thematic")
    assert service.wait_for_end(job_id)["status"] == "completed"
    result: dict[str, Any] = service.result(job_id)
    return result


def without_usage(result: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in result.items() if name != "usage"}


def test_a_job_killed_inside_every_stage_pays_for_no_call_twice_and_ends_as_if_undisturbed(
    start: Start, database_url: str, llm: FakeLLM
) -> None:
    for statement in GATE:
        rows(database_url, statement)
    places = [
        (place, stage) for stage in KEPT_STAGES for place in ("job_events", "job_checkpoints")
    ]
    # A stage's milestone comes after the commit of the checkpoint before it.
    places += [("job_events", LAST_STAGE), ("job_results", "result")]
    job_id = new_job(database_url, PAYLOAD, max_attempts=len(places) + 1)
    with start(llm_base_url=llm.url, llm_model="fake") as service:
        calls: dict[str, int] = {}
        for place, stage in places:
            before = llm.finished.total()
            kill_at(database_url, job_id, place, stage)
            if place == "job_checkpoints":
                calls[stage] = llm.finished.total() - before
        make_due(database_url, job_id)
        assert service.wait_for_end(job_id)["status"] == "completed"

        assert all(calls[stage] > 0 for stage in LLM_STAGES), calls
        assert llm.repeated == []
        paid = value(
            database_url, "select sum(calls) from haulage.usage where job_id::text = $1", job_id
        )
        assert paid == llm.finished.total()
        result = service.result(job_id)
        assert result["usage"]["llm_calls"] == paid
        undisturbed = analysed_anew(service, database_url, PAYLOAD)
    assert without_usage(result) == without_usage(undisturbed)
    outcomes = [attempt["outcome"] for attempt in attempts(database_url, job_id)]
    assert outcomes == ["failed"] * len(places) + ["completed"]
