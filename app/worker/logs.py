"""A job's own log: logging records, stdout and stderr, collected off the event loop, bounded.

Output is taken at the level of file descriptors, so that native code and child processes are heard
too, and it is always drained: a job never blocks on a full pipe. Secrets are masked before anything
is kept. What exceeds the cap is counted and dropped. Lines still in memory when a process is killed
are lost; the flush interval bounds it.
"""

import contextlib
import logging
import os
import sys
import threading
from collections import deque
from datetime import UTC, datetime
from typing import Final, TextIO

from app.domain.jobs import MAX_TEXT_CHARACTERS, LogLine
from app.domain.json_values import storable_text
from app.domain.masking import Mask

MAX_LINES: Final = 10_000
MAX_LINE_CHARACTERS: Final = 4_000
MAX_SOURCE_CHARACTERS: Final = 200
MAX_LEVEL: Final = 32_767
MAX_BATCH_LINES: Final = 500

_READ_BYTES: Final = 64 * 1024


class LogBuffer(logging.Handler):
    """Lines waiting to be stored; filled from any thread, emptied by the session's flush loop."""

    def __init__(self, max_lines: int = MAX_LINES, mask: Mask | None = None) -> None:
        super().__init__()
        self.mask = mask or Mask()
        # Level and logger are stored beside the line, not in it.
        self.setFormatter(logging.Formatter("%(message)s"))
        self._guard = threading.Lock()
        self._lines: deque[LogLine] = deque()
        self._max_lines = max_lines
        self._kept = 0
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a logging record; a traceback follows on lines of its own."""
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001  a record that cannot be formatted is the user's
            text = f"{_printed(record.msg)} (log record with broken arguments)"
        for line in text.splitlines() or [""]:
            self.add(record.levelno, record.name, line)

    def add(self, level: int, source: str, text: str) -> None:
        """Keep one line, or count it as dropped above the cap."""
        with self._guard:
            if self._kept >= self._max_lines:
                self._dropped += 1
                return
            self._keep(level, source, text)

    def _keep(self, level: int, source: str, text: str) -> None:
        self._kept += 1
        # Users log under any level and name; the store takes a smallint and clean text.
        line = LogLine(
            number=self._kept,
            level=max(0, min(level, MAX_LEVEL)),
            source=storable_text(source, MAX_SOURCE_CHARACTERS),
            text=self.shown(text, MAX_LINE_CHARACTERS),
            at=datetime.now(UTC),
        )
        self._lines.append(line)

    def shown(self, text: str, limit_characters: int = MAX_TEXT_CHARACTERS) -> str:
        """The text as it may be stored: without secrets, cleaned, and cut."""
        # Cut afterwards, since half a secret is not known as one; the rest is not looked at.
        return storable_text(self.mask(text[: 2 * limit_characters]), limit_characters)

    def take(self, limit: int = MAX_BATCH_LINES) -> list[LogLine]:
        """Up to `limit` oldest lines; give them back with `put_back` if storing them failed."""
        with self._guard:
            count = min(limit, len(self._lines))
            return [self._lines.popleft() for _ in range(count)]

    def put_back(self, lines: list[LogLine]) -> None:
        """Lines that could not be stored, to be taken again first."""
        with self._guard:
            self._lines.extendleft(reversed(lines))

    def note_dropped(self) -> None:
        """At the end: say how many lines the cap cost."""
        with self._guard:
            dropped, self._dropped = self._dropped, 0
            if dropped:
                text = f"{dropped} more lines were dropped: a job keeps {MAX_LINES} per attempt"
                self._keep(logging.WARNING, "haulage", text)


class CapturedStream:
    """One file descriptor of this process whose lines go to a LogBuffer."""

    def __init__(self, descriptor: int, level: int, source: str, buffer: LogBuffer) -> None:
        self._level = level
        self._source = source
        self._buffer = buffer
        self._descriptor = descriptor
        self._original = os.dup(descriptor)
        reading, writing = os.pipe()
        os.dup2(writing, descriptor)
        os.close(writing)
        self._thread = threading.Thread(
            target=self._drain, args=(reading,), name=f"haulage-{source}", daemon=True
        )
        self._thread.start()

    def release(self, timeout_seconds: float = 1.0) -> None:
        """Give the descriptor back and take what is still in the pipe.

        Grandchildren that keep the pipe open do not delay this beyond the time-out.
        """
        with contextlib.suppress(OSError):  # a job may have closed what is not its own
            os.dup2(self._original, self._descriptor)
            os.close(self._original)
        self._thread.join(timeout_seconds)

    def _drain(self, reading: int) -> None:
        rest = b""
        while True:
            try:
                chunk = os.read(reading, _READ_BYTES)
            except OSError:
                chunk = b""
            *lines, rest = (rest + chunk).split(b"\n")
            # A line without an end must not grow without bound.
            if len(rest) > MAX_LINE_CHARACTERS * 4:
                lines, rest = [*lines, rest], b""
            for line in lines if chunk or not rest else [*lines, rest]:
                self._buffer.add(self._level, self._source, line.decode("utf-8", "replace"))
            if not chunk:
                with contextlib.suppress(OSError):
                    os.close(reading)
                return


class OutputCapture:
    """Sends this process's logging, stdout and stderr to a LogBuffer until released."""

    def __init__(self, buffer: LogBuffer) -> None:
        logging.basicConfig(level=logging.INFO, handlers=[buffer], force=True)
        logging.captureWarnings(capture=True)
        self._streams = [
            CapturedStream(1, logging.INFO, "stdout", buffer),
            CapturedStream(2, logging.WARNING, "stderr", buffer),
        ]
        # New text layers: the old ones may believe that they can seek, which a pipe cannot.
        self._python_streams = (sys.stdout, sys.stderr)
        sys.stdout, sys.stderr = _line_writer(1), _line_writer(2)

    def release(self) -> None:
        """Take what is still in the pipes and give stdout and stderr back; twice is harmless."""
        streams, self._streams = self._streams, []
        if not streams:
            return
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:  # noqa: BLE001, S112  closed or replaced by the pipeline
                continue
        sys.stdout, sys.stderr = self._python_streams
        for captured in streams:
            captured.release()


def _printed(message: object) -> str:
    try:
        return repr(message)
    except Exception:  # noqa: BLE001  the user's as well
        return "(unprintable)"


def _line_writer(descriptor: int) -> TextIO:
    return open(
        descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )
