"""What pipeline classes say about their jobs, found out without importing any of them here.

A process of its own imports each class and reads its `job_defaults`; whatever a module does at
import (hang, exit, print) stays there. Run as `python -m app.worker.probe`: import paths as a JSON
list on standard input, one JSON line a class on standard output.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

from app.worker.loading import import_class

PROBE_SECONDS: Final = 30.0
_MAX_ANSWER_BYTES: Final = 1024 * 1024


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

    def answers(self) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
        """Declared defaults and, for classes that could not be asked, the reason, by target."""
        declared: dict[str, Mapping[str, Any]] = {}
        failed: dict[str, str] = {}
        left = self._targets
        while left:
            self._process = self._process or self._start(left)
            self._wait()
            for target, defaults, error in self._told():
                if error is None:
                    declared[target] = defaults
                else:
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
                target, defaults, error = json.loads(line)
                found.append((target, defaults, error))
        return found


def _main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    # What modules print at import must not mix with the answers.
    os.dup2(2, 1)
    for target in json.load(sys.stdin):
        try:
            defaults = getattr(import_class(target), "job_defaults", {})
            if not isinstance(defaults, dict):
                raise TypeError("job_defaults is not a dict")  # noqa: TRY301  told as all others
            answer = json.dumps([target, defaults, None])
        except Exception as error:  # noqa: BLE001  user code; SystemExit ends the process, as it says
            answer = json.dumps([target, None, f"{type(error).__name__}: {error}"])
        answers.write(answer + "\n")
        answers.flush()
    os._exit(0)


if __name__ == "__main__":
    _main()
