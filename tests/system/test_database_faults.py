"""A database that misbehaves under load: the service goes on by itself and no job pays for it."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.cluster import crash, demoted, frozen_server, stop_fast
from support.outage import (
    assert_everything_done_once,
    assert_readable,
    is_ready,
    no_idle_transaction,
    observed,
    wait_for_acceptance,
    wait_for_refusals,
)
from support.pipelines import PIPELINES
from support.processes import frozen
from support.service import Service, process_exists, running, wait_until
from support.sql import attempts, holding, job_row, our_pids, rows, value
from system.conftest import SETTINGS

from app.db.postgres.embedded import EmbeddedPostgres
from app.db.urls import DatabaseURL

SHORT_LEASE: dict[str, Any] = {"node_lease_seconds": 2, "heartbeat_interval_seconds": 0.4}
TERMINATE_OURS = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where datname = current_database() and application_name like 'haulage%'"
)

# The bundled server restarts under whatever else the machine does.
pytestmark = pytest.mark.timeout(120)

IN_TRANSACTION = """
select count(*) from pg_stat_activity where pid = any ($1) and xact_start is not null
"""

Fault = Callable[[EmbeddedPostgres, str], AbstractContextManager[None]]


@pytest.fixture
def url(cluster: EmbeddedPostgres) -> str:
    """A database of this test's own in the cluster that suffers."""
    name = f"test_{uuid.uuid4().hex}"
    cluster.ensure_database(name)
    return cluster.url(name)


@contextmanager
def restarted_fast(server: EmbeddedPostgres, _url: str) -> Iterator[None]:
    stop_fast(server)
    try:
        yield
    finally:
        server.start()


@contextmanager
def restarted_at_once(server: EmbeddedPostgres, _url: str) -> Iterator[None]:
    crash(server)
    try:
        yield
    finally:
        server.start()


@contextmanager
def made_a_standby(server: EmbeddedPostgres, _url: str) -> Iterator[None]:
    with demoted(server):
        yield


@contextmanager
def sessions_terminated(_server: EmbeddedPostgres, url: str) -> Iterator[None]:
    for _ in range(10):
        rows(url, TERMINATE_OURS)
    yield


@contextmanager
def service_frozen(_server: EmbeddedPostgres, url: str) -> Iterator[None]:
    """Every session but those of the workers: each of these has a slot, and patience.

    None of them in the middle of a transaction: what one holds then is locked for everybody, which
    is another fault.
    """
    while True:
        pids = our_pids(url, "haulage", "haulage-listener")
        with _frozen(pids):
            if not value(url, IN_TRANSACTION, pids):
                yield
                return


@contextmanager
def all_frozen(_server: EmbeddedPostgres, url: str) -> Iterator[None]:
    with _frozen(our_pids(url, "haulage", "haulage-listener", "haulage-worker")):
        yield


@contextmanager
def _frozen(pids: list[int]) -> Iterator[None]:
    with ExitStack() as thawing:
        for pid in pids:
            # A worker's session may have ended since, or may end once it is thawed.
            with suppress(ProcessLookupError):
                thawing.enter_context(frozen(pid))
        yield


@contextmanager
def no_new_sessions(server: EmbeddedPostgres, _url: str) -> Iterator[None]:
    with frozen_server(server):
        yield


@contextmanager
def jobs_locked(_server: EmbeddedPostgres, url: str) -> Iterator[None]:
    with holding(url, "lock table haulage.jobs in access exclusive mode"):
        yield


@contextmanager
def nodes_locked(_server: EmbeddedPostgres, url: str) -> Iterator[None]:
    with holding(url, "lock table haulage.nodes in access exclusive mode"):
        yield


@contextmanager
def commits_waiting(_server: EmbeddedPostgres, url: str) -> Iterator[None]:
    """Each commit waits for a standby that there is not: done, but not answered."""
    rows(url, "alter system set synchronous_standby_names = 'nobody'")
    rows(url, "select pg_reload_conf()")
    try:
        yield
    finally:
        rows(url, "alter system reset synchronous_standby_names")
        rows(url, "select pg_reload_conf()")


