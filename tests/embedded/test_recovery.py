"""What killed processes leave behind, and how the next start gets over it."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL

import pytest
from embedded.companion import Companion
from embedded.observing import eventually, fetch, pid_of, processes_of

from app.db.postgres import cluster as cluster_module
from app.db.postgres.account import Account
from app.db.postgres.binaries import find_binaries
from app.db.postgres.embedded import EmbeddedPostgres
from app.domain.errors import EmbeddedDatabaseError

pytestmark = pytest.mark.system


@pytest.fixture
def stranger() -> Iterator[int]:
    """The pid of a living process that has nothing to do with PostgreSQL, of the same account."""
    account = Account.for_server()
    process = subprocess.Popen(["sleep", "300"], user=account.uid)
    yield process.pid
    process.kill()
    process.wait()


@pytest.mark.parametrize("again", ["by a user", "by a newcomer"])
def test_the_server_comes_back_on_its_port_when_the_postmaster_is_killed(
    folder: Path, again: str
) -> None:
    server = EmbeddedPostgres(folder)
    server.start()
    url = server.url("postgres")
    fetch(url, "DROP TABLE IF EXISTS kept", "CREATE TABLE kept AS SELECT 7 AS answer")
    before = pid_of(server)
    # A session that is busy for ever, so that a backend outlives the postmaster for a while.
    command, environment = server.psql_command("postgres", "-c", "SELECT pg_sleep(3600)")
    session = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'"
    eventually(lambda: fetch(url, sleeping))

    os.kill(before, SIGKILL)
    eventually(lambda: not server.status().is_running)
    restarter = server if again == "by a user" else EmbeddedPostgres(folder)
    restarter.start()

    assert pid_of(restarter) != before
    assert restarter.url("postgres") == url
    assert fetch(url, "SELECT answer FROM kept") == 7
    session.wait(20)
    restarter.close()
    server.close()


@pytest.mark.parametrize("victims", ["starter and initdb", "starter alone"])
def test_a_cluster_half_made_is_made_anew_when_its_maker_was_killed(
    empty_folder: Path, victims: str
) -> None:
    def initdb() -> list[int]:
        return [pid for pid in processes_of(empty_folder) if _name(pid) == "initdb"]

    with Companion(empty_folder) as starter:
        starter.tell("start")
        eventually(lambda: list(empty_folder.glob("pg*/data.new/PG_VERSION")))
        starter.kill()
    if victims == "starter and initdb":
        for pid in initdb():
            os.kill(pid, SIGKILL)
    else:
        assert initdb()  # it goes on, and the next start must not get in its way

    with EmbeddedPostgres(empty_folder, durable=False) as server:
        assert fetch(server.url("postgres"), "SELECT 1") == 1
        assert not list(empty_folder.glob("pg*/data.new"))


def test_the_start_succeeds_when_the_old_pid_now_belongs_to_another_program(
    folder: Path, stranger: int
) -> None:
    with EmbeddedPostgres(folder, durable=False) as server:
        file = server.status().data_folder / "postmaster.pid"
        old = pid_of(server)
        content = file.read_text()
    file.write_text(content.replace(str(old), str(stranger), 1))

    with server:
        assert pid_of(server) not in {old, stranger}
    assert Path(f"/proc/{stranger}").exists()


def test_a_server_started_by_hand_is_left_alone(folder: Path) -> None:
    server = EmbeddedPostgres(folder, durable=False)
    data = server.status().data_folder
    account = Account.for_server()
    pg_ctl = find_binaries(account).folder / "pg_ctl"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = f"-c port={port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
    by_hand: list[str | Path] = [pg_ctl, "-D", data, "-o", options, "-l", data / "log", "-w"]
    assert account.run([*by_hand, "start"], timeout_seconds=30).returncode == 0
    try:
        with pytest.raises(EmbeddedDatabaseError, match="was not started by Haulage"):
            server.start()
    finally:
        assert account.run([*by_hand, "stop"], timeout_seconds=30).returncode == 0


def test_another_port_is_taken_when_the_last_one_is_occupied(folder: Path) -> None:
    with EmbeddedPostgres(folder, durable=False) as server:
        port = server.status().port
    assert port
    with socket.create_server(("127.0.0.1", port)), server:
        assert server.status().port not in {port, None}
        assert fetch(server.url("postgres"), "SELECT 1") == 1


def test_a_lost_race_for_the_port_is_repeated_with_another_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "_is_free", lambda _: True)
    with EmbeddedPostgres(folder, durable=False) as server:
        port = server.status().port
    assert port
    with socket.create_server(("127.0.0.1", port)), server:
        assert server.status().port not in {port, None}


def test_the_message_holds_the_reason_when_the_server_does_not_start(folder: Path) -> None:
    server = EmbeddedPostgres(folder, durable=False)
    settings = server.status().data_folder / "postgresql.auto.conf"
    good = settings.read_text()
    settings.write_text("no_such_setting = 1\n")
    with pytest.raises(EmbeddedDatabaseError, match=r"did not start: .*no_such_setting"):
        server.start()
    settings.write_text(good)
    server.start()
    assert server.close() is True  # the failed start left no user behind


def test_data_of_another_major_version_is_never_touched(empty_folder: Path) -> None:
    server = EmbeddedPostgres(empty_folder)
    data = server.status().data_folder
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text("9.6\n")
    with pytest.raises(EmbeddedDatabaseError, match=r"holds data of PostgreSQL 9\.6"):
        server.start()
    assert [path.name for path in data.iterdir()] == ["PG_VERSION"]


def test_the_log_begins_anew_when_it_has_grown_large(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedPostgres(folder, durable=False) as server:
        log = server.status().data_folder.parent / "postgres.log"
    grown = log.read_text()
    monkeypatch.setattr(cluster_module, "_LOG_BYTES", 10)
    with server:
        assert log.with_suffix(".log.1").read_text() == grown
        assert len(log.read_text()) < len(grown) or "starting PostgreSQL" in log.read_text()


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
