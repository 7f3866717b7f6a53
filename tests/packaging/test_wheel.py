"""The wheel: what is in it, and that its command looks after a database from anywhere."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

Haulage = Callable[..., str]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT)
    (built,) = folder.glob("haulage-*.whl")
    return built


@pytest.fixture(scope="session")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and our dependencies, but not this checkout."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(folder, symlinks=True)
    python = str(folder / "bin" / "python")
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps"]
    _run([*uv, "--python", python, str(wheel)], folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    # A path in a .pth file is only searched: the .pth files in it, which lead here, are not read.
    paths = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (packages / "dependencies.pth").write_text("\n".join(paths) + "\n")
    return folder


@pytest.fixture
def haulage(environment: Path, empty_database_url: str, tmp_path: Path) -> Haulage:
    """Run the installed command in an empty folder, on a database without schema."""

    def run(*arguments: str) -> str:
        command = [str(environment / "bin" / "haulage"), *arguments]
        return _run(command, tmp_path, HAULAGE_DATABASE_URL=empty_database_url)

    return run


def _run(command: list[str], folder: Path, **settings: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=folder, env=kept | settings, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _files(folder: str, pattern: str = "*") -> set[str]:
    return {
        path.relative_to(ROOT / folder).as_posix()
        for path in (ROOT / folder).rglob(pattern)
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_schema_steps_travel_inside_the_package(names: set[str]) -> None:
    steps = _files("migrations")
    assert {"env.py", "script.py.mako"} < steps
    assert {f"app/_migrations/{step}" for step in steps} <= names


def test_everything_in_the_package_is_packed(names: set[str]) -> None:
    assert {f"app/{name}" for name in _files("app")} <= names


@pytest.mark.parametrize(
    "name",
    [
        "app/db/postgres/queries/claim.sql",
        "app/pipelines/thematic/models/minilm/tokenizer.json",
        "app/pipelines/thematic/models/minilm/LICENSE",
        "app/pipelines/thematic/models/minilm/SOURCE.md",
        "app/results/exports/templates/page.css",
        "app/results/exports/templates/page.html",
    ],
)
def test_what_is_not_python_is_packed_too(names: set[str], name: str) -> None:
    assert name in names


def test_nothing_else_is_packed(names: set[str]) -> None:
    folders = {name.split("/")[0] for name in names}
    (metadata,) = folders - {"app"}
    assert metadata.endswith(".dist-info")
    assert f"{metadata}/licenses/LICENSE" in names
    parts = {part for name in names for part in name.split("/")}
    assert not [part for part in parts if part in {"__pycache__", "tests"} or "test_" in part]


def test_the_installed_command_is_not_this_checkout(environment: Path, tmp_path: Path) -> None:
    code = "import app.db.migrate as m; print(m.__file__); print(m.migrations_folder())"
    printed = _run([str(environment / "bin" / "python"), "-c", code], tmp_path).splitlines()
    assert all(Path(path).is_relative_to(environment) for path in printed)


@pytest.mark.system
def test_a_database_is_upgraded_checked_and_emptied_from_anywhere(haulage: Haulage) -> None:
    assert haulage("db", "sql").startswith("set lock_timeout = '3s';")
    assert haulage("db", "current").startswith("database: none\n")
    assert haulage("db", "upgrade").startswith("upgraded from nothing to ")
    database, program = haulage("db", "current").splitlines()
    assert database.split()[1] == program.split()[1]
    assert haulage("db", "upgrade").startswith("already at ")
    assert haulage("db", "check") == "the schema is as it should be\n"
    assert "grant select on all tables" in haulage("db", "grant-reader", "analyst", "--sql")
    assert haulage("db", "downgrade", "base", "--yes").endswith("\nnow at nothing\n")
    assert haulage("db", "upgrade").startswith("upgraded from nothing to ")
