"""Log lines: what fails again and again is told once in a while, everything else every time."""

import logging
from collections.abc import Iterator

import pytest

from app.telemetry import MAX_REMEMBERED_FAILURES, MAY_REPEAT, RepeatFilter, default_telemetry

FIRST = "01a229ac-9fe7-7083-876b-73e1966a8809"
SECOND = "01a229ac-9fe7-7083-876b-73e1966a8810"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What a handler with a filter of one minute writes."""
    written: list[str] = []

    class Writing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(record.getMessage())

    handler = Writing()
    handler.addFilter(RepeatFilter(60.0))
    logging.getLogger().addHandler(handler)
    caplog.set_level(logging.INFO)
    yield written
    logging.getLogger().removeHandler(handler)


def test_failures_that_differ_in_ids_and_numbers_only_are_told_once(lines: list[str]) -> None:
    telemetry = default_telemetry()
    for failures, job in enumerate((FIRST, SECOND, FIRST), start=1):
        telemetry.emit("loop.failed", loop="listener", error="refused by port 5432", failures=1)
        telemetry.emit("finish.delayed", job=job, reason="away")
        telemetry.emit("loop.failed", loop="watchdog", error="refused", failures=failures)

    assert [line.split()[0] for line in lines] == ["loop.failed", "finish.delayed", "loop.failed"]


def test_another_reason_is_told_at_once(lines: list[str]) -> None:
    telemetry = default_telemetry()
    for reason in ("refused", "refused", "disk full"):
        telemetry.emit("finish.delayed", job=FIRST, reason=reason)

    assert [line.rpartition("=")[2] for line in lines] == ["refused", "disk full"]


def test_what_happens_to_each_job_is_told_every_time(lines: list[str]) -> None:
    telemetry = default_telemetry()
    for job in (FIRST, SECOND):
        telemetry.emit("node.lost", node="n", job=job, status="pending")

    assert len(lines) == 2


def test_a_failure_that_is_told_again_says_how_many_were_not() -> None:
    repeats = RepeatFilter(0.0)
    record = _failure("away")
    assert repeats.filter(record)
    repeats._interval_seconds = 60.0
    assert not any(repeats.filter(_failure("away")) for _ in range(7))
    repeats._interval_seconds = 0.0

    record = _failure("away")
    assert repeats.filter(record)
    assert record.getMessage() == "away (and 7 more like it)"
    record = _failure("away")
    assert repeats.filter(record)
    assert record.getMessage() == "away"


def test_it_remembers_a_bounded_number_of_failures() -> None:
    repeats = RepeatFilter()
    for number in range(MAX_REMEMBERED_FAILURES * 3):
        assert repeats.filter(_failure(f"reason {_letters(number)}"))
    assert len(repeats._seen) <= MAX_REMEMBERED_FAILURES


def _failure(message: str) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": message, "levelno": logging.ERROR, **MAY_REPEAT})


def _letters(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "abcdefghij"))
