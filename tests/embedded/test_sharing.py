"""Several processes, one server: who starts it, who stops it, who may not."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import pytest
from embedded.companion import Companion
from embedded.observing import fetch, pid_of

from app.db.postgres.embedded import EmbeddedPostgres, default_data_dir
from app.domain.errors import EmbeddedDatabaseError

pytestmark = pytest.mark.system


def test_the_second_user_attaches_and_the_last_one_stops_the_server(folder: Path) -> None:
    first, second = EmbeddedPostgres(folder, durable=False), EmbeddedPostgres(folder)
    first.start()
    pid = pid_of(first)
    second.start()
    assert pid_of(second) == pid
    assert first.close() is False
    assert fetch(second.url("postgres"), "SELECT 1") == 1
    assert second.close() is True
    assert second.close() is False
    assert second.status().is_running is False


def test_one_of_six_processes_initialises_when_all_start_in_an_empty_folder(
    empty_folder: Path,
) -> None:
    with ExitStack() as stack:
        users = [stack.enter_context(Companion(empty_folder)) for _ in range(6)]
        for user in users:
            user.tell("start")
        pids = {user.answer() for user in users}
        assert len(pids) == 1
        assert pids.pop().isdecimal()
        for user in users:
            user.tell("close")
        assert sorted(user.answer() for user in users) == ["False"] * 5 + ["True"]
    log = (EmbeddedPostgres(empty_folder).status().data_folder.parent / "postgres.log").read_text()
    assert log.count("starting PostgreSQL") == 1


def test_rows_survive_and_the_next_user_attaches_when_the_starter_is_killed(folder: Path) -> None:
    with Companion(folder) as starter:
        pid = starter.ask("start")
        url = EmbeddedPostgres(folder).url("postgres")
        fetch(url, "DROP TABLE IF EXISTS kept", "CREATE TABLE kept AS SELECT 42 AS answer")
        starter.kill()
    next(folder.glob("pg*/port")).unlink()  # as if it had died before writing it
    with EmbeddedPostgres(folder) as next_user:
        assert str(pid_of(next_user)) == pid
        assert fetch(next_user.url("postgres"), "SELECT answer FROM kept") == 42
    assert next_user.status().is_running is False


def test_starting_again_changes_nothing_when_the_server_runs(server: EmbeddedPostgres) -> None:
    before = server.status()
    server.start()
    assert server.status() == before


def test_the_server_stays_up_after_keep_running_until_stop(folder: Path) -> None:
    server = EmbeddedPostgres(folder, durable=False)
    server.start()
    server.keep_running()
    assert server.close() is False
    assert server.status().is_running is True
    server.stop()
    assert server.status().is_running is False
    server.start()
    assert server.close() is True


def test_stop_is_refused_and_changes_nothing_when_others_use_the_server(folder: Path) -> None:
    with Companion(folder) as other, EmbeddedPostgres(folder, durable=False) as server:
        pid = other.ask("start")
        server.keep_running()
        with pytest.raises(EmbeddedDatabaseError, match=r"other processes use .* --force"):
            server.stop()
        assert other.ask("stop").startswith("error: other processes use")
        assert str(pid_of(server)) == pid

        server.stop(force=True)
        assert server.status().is_running is False
        assert other.ask("start") != pid
        assert other.ask("close") == "True"  # `force` forgot keep_running too


def test_stop_does_nothing_when_there_is_no_cluster(tmp_path: Path) -> None:
    EmbeddedPostgres(tmp_path / "none").stop()
    assert not (tmp_path / "none").exists()


def test_status_writes_nothing_when_there_is_no_cluster(tmp_path: Path) -> None:
    status = EmbeddedPostgres(tmp_path / "none").status()
    assert (status.is_running, status.pid, status.port) == (False, None, None)
    assert not (tmp_path / "none").exists()


def test_a_url_needs_a_server_that_was_started_once(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedDatabaseError):
        EmbeddedPostgres(tmp_path / "none").url()


def test_a_database_is_created_once_when_several_ask_at_the_same_time(
    server: EmbeddedPostgres,
) -> None:
    with ThreadPoolExecutor() as threads:
        list(threads.map(server.ensure_database, ['with "quotes"'] * 4))
    query = """SELECT count(*) FROM pg_database WHERE datname = 'with "quotes"'"""
    assert fetch(server.url("postgres"), query) == 1


def test_psql_gets_the_password_but_not_as_an_argument(
    server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGHOST", "elsewhere.invalid")
    monkeypatch.setenv("PGSSLMODE", "require")
    command, environment = server.psql_command("postgres", "-At", "-c", "SELECT 6 * 7")
    assert not any(environment["PGPASSWORD"] in part for part in command)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "42\n"


def test_only_who_has_the_password_gets_in_and_only_by_loopback(server: EmbeddedPostgres) -> None:
    url = server.url("postgres")
    assert fetch(url, "SHOW listen_addresses") == "127.0.0.1"
    assert fetch(url, "SHOW unix_socket_directories") == ""
    password = server.psql_command("postgres")[1]["PGPASSWORD"]
    with pytest.raises(asyncpg.InvalidPasswordError):
        fetch(url.replace(password, "wrong"), "SELECT 1")

    cluster = server.status().data_folder.parent
    assert password not in (cluster / "postgres.log").read_text()
    assert {path.name for path in cluster.iterdir() if path.stat().st_mode & 0o077} <= {"port"}


def test_time_zone_and_encoding_do_not_depend_on_the_environment(server: EmbeddedPostgres) -> None:
    url = server.url("postgres")
    assert fetch(url, "SHOW timezone") == "UTC"
    assert fetch(url, "SHOW log_timezone") == "UTC"
    assert fetch(url, "SHOW server_encoding") == "UTF8"
    assert fetch(url, "SHOW data_checksums") == "on"
    assert fetch(url, "SHOW max_connections") == "200"


@pytest.mark.parametrize(("durable", "shown"), [(True, "on"), (False, "off")])
def test_only_durable_servers_wait_for_the_disk(folder: Path, *, durable: bool, shown: str) -> None:
    with EmbeddedPostgres(folder, durable=durable, max_connections=20) as server:
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):
            assert fetch(server.url("postgres"), f"SHOW {setting}") == shown
        assert fetch(server.url("postgres"), "SHOW max_connections") == "20"


def test_the_default_data_folder_belongs_to_who_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_data_dir() == Path("/data/haulage")
    monkeypatch.setenv("XDG_DATA_HOME", "relative paths do not count")
    assert default_data_dir() == Path("/home/somebody/.local/share/haulage")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_data_dir() == Path("/var/lib/haulage")


def test_the_message_names_the_way_out_when_the_system_has_no_file_locks() -> None:
    program = "import sys; sys.modules['fcntl'] = None; import app.db.postgres.embedded"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "EmbeddedDatabaseError" in done.stderr
    assert "Linux and macOS only: set HAULAGE_DATABASE_URL" in done.stderr
