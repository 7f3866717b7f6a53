"""The pinned requirements, and what `requirements/check.py` finds wrong with them."""

import subprocess
import sys
from pathlib import Path

import pytest

from requirements import check

MARKED = "https", "http:", "file:", "--index", "--extra-index", "--find-links", "@"


def test_requirements_are_in_order() -> None:
    assert list(check.problems()) == []


@pytest.mark.parametrize("name", [*check.FILES, check.APART])
def test_every_requirement_has_hashes_and_no_file_an_address(name: str) -> None:
    text = (check.ROOT / "requirements" / name).read_text()
    pinned = check.pins(name)
    assert pinned
    assert all(pinned.values()), "a requirement without a hash"
    assert text.count("--hash=sha256:") == sum(map(len, pinned.values()))
    assert not [mark for mark in MARKED if mark in text]


def test_what_serves_is_what_was_tested() -> None:
    tested = check.pins("dev.txt")
    for name in ("uv.txt", "server.txt", "app.txt"):
        assert check.pins(name).items() <= tested.items(), name


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("uv==", "uv>=", "is not a pinned version"),
        ("--hash=sha256:", "--hash=md5:", "has no hash, or a broken one"),
        ("uv==", "--index-url somewhere\nuv==", "is not a pinned version"),
        ("uv==", "uv==0.", "is not what dev.txt pins"),
    ],
)
def test_a_broken_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, complaint: str
) -> None:
    folder = tmp_path / "requirements"
    folder.mkdir()
    for path in (check.ROOT / "requirements").glob("*.txt"):
        (folder / path.name).write_text(path.read_text())
    (tmp_path / "pyproject.toml").write_text((check.ROOT / "pyproject.toml").read_text())
    broken = folder / "uv.txt"
    broken.write_text(broken.read_text().replace(before, after, 1))
    monkeypatch.setattr(check, "ROOT", tmp_path)
    assert [problem for problem in check.problems() if complaint in problem]


def test_a_dependency_that_nobody_pinned_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requirements").symlink_to(check.ROOT / "requirements")
    project = (check.ROOT / "pyproject.toml").read_text()
    wanted = project.replace("dependencies = [", 'dependencies = [\n    "left-out>=1",', 1)
    (tmp_path / "pyproject.toml").write_text(wanted)
    monkeypatch.setattr(check, "ROOT", tmp_path)
    assert list(check.problems()) == [
        f"{name}: does not meet left-out>=1; run `make lock`" for name in check.EXTRAS
    ]


def test_check_ends_with_zero_from_any_folder(tmp_path: Path) -> None:
    command = [sys.executable, str(check.ROOT / "requirements" / "check.py")]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
