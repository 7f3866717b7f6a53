"""What pipeline classes say about their jobs, found out without importing any of them here.

A process of its own imports each class and reads its `job_defaults`, its `payload_model` (a JSON
schema as a dict, or a pydantic model) and the first line of its docstring. Whatever a module does
at import (hang, exit, print) stays there. Run as `python -m app.worker.probe`: import paths as a
JSON list on standard input, one JSON line a class on standard output.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from typing import Any, Final, Self

from app.domain.json_values import dump_storable, storable_text, summary_of
from app.pipelines.payloads import Declaration
from app.worker.loading import import_class

PROBE_SECONDS: Final = 30.0
MAX_SCHEMA_BYTES: Final = 256 * 1024
_MAX_DESCRIPTION: Final = 200
_MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024


class PipelineProbe:
    """A running look at pipelines; `answers` waits for it. Starts at once, to overlap with others.

    Args:
        targets: import paths "package.module:Class".
        timeout_seconds: for each class; one that takes twice as long is given up.
    """

    def __init__(self, targets: Iterable[str], timeout_seconds: float = PROBE_SECONDS) -> None:
        self._targets = list(dict.fromkeys(targets))
        self._timeout_seconds = timeout_seconds
        # A file, not a pipe: whoever a module leaves behind cannot keep us waiting with it.
        self._answers = tempfile.TemporaryFile()  # noqa: SIM115  closed by __exit__
        self._process = self._start(self._targets) if self._targets else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._answers.close()

    def answers(self) -> tuple[dict[str, Declaration], dict[str, str]]:
        """What classes declare and, where something of it could not be had, the reason, by target.

        A class whose payload model is unusable is told without it, under both.
        """
        declared: dict[str, Declaration] = {}
        failed: dict[str, str] = {}
        left = self._targets
        while left:
            self._process = self._process or self._start(left)
            self._wait()
            for target, found, error in self._told():
                if found is not None:
                    declared[target] = Declaration(**found)
                if error is not None:
                    failed[target] = error
            left = [target for target in left if target not in declared and target not in failed]
            if left:
                # Whoever was being imported when the process ended or time was up.
                culprit, *left = left
                failed[culprit] = "its import ended the process or took too long"
        return declared, failed

    def _start(self, targets: list[str]) -> "subprocess.Popen[bytes]":
        self._answers.seek(0)
        self._answers.truncate()
        process = subprocess.Popen(
            [sys.executable, "-m", "app.worker.probe"],
            stdin=subprocess.PIPE,
            stdout=self._answers,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdin is not None  # noqa: S101  asked for above
        with process.stdin:
            process.stdin.write(json.dumps(targets).encode())
        return process

    def _wait(self) -> None:
        """Return when the process has ended, or was ended because a class took too long."""
        assert self._process is not None  # noqa: S101  the caller started it
        told = -1
        while told < len(self._told()):
            told = len(self._told())
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self._timeout_seconds)
                break
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            # The module may have started others.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _told(self) -> list[tuple[str, Any, str | None]]:
        text = os.pread(self._answers.fileno(), _MAX_ANSWER_BYTES, 0)
        found = []
        for line in text.splitlines():
            with contextlib.suppress(ValueError):  # cut short
                target, declared, error = json.loads(line)
                found.append((target, declared, error))
        return found


def _main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    # What modules print at import must not mix with the answers.
    os.dup2(2, 1)
    for target in json.load(sys.stdin):
        try:
            answer = json.dumps([target, *_declared(import_class(target))])
        except Exception as error:  # noqa: BLE001  user code; SystemExit ends the process, as it says
            answer = json.dumps([target, None, summary_of(error)])
        answers.write(answer + "\n")
        answers.flush()
    os._exit(0)


def _declared(asked: Any) -> tuple[dict[str, Any], str | None]:
    """The fields of a Declaration, and what is wrong with its payload model."""
    defaults = getattr(asked, "job_defaults", {})
    if not isinstance(defaults, dict):
        raise TypeError("job_defaults is not a dict")
    about = (getattr(asked, "__doc__", None) or "").strip().partition("\n")[0]
    declared = {
        "defaults": defaults,
        "description": storable_text(about, _MAX_DESCRIPTION) or None,
        "payload_schema": None,
    }
    try:
        declared["payload_schema"] = _schema(getattr(asked, "payload_model", None))
    except Exception as error:  # noqa: BLE001  user code; what else it declares still counts
        return declared, f"payload_model: {summary_of(error)}"
    return declared, None


def _schema(model: Any) -> dict[str, Any] | None:
    if model is None:
        return None
    schema = model if isinstance(model, dict) else model.model_json_schema()
    # Copied by way of JSON: nothing else can be told.
    text = dump_storable(schema, "payload_model", MAX_SCHEMA_BYTES)
    copied = json.loads(text)
    if not isinstance(copied, dict):
        raise TypeError("not a JSON object")
    return copied


if __name__ == "__main__":
    _main()