@dataclass(frozen=True)
class Kind:
    """A fault and what clients are to see while it lasts.

    Attributes:
        is_away: nothing can be read, so that /readyz says no.
        is_refusing: submissions are refused.
        is_passing: the service gets over it while it still lasts.
    """

    fault: Fault
    is_away: bool = False
    is_refusing: bool = False
    is_passing: bool = False


KINDS = {
    "restarted fast": Kind(restarted_fast, is_away=True, is_refusing=True),
    "restarted at once": Kind(restarted_at_once, is_away=True, is_refusing=True),
    "made a standby": Kind(made_a_standby, is_away=True, is_refusing=True),
    "sessions terminated": Kind(sessions_terminated, is_passing=True),
    "service's sessions frozen": Kind(service_frozen, is_passing=True),
    "all sessions frozen": Kind(all_frozen, is_refusing=True),
    "no new sessions": Kind(no_new_sessions),
    "jobs locked": Kind(jobs_locked, is_refusing=True),
    "nodes locked": Kind(nodes_locked),
    "commits waiting": Kind(commits_waiting, is_refusing=True),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_work_goes_on_by_itself_when_the_database_was(
    cluster: EmbeddedPostgres, url: str, tmp_path: Path, kind: Kind
) -> None:
    with serving(url, tmp_path) as service:
        with no_idle_transaction(url), observed(service) as seen:
            wait_for_acceptance(seen)
            began = time.monotonic()
            with kind.fault(cluster, url):
                if kind.is_away:
                    wait_until(lambda: not is_ready(service), "word that traffic may not come here")
                if kind.is_refusing:
                    wait_for_refusals(seen, 2 if kind.is_away else 1)
                if kind.is_passing:
                    wait_for_acceptance(seen)
                    newest = list(seen.accepted)[-1]
                    assert service.wait_for_end(newest)["status"] == "completed"
            lasted = time.monotonic() - began
            wait_for_acceptance(seen)
            wait_until(lambda: is_ready(service), "word that traffic may come here")
        assert_everything_done_once(url, seen, others=frozenset({"released"}))
    assert_readable(service.log.read_text(), lasted, DatabaseURL.parse(url).password or "")


@pytest.mark.parametrize(
    ("kind", "nodes"), [("restarted at once", 1), ("restarted at once", 2), ("made a standby", 1)]
)
def test_a_result_is_stored_when_the_database_was_away_for_longer_than_the_lease_and(
    cluster: EmbeddedPostgres, url: str, tmp_path: Path, kind: str, nodes: int
) -> None:
    gate, others_gate = tmp_path / "gate", tmp_path / "others-gate"
    second = serving(url, tmp_path, "worker", **SHORT_LEASE) if nodes > 1 else nullcontext()
    with serving(url, tmp_path, **SHORT_LEASE) as service, second:
        done = service.enqueue({"gate": str(gate)}, "gate")
        pid = service.wait_for_stage(done, "waiting")["pid"]
        other = service.enqueue({"gate": str(others_gate)}, "gate")
        others_pid = service.wait_for_stage(other, "waiting")["pid"]
        with KINDS[kind].fault(cluster, url):
            gate.touch()
            wait_until(lambda: not process_exists(others_pid), "end of the unfinished worker")
            assert process_exists(pid)
        others_gate.touch()
        assert service.wait_for_end(done)["status"] == "completed"
        assert service.wait_for_end(other)["status"] == "completed"
    assert [(a["outcome"], a["pid"]) for a in attempts(url, done)] == [("completed", pid)]
    assert job_row(url, done)["node_losses"] == 0
    # The unfinished one was lost by its node, and that is counted apart.
    assert [(a["outcome"], a["attempt"]) for a in attempts(url, other)] == [
        ("lost", 1),
        ("completed", 1),
    ]
    assert (job_row(url, other)["attempt"], job_row(url, other)["node_losses"]) == (1, 1)


def serving(
    url: str, folder: Path, role: str = "serve", **settings: Any
) -> AbstractContextManager[Service]:
    chosen = {**SETTINGS, "auto_migrate": True, "pipelines": dict(PIPELINES), **settings}
    return running(role, url, folder / f"log-{role}", **chosen)
