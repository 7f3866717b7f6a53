"""What one part does, however badly, the others do not feel."""

import os
import sys
from pathlib import Path

import pytest
from support.service import ROOT, Service, running_command, wait_until
from support.sql import attempts, insert_job, rows, value
from system.conftest import SETTINGS, Start
from system.stores import SQL

pytestmark = pytest.mark.needs(SQL)

HEARTBEAT = "select max(heartbeat_at) from haulage.nodes where pid = $1"
WEB_STACK = {"fastapi", "starlette", "uvicorn", "pydantic", "sqlalchemy", "alembic", "click"}
WEB_STACK |= {"python_multipart", "jinja2", "xlsxwriter"}


def _wait_for_heartbeats(url: str, service: Service, count: int = 3) -> None:
    seen = set()

    def heard() -> bool:
        seen.add(value(url, HEARTBEAT, service.pid))
        return len(seen) > count

    wait_until(heard, "heartbeats")


@pytest.mark.parametrize("method", ["_listen_once", "_watch_once", "_renew_once"])
def test_a_loop_that_hangs_stops_no_other(database_url: str, tmp_path: Path, method: str) -> None:
    command = [sys.executable, "-m", "support.hanging", method, "serve", "--port", "0"]
    settings = {**SETTINGS, "node_lease_seconds": 15 if method == "_renew_once" else 2}
    with running_command(
        command, database_url, tmp_path / "log", r"ready at (\S+)", **settings
    ) as service:
        assert service.client.get("/readyz").status_code == 200
        job_id = service.enqueue({}, "demo-echo")
        overdue = service.enqueue({}, "clinging", timeout_seconds=0.5)
        if method == "_listen_once":
            # Nobody claims here, but the node looks after the jobs of one that is gone.
            lost = _insert_lost_job(database_url)
            wait_until(lambda: attempts(database_url, lost)[0]["ended_at"], "rescue")
            assert service.job(job_id)["status"] == "pending"
        else:
            assert service.wait_for_end(job_id)["status"] == "completed"
            assert service.wait_for_end(overdue)["error"]["cause"] == "timed_out"
        if method != "_renew_once":
            _wait_for_heartbeats(database_url, service)
        assert service.stop() == 0


def _insert_lost_job(url: str) -> str:
    """A running job whose node was never heard of."""
    [job_id] = insert_job(url, "demo-echo", notify=False)
    rows(
        url,
        "with job as (update haulage.jobs set status = 'running', attempt = 1, claim_no = 1,"
        "  node_id = gen_random_uuid(), started_at = now() where id = $1::text::uuid returning *)"
        " insert into haulage.job_attempts (job_id, claim_no, attempt, node_id)"
        " select id, 1, 1, node_id from job",
        job_id,
    )
    return job_id


def test_a_worker_has_nothing_of_the_web_and_leads_a_group_of_its_own(service: Service) -> None:
    job_id = service.enqueue({}, "modules")
    assert service.wait_for_end(job_id)["status"] == "completed"
    found = service.result(job_id)
    assert WEB_STACK & {name.partition(".")[0] for name in found["modules"]} == set()
    assert not {"app.main", "app.config", "app.db.schema"} & set(found["modules"])
    assert found["is_group_leader"] is True
    # Jobs that burn every core must not keep clients waiting.
    assert found["niceness"] > os.getpriority(os.PRIO_PROCESS, service.pid)
    # A daemonic process may have no children of its own, so pools in pipelines would fail.
    assert found["is_daemonic"] is False


def test_a_job_that_blocks_its_event_loop_disturbs_no_heartbeat(
    start: Start, database_url: str
) -> None:
    with start(node_lease_seconds=2) as service:
        job_id = service.enqueue({"seconds": 2.5}, "blocked")
        service.wait_for_stage(job_id, "blocked")
        _wait_for_heartbeats(database_url, service)
        assert service.wait_for_end(job_id)["status"] == "completed"
        assert [a["outcome"] for a in attempts(database_url, job_id)] == ["completed"]
        assert value(database_url, "select count(*) from haulage.nodes") == 1


def test_a_script_without_a_main_guard_works(
    database_url: str, tmp_path: Path, start_method: str
) -> None:
    command = [sys.executable, str(ROOT / "tests" / "support" / "unguarded.py")]
    log = tmp_path / "log"
    settings = {**SETTINGS, "start_method": start_method}
    with running_command(
        command, database_url, log, r"running on (http://\S+)", **settings
    ) as service:
        for _ in range(2):
            assert service.wait_for_end(service.enqueue({}, "demo-echo"))["status"] == "completed"
        service.stop()
    # Workers import the main module again unless it is kept from them.
    assert log.read_text().count("script begins") == 1
