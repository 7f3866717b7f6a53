"""Statements that the server has done and whose answers never came: each effect exists once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.proxy import Proxy, proxied_beside
from support.service import Service, wait_until
from support.sql import attempts, job_row, rows, value
from system.conftest import Start
from system.stores import SQL

pytestmark = pytest.mark.needs(SQL)

INSERT = b"insert into haulage.jobs ("
CLAIM = b"-- a node that rescue already looks past."
FINISH = b"set status = case when $3"
MILESTONE = b"milestone as ("
LOGS = b"insert into haulage.job_logs"
CALL = b"insert into haulage.call_cache"
CACHED = b"insert into haulage.usage as u"
RENEW = b"update haulage.nodes\nset heartbeat_at"


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    with proxied_beside(database_url) as proxy:
        yield proxy


@pytest.fixture
def service(start: Start, proxy: Proxy) -> Iterator[Service]:
    """A service that reaches its database by way of the proxy, and has run a job."""
    with start(database_url=proxy.url) as service:
        # From here on every statement is prepared: one message, one answer.
        assert service.wait_for_end(service.enqueue({}, "demo-echo"))["status"] == "completed"
        yield service


def lose_answer(proxy: Proxy, statement: bytes) -> None:
    proxy.unanswered.append(statement)


def wait_until_lost(proxy: Proxy) -> None:
    wait_until(lambda: not proxy.unanswered, "the answer that gets lost")


def test_a_job_exists_once_when_the_answer_to_its_insert_was_lost(
    service: Service, proxy: Proxy, database_url: str
) -> None:
    lose_answer(proxy, INSERT)

    job_id = service.enqueue({"n": 1}, "demo-echo")

    wait_until_lost(proxy)
    assert service.wait_for_end(job_id)["status"] == "completed"
    assert value(database_url, "select count(*) from haulage.jobs") == 2
    assert [a["outcome"] for a in attempts(database_url, job_id)] == ["completed"]


def test_a_job_comes_back_at_no_cost_when_the_answer_to_its_claim_was_lost(
    service: Service, proxy: Proxy, database_url: str
) -> None:
    lose_answer(proxy, CLAIM)
    job_id = service.enqueue({"n": 1}, "demo-echo")
    wait_until_lost(proxy)

    assert service.wait_for_end(job_id)["status"] == "completed"

    assert service.result(job_id) == {"echo": {"n": 1}, "attempt": 1}
    *before, last = [(a["outcome"], a["cause"]) for a in attempts(database_url, job_id)]
    assert last == ("completed", None)
    # The claim may have found nothing yet: then there was nothing to give back.
    assert before in ([], [("released", "start_failed")])
    row = job_row(database_url, job_id)
    assert (row["attempt"], row["node_losses"]) == (1, 0)


def test_a_result_is_stored_once_when_the_answer_to_the_worker_s_end_was_lost(
    service: Service, proxy: Proxy, database_url: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job_id = service.enqueue({"gate": str(gate)}, "gate")
    service.wait_for_stage(job_id, "waiting")
    lose_answer(proxy, FINISH)
    gate.touch()
    wait_until_lost(proxy)

    assert service.wait_for_end(job_id)["status"] == "completed"

    assert service.result(job_id) == {"attempt": 1}
    [attempt] = attempts(database_url, job_id)
    assert (attempt["outcome"], attempt["attempt"]) == ("completed", 1)
    row = job_row(database_url, job_id)
    assert (row["attempt"], row["node_losses"], row["claim_no"]) == (1, 0, 1)


def test_milestones_and_log_lines_exist_once_when_the_answers_to_their_writes_were_lost(
    service: Service, proxy: Proxy, database_url: str
) -> None:
    lose_answer(proxy, MILESTONE)
    lose_answer(proxy, LOGS)

    job_id = service.enqueue({"seconds": 1.5, "steps": 3}, "telling")

    wait_until_lost(proxy)
    assert service.wait_for_end(job_id)["status"] == "completed"
    told = rows(database_url, "select stage from haulage.job_events where kind = 'milestone'")
    assert [row["stage"] for row in told] == ["step 1", "step 2", "step 3"]
    lines = rows(
        database_url,
        "select line, line_no from haulage.job_logs where source = 'stdout' order by id",
    )
    assert [line["line"] for line in lines] == ["step 1", "step 2", "step 3"]
    assert [line["line_no"] for line in lines] == sorted({line["line_no"] for line in lines})


def test_a_paid_call_is_kept_and_counted_once_when_the_answers_to_its_writes_were_lost(
    service: Service, proxy: Proxy, database_url: str
) -> None:
    lose_answer(proxy, CALL)
    first = service.enqueue({"calls": ["a", "b"]}, "paying")
    wait_until_lost(proxy)
    assert service.wait_for_end(first)["status"] == "completed"
    lose_answer(proxy, CACHED)
    second = service.enqueue({"calls": ["a", "b", "c"]}, "paying")
    wait_until_lost(proxy)
    assert service.wait_for_end(second)["status"] == "completed"

    assert (service.result(first), service.result(second)) == (2, 1)
    kept = rows(database_url, "select answer::text as answer from haulage.call_cache order by 1")
    assert [row["answer"] for row in kept] == ['"A"', '"B"', '"C"']
    usage = rows(
        database_url,
        "select job_id::text as job, calls, cached_calls, prompt_tokens from haulage.usage"
        " order by id",
    )
    assert sorted((row["job"], *list(row.values())[1:]) for row in usage) == sorted(
        [(first, 1, 0, 5), (first, 1, 0, 5), (second, 0, 2, 0), (second, 1, 0, 5)]
    )


def test_a_node_keeps_its_identity_and_its_jobs_when_the_answer_to_a_renewal_was_lost(
    start: Start, proxy: Proxy, database_url: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    lease = {"node_lease_seconds": 4, "heartbeat_interval_seconds": 0.5}
    with start(database_url=proxy.url, **lease) as service:
        job_id = service.enqueue({"gate": str(gate)}, "gate")
        service.wait_for_stage(job_id, "waiting")
        for _ in range(3):
            lose_answer(proxy, RENEW)
            wait_until_lost(proxy)
        gate.touch()
        assert service.wait_for_end(job_id)["status"] == "completed"
    assert [a["outcome"] for a in attempts(database_url, job_id)] == ["completed"]
    assert value(database_url, "select count(*) from haulage.nodes") == 1
