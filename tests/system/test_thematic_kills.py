"""A thematic analysis that is killed inside every stage: nothing finished is done or paid again.

In mode `full` the model judges stances together with themes, so the stage `stance` asks in mode
`name` alone. Killed is at both ends of each stage, and between the calls of those that ask most.
"""

import os
import signal
from collections.abc import Iterator
from typing import Any, Final

import pytest
from support.fake_llm import Call, FakeLLM, Held
from support.processes import living
from support.proxy import proxied_beside
from support.service import Service, wait_until
from system.conftest import Start
from system.gates import Gate, ProxyGate, SqlGate
from system.stores import SQL, Store
from thematic.coder import good, stage
from thematic.surveys import topics

from app.pipelines.thematic.pipeline import STAGES

pytestmark = pytest.mark.timeout(900)  # some twenty attempts, each a process that loads a model

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


@pytest.fixture
def llm() -> Iterator[FakeLLM]:
    with FakeLLM(good) as server:
        yield server


@pytest.fixture
def gate(store: Store) -> Iterator[Gate]:
    if SQL in store.capabilities:
        yield SqlGate(store.url)
        return
    with proxied_beside(store.url) as proxy:
        yield ProxyGate(proxy)


def new_job(store: Store, payload: dict[str, Any], max_attempts: int) -> str:
    """A job that is not due before `make_due`."""
    [job_id] = store.insert_jobs("thematic", payload, notify=False, max_attempts=max_attempts)
    store.put_off(job_id)
    return job_id


def kill_at(store: Store, gate: Gate, job_id: str, place: str, at: str) -> None:
    """Let the next attempt come to this write, and kill its process there."""
    made = len(store.attempts(job_id))
    with gate.closed(place, at) as is_somebody_there:
        store.make_due(job_id)
        wait_until(is_somebody_there, f"{place} of {at}", 60)
        kill(store, job_id)
    await_end(store, job_id, made + 1)


def kill(store: Store, job_id: str) -> None:
    """Kill the process of the attempt that is under way."""
    pid = store.attempts(job_id)[-1].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not living({pid}), "death of the worker")


def await_end(store: Store, job_id: str, made: int) -> None:
    """Wait until so many attempts are over; no other one begins before `make_due`."""
    wait_until(lambda: ended(store, job_id) == made, "end of the attempt")
    store.put_off(job_id)
    assert len(store.attempts(job_id)) == made


def ended(store: Store, job_id: str) -> int:
    """Attempts that are over."""
    return sum(attempt.ended_at is not None for attempt in store.attempts(job_id))


def kill_between_calls(store: Store, job_id: str, llm: FakeLLM, asking: str, after: int) -> None:
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
    made = len(store.attempts(job_id))
    store.make_due(job_id)
    wait_until(are_others_held, f"calls of {asking}", 60)
    wait_until(lambda: paid(store, job_id) == llm.finished.total(), "calls to be kept")
    kill(store, job_id)
    await_end(store, job_id, made + 1)
    wait_until(lambda: llm.under_way == 0, "end of the calls")
    llm.answer, llm.always = good, None


def paid(store: Store, job_id: str) -> int:
    """Calls that the job has counted as its own."""
    return sum(usage.calls for usage in store.usage(job_id))


def analysed_anew(service: Service, store: Store, payload: dict[str, Any]) -> dict[str, Any]:
    """The result of a job that nobody disturbs and that finds no answer kept."""
    store.forget_calls()
    job_id = service.enqueue(payload, "thematic")
    assert service.wait_for_end(job_id, 120)["status"] == "completed"
    result: dict[str, Any] = service.result(job_id)
    return result


def without_usage(result: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in result.items() if name != "usage"}


# Every kind of write is tried on each store below; the stages differ by their pipeline alone.
@pytest.mark.one_store
def test_a_job_killed_inside_every_stage_pays_for_no_call_twice_and_ends_as_if_undisturbed(
    start: Start, store: Store, gate: Gate, llm: FakeLLM
) -> None:
    places = [(place, at) for at in KEPT_STAGES for place in ("job_events", "job_checkpoints")]
    # A stage's milestone comes after the commit of the checkpoint before it.
    places += [("job_events", LAST_STAGE), ("job_results", "result")]
    job_id = new_job(store, FULL, max_attempts=len(places) + 1)
    with start(database_url=gate.url, llm_base_url=llm.url, llm_model="fake") as service:
        calls: dict[str, int] = {}
        for place, at in places:
            before = llm.finished.total()
            kill_at(store, gate, job_id, place, at)
            if place == "job_checkpoints":
                calls[at] = llm.finished.total() - before
        assert all(calls[at] > 0 for at in LLM_STAGES), calls
        is_as_if_undisturbed(service, store, llm, job_id, FULL)
    outcomes = [attempt.outcome for attempt in store.attempts(job_id)]
    assert outcomes == ["failed"] * len(places) + ["completed"]


def test_a_job_killed_where_stances_are_asked_for_and_at_its_end_pays_for_no_call_twice(
    start: Start, store: Store, gate: Gate, llm: FakeLLM
) -> None:
    job_id = new_job(store, NAME, max_attempts=5)
    with start(database_url=gate.url, llm_base_url=llm.url, llm_model="fake") as service:
        kill_at(store, gate, job_id, "job_events", "stance")
        before = llm.finished.total()
        kill_between_calls(store, job_id, llm, "stance", after=2)
        kill_at(store, gate, job_id, "job_checkpoints", "stance")
        assert llm.finished.total() > before + 2
        kill_at(store, gate, job_id, "job_results", "result")
        is_as_if_undisturbed(service, store, llm, job_id, NAME)


@pytest.mark.one_store
@pytest.mark.parametrize(("asking", "after"), [("name", 1), ("assign", 1), ("assign", 22)])
def test_a_job_killed_between_the_calls_of_a_stage_pays_for_none_twice(
    start: Start, store: Store, llm: FakeLLM, asking: str, after: int
) -> None:
    job_id = new_job(store, FULL, max_attempts=2)
    with start(llm_base_url=llm.url, llm_model="fake") as service:
        kill_between_calls(store, job_id, llm, asking, after)
        is_as_if_undisturbed(service, store, llm, job_id, FULL)


def is_as_if_undisturbed(
    service: Service, store: Store, llm: FakeLLM, job_id: str, payload: dict[str, Any]
) -> None:
    """Let the job end; it has paid for each call once, and its result is an undisturbed one's."""
    store.make_due(job_id)
    assert service.wait_for_end(job_id, 120)["status"] == "completed"
    assert llm.repeated == []
    assert paid(store, job_id) == llm.finished.total()
    result = service.result(job_id)
    assert result["usage"]["llm_calls"] == llm.finished.total()
    assert without_usage(result) == without_usage(analysed_anew(service, store, payload))
