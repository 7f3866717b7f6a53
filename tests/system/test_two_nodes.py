"""Several processes on one database: each job goes to one of them, to one that can run it."""

import json
from pathlib import Path

import pytest
from support.processes import descendants
from support.service import wait_until
from support.sql import attempts, insert_job, job_row, rows, value
from system.conftest import Start
from system.stores import SQL

pytestmark = pytest.mark.needs(SQL)

UNFINISHED = "select count(*) from haulage.jobs where status in ('pending', 'running')"


def test_two_nodes_share_two_hundred_jobs_and_run_each_once(
    start: Start, database_url: str
) -> None:
    with start("worker") as first, start("worker") as second:
        insert_job(database_url, "demo-echo", count=200)
        wait_until(lambda: value(database_url, UNFINISHED) == 0, "end of the jobs", 40)
        assert (first.stop(), second.stop()) == (0, 0)
    runs = rows(
        database_url,
        "select n.pid, count(*), count(distinct job_id), array_agg(distinct outcome) as outcomes,"
        " max(claim_no) from haulage.job_attempts a join haulage.nodes n on n.id = a.node_id"
        " group by n.pid",
    )
    assert {row["pid"] for row in runs} == {first.pid, second.pid}
    assert sum(row["count"] for row in runs) == 200
    assert all(row["outcomes"] == ["completed"] and row["max"] == 1 for row in runs)


def test_api_and_worker_work_together_as_processes_of_their_own(start: Start) -> None:
    with start("api") as api, start("worker") as worker:
        job_id = api.enqueue({"a": 1}, "demo-echo")
        job = api.wait_for_end(job_id)
        assert job["status"] == "completed"
        assert api.result(job_id)["echo"] == {"a": 1}
        assert descendants(api.pid) == set()
        assert (api.stop(), worker.stop()) == (0, 0)


def test_a_node_leaves_alone_what_it_cannot_run(
    start: Start, database_url: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with start("worker", pipelines={}):
        [unknown] = insert_job(database_url, "gate", json.dumps({"gate": str(gate)}))
        [known] = insert_job(database_url, "demo-echo")
        wait_until(lambda: job_row(database_url, known)["status"] == "completed", "known job")
        assert not attempts(database_url, unknown)
        with start("worker"):
            wait_until(lambda: attempts(database_url, unknown), "claim by the other node")
            gate.touch()
            wait_until(lambda: job_row(database_url, unknown)["status"] == "completed", "its end")
