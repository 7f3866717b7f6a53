"""A thematic analysis that is killed inside every stage: nothing finished is done or paid again.

In mode `full` the model judges stances together with themes, so the stage `stance` asks in mode
`name` alone. Killed is at both ends of each stage, and between the calls of those that ask most.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from support.fake_llm import Call, FakeLLM, Held
from support.processes import living
from support.service import Service, wait_until
from support.sql import attempts, holding, insert_job, make_due, rows, value
from system.conftest import Start
from system.stores import SQL
from thematic.coder import good, stage
from thematic.surveys import topics

from app.pipelines.thematic.pipeline import STAGES

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.needs(SQL),
]  # some twenty attempts, each a process that loads a model

LLM_STAGES: Final = ("name", "review", "assign", "insights")
# The last stage has no checkpoint: its outcome is the job's result.
KEPT_STAGES: Final = tuple(STAGES)[:-1]
LAST_STAGE: Final = tuple(STAGES)[-1]
FULL: Final = {
    "answers": topics(each=30),
    "id_column": "id",
    "mode": "full",
    "stance": True,
    "max_themes": 4,
}
NAME: Final = {**FULL, "mode": "name"}

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
    with FakeLLM(good) as server:
        yield server


@contextmanager
def closed_gate(url: str, place: str, at: str) -> Iterator[None]:
    """Whoever writes about this stage waits before its commit; at the end it is rolled back."""
    with holding(url, "select pg_advisory_xact_lock(4711)"):
        rows(url, "insert into gate values ($1, $2)", place, at)
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


def kill_at(url: str, job_id: str, place: str, at: str) -> None:
    """Let the next attempt come to this write, and kill its process there."""
    made = len(attempts(url, job_id))
    with closed_gate(url, place, at):
        make_due(url, job_id)
        wait_until(lambda: rows(url, AT_GATE), f"{place} of {at}", 60)
        kill(url, job_id)
    await_end(url, job_id, made + 1)


def kill(url: str, job_id: str) -> None:
    """Kill the process of the attempt that is under way."""
    [*_, attempt] = attempts(url, job_id)
    assert attempt["pid"] is not None
    os.kill(attempt["pid"], signal.SIGKILL)
    wait_until(lambda: not living({attempt["pid"]}), "death of the worker")


def await_end(url: str, job_id: str, made: int) -> None:
    """Wait until so many attempts are over; no other one begins before `make_due`."""
    wait_until(lambda: ended(url, job_id) == made, "end of the attempt")
    rows(url, "update haulage.jobs set run_at = 'infinity' where id::text = $1", job_id)
    assert len(attempts(url, job_id)) == made


def ended(url: str, job_id: str) -> int:
    """Attempts that are over."""
    return sum(attempt["ended_at"] is not None for attempt in attempts(url, job_id))


def kill_between_calls(url: str, job_id: str, llm: FakeLLM, asking: str, after: int) -> None:
    """Kill the next attempt once so many calls of a stage are answered and others under way."""
    answered = 0
    answerable: list[Call] = []  # those that arrived before the server held them

    def answer(request: Any) -> Any:
        nonlocal answered
        answered += stage(request) == asking
        if answered == after and not answerable:
            llm.always = Held()
            answerable.extend(llm.calls)
        return good(request)

    def are_others_held() -> bool:
        return 0 < len(answerable) < len(llm.calls) and all(call.is_finished for call in answerable)

    llm.answer = answer
    made = len(attempts(url, job_id))
    make_due(url, job_id)
    wait_until(are_others_held, f"calls of {asking}", 60)
    wait_until(lambda: paid(url, job_id) == llm.finished.total(), "calls to be kept")
    kill(url, job_id)
    await_end(url, job_id, made + 1)
    wait_until(lambda: llm.under_way == 0, "end of the calls")
    llm.answer, llm.always = good, None


def paid(url: str, job_id: str) -> int:
    """Calls that the job has counted as its own."""
    query = "select coalesce(sum(calls), 0) from haulage.usage where job_id::text = $1"
    return int(value(url, query, job_id))


def analysed_anew(service: Service, url: str, payload: dict[str, Any]) -> dict[str, Any]:
    """The result of a job that nobody disturbs and that finds no answer kept."""
    rows(url, "delete from haulage.call_cache")
    job_id = service.enqueue(payload, "thematic")
    assert service.wait_for_end(job_id, 120)["status"] == "completed"
    result: dict[str, Any] = service.result(job_id)
    return result


def without_usage(result: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in result.items() if name != "usage"}


def test_a_job_killed_inside_every_stage_pays_for_no_call_twice_and_ends_as_if_undisturbed(
    start: Start, database_url: str, llm: FakeLLM
) -> None:
    for statement in GATE:
        rows(database_url, statement)
    places = [(place, at) for at in KEPT_STAGES for place in ("job_events", "job_checkpoints")]
    # A stage's milestone comes after the commit of the checkpoint before it.
    places += [("job_events", LAST_STAGE), ("job_results", "result")]
    job_id = new_job(database_url, FULL, max_attempts=len(places) + 1)
    with start(llm_base_url=llm.url, llm_model="fake") as service:
        calls: dict[str, int] = {}
        for place, at in places:
            before = llm.finished.total()
            kill_at(database_url, job_id, place, at)
            if place == "job_checkpoints":
                calls[at] = llm.finished.total() - before
        assert all(calls[at] > 0 for at in LLM_STAGES), calls
        is_as_if_undisturbed(service, database_url, llm, job_id, FULL)
    outcomes = [attempt["outcome"] for attempt in attempts(database_url, job_id)]
    assert outcomes == ["failed"] * len(places) + ["completed"]


def test_a_job_killed_where_stances_are_asked_for_pays_for_no_call_twice(
    start: Start, database_url: str, llm: FakeLLM
) -> None:
    for statement in GATE:
        rows(database_url, statement)
    job_id = new_job(database_url, NAME, max_attempts=4)
    with start(llm_base_url=llm.url, llm_model="fake") as service:
        kill_at(database_url, job_id, "job_events", "stance")
        before = llm.finished.total()
        kill_between_calls(database_url, job_id, llm, "stance", after=2)
        kill_at(database_url, job_id, "job_checkpoints", "stance")
        assert llm.finished.total() > before + 2
        is_as_if_undisturbed(service, database_url, llm, job_id, NAME)


@pytest.mark.parametrize(("asking", "after"), [("name", 1), ("assign", 1), ("assign", 22)])
def test_a_job_killed_between_the_calls_of_a_stage_pays_for_none_twice(
    start: Start, database_url: str, llm: FakeLLM, asking: str, after: int
) -> None:
    job_id = new_job(database_url, FULL, max_attempts=2)
    with start(llm_base_url=llm.url, llm_model="fake") as service:
        kill_between_calls(database_url, job_id, llm, asking, after)
        is_as_if_undisturbed(service, database_url, llm, job_id, FULL)


def is_as_if_undisturbed(
    service: Service, url: str, llm: FakeLLM, job_id: str, payload: dict[str, Any]
) -> None:
    """Let the job end; it has paid for each call once, and its result is an undisturbed one's."""
    make_due(url, job_id)
    assert service.wait_for_end(job_id, 120)["status"] == "completed"
    assert llm.repeated == []
    assert paid(url, job_id) == llm.finished.total()
    result = service.result(job_id)
    assert result["usage"]["llm_calls"] == llm.finished.total()
    assert without_usage(result) == without_usage(analysed_anew(service, url, payload))
