"""What pipeline classes say about their jobs, found out without importing any of them here.

A process of its own imports each class and reads its `job_defaults`; whatever a module does at
import (hang, exit, print) stays there. Run as `python -m app.worker.probe`: import paths as a JSON
list on standard input, one JSON line a class on standard output.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

from app.worker.loading import import_class

PROBE_SECONDS: Final = 5.0
_MAX_ANSWER_BYTES: Final = 1024 * 1024


class PipelineProbe:
    """A running look at pipelines; `answers` waits for it. Starts at once, to overlap with others.

    Args:
        targets: import paths "package.module:Class".
    """

    def __init__(self, targets: Iterable[str], timeout_seconds: float = PROBE_SECONDS) -> None:
        self._targets = list(dict.fromkeys(targets))
        self._end = time.monotonic() + timeout_seconds
        self._process = self._start(self._targets) if self._targets else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is not None:  # nobody wants to know any more
            _end_session(process)
            process.communicate()

    def answers(self) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
        """Declared defaults and, for classes that could not be asked, the reason, by target."""
        declared: dict[str, Mapping[str, Any]] = {}
        failed: dict[str, str] = {}
        left = self._targets
        while left:
            self._process = self._process or self._start(left)
            for line in self._read():
                target, defaults, error = line
                if error is None:
                    declared[target] = defaults
                else:
                    failed[target] = error
            left = [target for target in left if target not in declared and target not in failed]
            if left:
                # Whoever was being imported when the process ended or time was up.
                culprit, *left = left
                failed[culprit] = "its import ended the process or took too long"
                if time.monotonic() >= self._end:
                    failed |= dict.fromkeys(left, "no time was left to ask it")
                    break
        return declared, failed

    @staticmethod
    def _start(targets: list[str]) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "-m", "app.worker.probe"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdin is not None  # noqa: S101  asked for above
        process.stdin.write(json.dumps(targets).encode())
        process.stdin.close()
        process.stdin = None
        return process

    def _read(self) -> list[tuple[str, Any, str | None]]:
        assert self._process is not None  # noqa: S101  the caller started it
        process, self._process = self._process, None
        try:
            text, _ = process.communicate(timeout=max(0.1, self._end - time.monotonic()))
        except subprocess.TimeoutExpired:
            _end_session(process)
            text, _ = process.communicate()
        found = []
        for line in text[:_MAX_ANSWER_BYTES].splitlines():
            try:
                target, defaults, error = json.loads(line)
            except ValueError:
                continue  # cut short
            found.append((target, defaults, error))
        return found


def _end_session(process: "subprocess.Popen[bytes]") -> None:
    # The module may have started others.
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        process.kill()


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
