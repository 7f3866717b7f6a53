"""What the server has done and nobody was told of: each effect exists once, or none."""

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from signal import SIGKILL

import pytest
from support.proxy import Proxy, proxied_beside
from support.service import Service, wait_until
from system.conftest import Start
from system.stores import Store

from app.domain.following import MILESTONE_KIND

# Parts of the statements or commands by the store's name. On MongoDB it is the answer to the commit
# that gets lost where there is a transaction: everything is done by then.
COMMIT = b"commitTransaction"
Parts = dict[str, tuple[bytes, ...]]
INSERT: Parts = {
    "postgres": (b"insert into haulage.jobs (",),
    "mongo": (COMMIT, b"job_payloads\0"),
}
CLAIM: Parts = {
    "postgres": (b"-- a node that rescue already looks past.",),
    "mongo": (b"update\0", b"\x02token\0"),
}
FINISH: Parts = {
    "postgres": (b"set status = case when $3",),
    "mongo": (COMMIT, b"latest.ended_at\0"),
}
MILESTONE: Parts = {
    "postgres": (b"milestone as (",),
    "mongo": (b"findAndModify\0", b"milestone\0"),
}
LOGS: Parts = {
    "postgres": (b"insert into haulage.job_logs",),
    "mongo": (COMMIT, b"job_logs\0"),
}
CALL: Parts = {
    "postgres": (b"insert into haulage.call_cache",),
    "mongo": (COMMIT, b"call_cache\0"),
}
CACHED: Parts = {
    "postgres": (b"insert into haulage.usage as u",),
    "mongo": (COMMIT, b"usage\0", b"$max\0"),
}
CHECKPOINT: Parts = {
    "postgres": (b"insert into haulage.job_checkpoints",),
    "mongo": (COMMIT, b"job_checkpoints\0"),
}
RENEW: Parts = {
    "postgres": (b"update haulage.nodes\nset heartbeat_at",),
    "mongo": (b"update\0", b"nodes\0", b"heartbeat_at\0"),
}


@pytest.fixture
def proxy(store: Store) -> Iterator[Proxy]:
    with proxied_beside(store.url) as proxy:
        yield proxy


@pytest.fixture
def service(start: Start, proxy: Proxy) -> Iterator[Service]:
    """A service that reaches its database by way of the proxy, and has run a job."""
    with start(database_url=proxy.url) as service:
        # From here on every statement is prepared: one message, one answer.
        assert service.wait_for_end(service.enqueue({}, "demo-echo"))["status"] == "completed"
        yield service


def lose_answer(proxy: Proxy, store: Store, what: Parts) -> None:
    proxy.unanswered.append(what[store.name])


def wait_until_lost(proxy: Proxy) -> None:
    wait_until(lambda: not proxy.unanswered, "the answer that gets lost")


def test_a_job_exists_once_when_the_answer_to_its_insert_was_lost(
    service: Service, proxy: Proxy, store: Store
) -> None:
    lose_answer(proxy, store, INSERT)

    job_id = service.enqueue({"n": 1}, "demo-echo")

    wait_until_lost(proxy)
    assert service.wait_for_end(job_id)["status"] == "completed"
    assert store.count_jobs() == 2
    assert [a.outcome for a in store.attempts(job_id)] == ["completed"]


def test_a_job_comes_back_at_no_cost_when_the_answer_to_its_claim_was_lost(
    service: Service, proxy: Proxy, store: Store
) -> None:
    lose_answer(proxy, store, CLAIM)
    job_id = service.enqueue({"n": 1}, "demo-echo")
    wait_until_lost(proxy)

    assert service.wait_for_end(job_id)["status"] == "completed"

    assert service.result(job_id) == {"echo": {"n": 1}, "attempt": 1}
    *before, last = [(a.outcome, a.cause) for a in store.attempts(job_id)]
    assert last == ("completed", None)
    # The claim may have found nothing yet: then there was nothing to give back.
    assert before in ([], [("released", "start_failed")])
    row = store.job(job_id)
    assert (row.attempt, row.node_losses) == (1, 0)


