"""What one part does, however badly, the others do not feel."""

import os
import sys
from pathlib import Path

import pytest
from support.service import ROOT, Service, running_command, wait_until
from system.conftest import SETTINGS, Start
from system.stores import Store

WEB_STACK = {"fastapi", "starlette", "uvicorn", "pydantic", "sqlalchemy", "alembic", "click"}
WEB_STACK |= {"python_multipart", "jinja2", "xlsxwriter"}


def _wait_for_heartbeats(store: Store, service: Service, count: int = 3) -> None:
    heard = store.heartbeats_of(service.pid)
    wait_until(lambda: heard() >= count, "heartbeats")


@pytest.mark.one_store
@pytest.mark.parametrize("method", ["_listen_once", "_watch_once", "_renew_once"])
def test_a_loop_that_hangs_stops_no_other(store: Store, tmp_path: Path, method: str) -> None:
    command = [sys.executable, "-m", "support.hanging", method, "serve", "--port", "0"]
    settings = {**SETTINGS, "node_lease_seconds": 15 if method == "_renew_once" else 2}
    with running_command(
        command, store.url, tmp_path / "log", r"ready at (\S+)", **settings
    ) as service:
        assert service.client.get("/readyz").status_code == 200
        job_id = service.enqueue({}, "demo-echo")
        overdue = service.enqueue({}, "clinging", timeout_seconds=0.5)
        if method == "_listen_once":
            # Nobody claims here, but the node looks after the jobs of one that is gone.
            [lost] = store.insert_lost_jobs("demo-echo")
            wait_until(lambda: store.attempts(lost)[0].ended_at, "rescue")
            assert service.job(job_id)["status"] == "pending"
        else:
            assert service.wait_for_end(job_id)["status"] == "completed"
            assert service.wait_for_end(overdue)["error"]["cause"] == "timed_out"
        if method != "_renew_once":
            _wait_for_heartbeats(store, service)
        assert service.stop() == 0


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


@pytest.mark.one_store
def test_a_job_that_blocks_its_event_loop_disturbs_no_heartbeat(start: Start, store: Store) -> None:
    with start(node_lease_seconds=2) as service:
        job_id = service.enqueue({"seconds": 2.5}, "blocked")
        service.wait_for_stage(job_id, "blocked")
        _wait_for_heartbeats(store, service)
        assert service.wait_for_end(job_id)["status"] == "completed"
        assert [a.outcome for a in store.attempts(job_id)] == ["completed"]
        assert len(store.nodes()) == 1


@pytest.mark.one_store
def test_a_script_without_a_main_guard_works(
    store: Store, tmp_path: Path, start_method: str
) -> None:
    command = [sys.executable, str(ROOT / "tests" / "support" / "unguarded.py")]
    log = tmp_path / "log"
    settings = {**SETTINGS, "start_method": start_method}
    with running_command(
        command, store.url, log, r"running on (http://\S+)", **settings
    ) as service:
        for _ in range(2):
            assert service.wait_for_end(service.enqueue({}, "demo-echo"))["status"] == "completed"
        service.stop()
    # Workers import the main module again unless it is kept from them.
    assert log.read_text().count("script begins") == 1
