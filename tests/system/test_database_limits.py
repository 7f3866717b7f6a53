"""A database that has no room left: no connections, no disk; and clients who leave early."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from support.cluster import durable_cluster, full, small_disk
from support.outage import (
    assert_everything_done_once,
    assert_readable,
    is_ready,
    no_idle_transaction,
    observed,
    wait_for_acceptance,
    wait_for_refusals,
)
from support.service import running, wait_until
from support.sql import insert_job, kept_session, our_connections, rows
from system.conftest import SETTINGS, Start
from system.stores import SQL

from app.db.postgres.embedded import EmbeddedPostgres
from app.db.urls import DatabaseURL

# The bundled server restarts under whatever else the machine does.
pytestmark = [pytest.mark.timeout(120), pytest.mark.needs(SQL)]

OWN: dict[str, Any] = {**SETTINGS, "auto_migrate": True}
FEW_CONNECTIONS = 20
JOBS = 100
DISK_MEGABYTES = 192
# Much more than what a table has left on its last page.
PADDING = 20_000
CUT_REQUESTS = 500
COUNTED = (
    "select status, attempt, node_losses, count(*) from haulage.jobs"
    " where pipeline = 'demo-sleep' group by 1, 2, 3"
)
WAITING_WORKERS = (
    "select count(*) from haulage.job_attempts"
    " where pid is null and ended_at is null and started_at < now() - interval '1 s'"
)
UNFINISHED = "select count(*) from haulage.jobs where status in ('pending', 'running')"


# -- connections ------------------------------------------------------------------------------


def test_workers_wait_and_no_job_pays_when_the_server_has_no_connection_left(
    tmp_path: Path,
) -> None:
    settings = {**OWN, "max_concurrent_jobs": 20}
    logs = [tmp_path / "log-1", tmp_path / "log-2"]
    with durable_cluster(max_connections=FEW_CONNECTIONS) as server:
        rows(server.url("postgres"), "create role ours login password 'of-ours'")
        rows(server.url("postgres"), "create database few owner ours")
        url = replace(DatabaseURL.parse(server.url("few")), user="ours", password="of-ours")
        began = time.monotonic()
        with (
            running("serve", url.asyncpg_dsn, logs[0], **settings) as service,
            running("worker", url.asyncpg_dsn, logs[1], **settings),
            kept_session(server.url("few")) as fetch,
        ):
            with observed(service, streams=0), ExitStack() as taken:
                # However fast the workers of this machine come and go: there is none left.
                _take_what_is_left(url.asyncpg_dsn, taken)
                insert_job(server.url("few"), "demo-sleep", '{"seconds": 0.3, "steps": 1}', JOBS)
                wait_until(lambda: fetch(WAITING_WORKERS)[0][0], "workers without a connection")
                taken.close()
                body = {"payload": {}, "pipeline": "demo-echo"}
                assert service.client.post("/enqueue", json=body).status_code in (200, 503)
                wait_until(lambda: fetch(UNFINISHED)[0][0] == 0, "end of every job", 50)
            jobs = fetch(COUNTED)
            ends = fetch("select distinct outcome from haulage.job_attempts")
            complaints = fetch("select line from haulage.job_logs where source = 'haulage.worker'")
        lasted = time.monotonic() - began
    assert [tuple(row) for row in jobs] == [("completed", 1, 0, JOBS)]
    assert any("TooManyConnectionsError" in row[0] for row in complaints)
    # A worker that got none in half a minute gives its job back, and nothing is counted.
    assert {row[0] for row in ends} <= {"completed", "released"}
    for log in logs:
        assert_readable(log.read_text(), lasted, "of-ours")
        assert "connections.overcommitted needed=" in log.read_text()


def _take_what_is_left(url: str, taken: ExitStack) -> None:
    with suppress(asyncpg.TooManyConnectionsError):
        while True:
            taken.enter_context(kept_session(url))


# -- disk -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    with small_disk(DISK_MEGABYTES) as folder:
        yield folder


@pytest.fixture(scope="module")
def narrow(disk: Path) -> Iterator[EmbeddedPostgres]:
    """A server on a small disk of its own."""
    with durable_cluster(disk) as server:
        yield server


@pytest.mark.parametrize("is_log_full", [False, True], ids=["tables", "write-ahead log"])
def test_work_goes_on_and_no_job_pays_when_there_was_no_disk_left_for(
    disk: Path, narrow: EmbeddedPostgres, tmp_path: Path, *, is_log_full: bool
) -> None:
    name = f"full_{is_log_full}".lower()
    narrow.ensure_database(name)
    url = narrow.url(name)
    gate = tmp_path / "gate"
    with running("serve", url, tmp_path / "log", **OWN) as service:
        with observed(service, padding=PADDING) as seen:
            wait_for_acceptance(seen)
            waiting = service.enqueue({"gate": str(gate)}, "gate")
            service.wait_for_stage(waiting, "waiting")
            began = time.monotonic()
            with full(disk):
                if is_log_full:
                    _use_up_the_log(url)
                    wait_until(lambda: not narrow.status().is_running, "end of the server")
                    assert not is_ready(service)
                # One that is computed already is stored afterwards.
                gate.touch()
                wait_for_refusals(seen, 5)
            if is_log_full:
                narrow.start()
            wait_for_acceptance(seen)
            lasted = time.monotonic() - began
        assert_everything_done_once(url, seen)
        assert service.wait_for_end(waiting)["status"] == "completed"
        log = service.log.read_text()
    assert_readable(log, lasted, DatabaseURL.parse(url).password or "")
    if not is_log_full:
        # What an operator is to do stands in the same line.
        alert = next(line for line in log.splitlines() if "DiskFullError" in line)
        assert "No space left on device HINT: Check free disk space." in alert


def _use_up_the_log(url: str) -> None:
    """Have the server need another segment of its write-ahead log: without it, it has to end."""
    for _ in range(10):
        try:
            rows(url, "select pg_switch_wal()")
            rows(url, "create table if not exists filler as select 1")
            rows(url, "drop table filler")
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return
    raise AssertionError("the server goes on")


# -- clients ----------------------------------------------------------------------------------


def test_the_pool_is_as_before_when_many_clients_left_without_waiting_for_their_answers(
    start: Start, database_url: str
) -> None:
    with start() as service:
        assert service.url is not None
        with no_idle_transaction(database_url):
            service.enqueue({}, "demo-echo")
            asyncio.run(_cut_many(service.url))
            ids = [service.enqueue({}, "demo-echo") for _ in range(20)]
            assert service.wait_for_end(ids[-1])["status"] == "completed"
        # Eight of the API, eight of the scheduler, three to notify and listen, the lease's own.
        ours = [name for name in our_connections(database_url) if name != "haulage-worker"]
        assert len(ours) <= 20
        assert is_ready(service)


async def _cut_many(url: str) -> None:
    where = urlsplit(url)
    # Not due before the test is over.
    body = json.dumps({"payload": {"cut": True}, "pipeline": "demo-echo", "delay_seconds": 3600})
    request = (
        f"POST /enqueue HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()

    async def cut() -> None:
        _, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(request)
        await writer.drain()
        writer.transport.abort()

    for _ in range(CUT_REQUESTS // 50):
        await asyncio.gather(*(cut() for _ in range(50)))