def test_a_result_is_stored_once_when_the_answer_to_the_worker_s_end_was_lost(
    service: Service, proxy: Proxy, store: Store, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job_id = service.enqueue({"gate": str(gate)}, "gate")
    service.wait_for_stage(job_id, "waiting")
    lose_answer(proxy, store, FINISH)
    gate.touch()
    wait_until_lost(proxy)

    assert service.wait_for_end(job_id)["status"] == "completed"

    assert service.result(job_id) == {"attempt": 1}
    [attempt] = store.attempts(job_id)
    assert (attempt.outcome, attempt.attempt) == ("completed", 1)
    row = store.job(job_id)
    assert (row.attempt, row.node_losses, row.claim_no) == (1, 0, 1)


def test_milestones_and_log_lines_exist_once_when_the_answers_to_their_writes_were_lost(
    service: Service, proxy: Proxy, store: Store
) -> None:
    lose_answer(proxy, store, MILESTONE)
    lose_answer(proxy, store, LOGS)

    job_id = service.enqueue({"seconds": 1.5, "steps": 3}, "telling")

    wait_until_lost(proxy)
    assert service.wait_for_end(job_id)["status"] == "completed"
    told = [event.stage for event in store.events(job_id) if event.kind == MILESTONE_KIND]
    assert told == ["step 1", "step 2", "step 3"]
    lines = [line for line in store.log(job_id) if line.source == "stdout"]
    assert [line.text for line in lines] == ["step 1", "step 2", "step 3"]
    assert [line.number for line in lines] == sorted({line.number for line in lines})


def test_a_paid_call_is_kept_and_counted_once_when_the_answers_to_its_writes_were_lost(
    service: Service, proxy: Proxy, store: Store
) -> None:
    lose_answer(proxy, store, CALL)
    first = service.enqueue({"calls": ["a", "b"]}, "paying")
    wait_until_lost(proxy)
    assert service.wait_for_end(first)["status"] == "completed"
    lose_answer(proxy, store, CACHED)
    second = service.enqueue({"calls": ["a", "b", "c"]}, "paying")
    wait_until_lost(proxy)
    assert service.wait_for_end(second)["status"] == "completed"

    assert (service.result(first), service.result(second)) == (2, 1)
    assert store.count_all("call_cache") == 3
    assert [store.call(sha256(text).hexdigest()) for text in (b"a", b"b", b"c")] == [
        *('"A"', '"B"', '"C"')
    ]
    [usage] = store.usage(first)
    assert (usage.calls, usage.cached_calls, usage.prompt_tokens) == (2, 0, 10)
    [usage] = store.usage(second)
    assert (usage.calls, usage.cached_calls, usage.prompt_tokens) == (1, 2, 5)


def test_a_job_ends_at_once_when_its_worker_was_killed_in_the_middle_of_a_write(
    service: Service, proxy: Proxy, store: Store
) -> None:
    proxy.held_back = CHECKPOINT[store.name]
    job_id = service.enqueue({}, "checkpoint")
    wait_until(lambda: proxy.is_holding, "the write")
    os.kill(service.job(job_id)["pid"], SIGKILL)
    proxy.held_back = None

    # On MongoDB the server would keep its transaction open for a minute.
    assert service.wait_for_end(job_id, 10)["status"] == "failed"

    assert store.ends(job_id) == [("failed", "signal")]
    assert store.count_all("job_checkpoints") == 0


def test_a_node_keeps_its_identity_and_its_jobs_when_the_answer_to_a_renewal_was_lost(
    start: Start, proxy: Proxy, store: Store, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    lease = {"node_lease_seconds": 4, "heartbeat_interval_seconds": 0.5}
    with start(database_url=proxy.url, **lease) as service:
        job_id = service.enqueue({"gate": str(gate)}, "gate")
        service.wait_for_stage(job_id, "waiting")
        for _ in range(3):
            lose_answer(proxy, store, RENEW)
            wait_until_lost(proxy)
        gate.touch()
        assert service.wait_for_end(job_id)["status"] == "completed"
    assert [a.outcome for a in store.attempts(job_id)] == ["completed"]
    assert len(store.nodes()) == 1
