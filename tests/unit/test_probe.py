"""What pipeline classes declare, asked in a process of its own."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from support.service import process_exists, wait_until

from app.pipelines.payloads import Declaration
from app.worker.probe import MAX_SCHEMA_BYTES, PipelineProbe


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the probe imports from."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    return tmp_path


def write(folder: Path, module: str, text: str) -> str:
    (folder / f"{module}.py").write_text(text)
    return f"{module}:Mine"


def ask(
    targets: list[str], timeout_seconds: float = 60.0
) -> tuple[dict[str, Declaration], dict[str, str]]:
    with PipelineProbe(targets, timeout_seconds) as probe:
        return probe.answers()


def test_declared_defaults_are_told(modules: Path) -> None:
    good = write(modules, "good", "class Mine:\n job_defaults = {'max_attempts': 3}\n")
    silent = write(modules, "silent", "print('at import')\nclass Mine: pass\n")

    declared, failed = ask([good, silent, good])

    assert declared == {good: Declaration(defaults={"max_attempts": 3}), silent: Declaration()}
    assert failed == {}
    assert "good" not in sys.modules


def test_a_class_that_cannot_be_asked_hides_none_of_the_others(modules: Path) -> None:
    raises = write(modules, "raises", "1 / 0")
    leaves = write(modules, "leaves", "import os; os._exit(0)")
    missing = "nowhere_at_all:Mine"
    odd = write(modules, "odd", "class Mine:\n job_defaults = 3\n")
    last = write(modules, "last", "class Mine:\n job_defaults = {'stall_seconds': 9}\n")

    declared, failed = ask([raises, leaves, missing, odd, last])

    assert declared == {last: Declaration(defaults={"stall_seconds": 9})}
    assert set(failed) == {raises, leaves, missing, odd}
    assert "ZeroDivisionError" in failed[raises]
    assert "ended the process" in failed[leaves]


def test_payload_models_become_schemas(modules: Path) -> None:
    as_dict = write(
        modules,
        "as_dict",
        "class Mine:\n"
        " '''Counts words.\n\n More of it.\n '''\n"
        " payload_model = {'type': 'object', 'properties': {'n': {'type': 'integer'}}}\n",
    )
    as_model = write(
        modules,
        "as_model",
        "import pydantic\n"
        "class Payload(pydantic.BaseModel):\n"
        " n: int = pydantic.Field(ge=1)\n"
        "class Mine:\n"
        " payload_model = Payload\n"
        " job_defaults = {'max_attempts': 2}\n",
    )

    declared, failed = ask([as_dict, as_model])

    assert failed == {}
    assert declared[as_dict] == Declaration(
        "Counts words.", {"type": "object", "properties": {"n": {"type": "integer"}}}
    )
    schema = declared[as_model].payload_schema
    assert schema is not None
    assert schema["properties"]["n"]["minimum"] == 1
    assert schema["required"] == ["n"]
    assert declared[as_model].defaults == {"max_attempts": 2}


@pytest.mark.parametrize(
    "model",
    [
        "3",
        "'{}'",
        "{'a': {1}}",
        "{'a': '\\x00'}",
        "{'a': float('nan')}",
        f"{{'a': 'x' * {MAX_SCHEMA_BYTES}}}",
        "type('M', (), {'model_json_schema': lambda: 1 / 0})",
        "type('M', (), {'model_json_schema': lambda: [1]})",
    ],
)
def test_a_class_with_an_unusable_payload_model_keeps_its_defaults(
    modules: Path, model: str
) -> None:
    odd = write(
        modules, "odd_model", f"class Mine:\n payload_model = {model}\n job_defaults = {{'a': 1}}\n"
    )

    declared, failed = ask([odd])

    assert declared == {odd: Declaration(defaults={"a": 1})}
    assert failed[odd].startswith("payload_model: ")


def test_a_docstring_that_is_no_text_is_none_of_ours(modules: Path) -> None:
    odd = write(modules, "odd_doc", "class Mine:\n __doc__ = 3\n")

    declared, failed = ask([odd])

    assert (declared, set(failed)) == ({}, {odd})


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
    last = write(modules, "last_too", "class Mine: pass\n")
    began = time.monotonic()

    declared, failed = ask([good, hangs, last], 4.0)

    assert time.monotonic() - began < 40
    assert (set(declared), set(failed)) == ({good, last}, {hangs})
    pids = [int(pid) for pid in note.read_text().split()]
    wait_until(lambda: not any(map(process_exists, pids)), "end of the probe")


def test_a_daemon_of_a_module_keeps_nobody_waiting(modules: Path) -> None:
    note = modules / "daemon"
    forks = write(
        modules,
        "forks",
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        f"    open({str(note)!r}, 'w').write(str(os.getpid()))\n"
        "    time.sleep(600)\n"
        "class Mine: pass\n",
    )
    try:
        assert ask([forks])[0] == {forks: Declaration()}
    finally:
        pid: str = wait_until(lambda: note.exists() and note.read_text(), "the daemon")
        os.kill(int(pid), signal.SIGKILL)


def test_a_probe_that_nobody_waits_for_leaves_nothing(modules: Path) -> None:
    hangs = write(modules, "hangs_too", "import time; time.sleep(600)")

    with PipelineProbe([hangs]) as probe:
        assert probe._process is not None
        pid = probe._process.pid

    assert not process_exists(pid)


def test_nothing_is_started_when_nobody_is_asked() -> None:
    assert ask([]) == ({}, {})
