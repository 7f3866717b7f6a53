"""What pipeline classes declare, asked in a process of its own."""

import os
import sys
import time
from pathlib import Path

import pytest
from support.service import process_exists, wait_until

from app.worker.probe import PipelineProbe


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the probe imports from."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    return tmp_path


def write(folder: Path, module: str, text: str) -> str:
    (folder / f"{module}.py").write_text(text)
    return f"{module}:Mine"


def test_declared_defaults_are_told(modules: Path) -> None:
    good = write(modules, "good", "class Mine:\n job_defaults = {'max_attempts': 3}\n")
    silent = write(modules, "silent", "print('at import')\nclass Mine: pass\n")

    declared, failed = PipelineProbe([good, silent, good]).answers()

    assert declared == {good: {"max_attempts": 3}, silent: {}}
    assert failed == {}
    assert "good" not in sys.modules


def test_a_class_that_cannot_be_asked_hides_none_of_the_others(modules: Path) -> None:
    raises = write(modules, "raises", "1 / 0")
    leaves = write(modules, "leaves", "import os; os._exit(0)")
    missing = "nowhere_at_all:Mine"
    odd = write(modules, "odd", "class Mine:\n job_defaults = 3\n")
    last = write(modules, "last", "class Mine:\n job_defaults = {'stall_seconds': 9}\n")

    declared, failed = PipelineProbe([raises, leaves, missing, odd, last]).answers()

    assert declared == {last: {"stall_seconds": 9}}
    assert set(failed) == {raises, leaves, missing, odd}
    assert "ZeroDivisionError" in failed[raises]
    assert "ended the process" in failed[leaves]


def test_an_import_that_hangs_ends_with_the_time(modules: Path) -> None:
    note = modules / "pids"
    hangs = write(
        modules,
        "hangs",
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(note)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)\n",
    )
    good = write(modules, "good_too", "class Mine: pass\n")
    began = time.monotonic()

    declared, failed = PipelineProbe([good, hangs], timeout_seconds=3.0).answers()

    assert time.monotonic() - began < 10
    assert (set(declared), set(failed)) == ({good}, {hangs})
    pids = [int(pid) for pid in note.read_text().split()]
    wait_until(lambda: not any(map(process_exists, pids)), "end of the probe")


def test_a_probe_that_nobody_waits_for_leaves_nothing(modules: Path) -> None:
    hangs = write(modules, "hangs_too", "import time; time.sleep(600)")

    with PipelineProbe([hangs]) as probe:
        assert probe._process is not None
        pid = probe._process.pid

    assert not process_exists(pid)


def test_nothing_is_started_when_nobody_is_asked() -> None:
    assert PipelineProbe([]).answers() == ({}, {})
