"""A job's log: lines are bounded and clean, and output is drained whatever a job writes."""

import json
import logging
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.domain.masking import Mask
from app.worker.logs import MAX_BATCH_LINES, MAX_LINE_CHARACTERS, LogBuffer

ROOT = Path(__file__).parents[2]


def texts(buffer: LogBuffer) -> list[str]:
    """Every line, taken in batches."""
    found: list[str] = []
    while batch := buffer.take():
        assert len(batch) <= MAX_BATCH_LINES
        found += [line.text for line in batch]
    return found


def logger_into(buffer: LogBuffer) -> logging.Logger:
    """A logger that nobody else knows of."""
    logger = logging.Logger("pipeline.mine")  # noqa: LOG001  a registered one would stay
    logger.addHandler(buffer)
    return logger


# -- the buffer -------------------------------------------------------------------------------


def test_lines_come_out_in_the_order_in_which_they_went_in() -> None:
    buffer = LogBuffer()
    for n in range(3 * MAX_BATCH_LINES // 2):
        buffer.add(20, "stdout", str(n))

    assert texts(buffer) == [str(n) for n in range(3 * MAX_BATCH_LINES // 2)]
    assert buffer.take() == []


def test_no_secret_is_kept_in_a_line() -> None:
    buffer = LogBuffer(mask=Mask(["correct-horse"]))
    logger = logger_into(buffer)

    logger.warning("asked with %s and Bearer %s", "correct-horse", "x" * 20)
    buffer.add(20, "stdout", "DSN postgresql://u:s3cret@h/d")
    try:
        raise ValueError("password=s3cret")  # noqa: TRY301  logged with its traceback
    except ValueError:
        logger.exception("failed")

    lines = texts(buffer)
    assert lines[:2] == ["asked with *** and Bearer ***", "DSN postgresql://u:***@h/d"]
    assert lines[-1] == "ValueError: password=***"


@pytest.mark.parametrize("before", range(MAX_LINE_CHARACTERS - 60, MAX_LINE_CHARACTERS + 10, 7))
def test_no_part_of_a_secret_is_left_where_a_line_is_cut(before: int) -> None:
    buffer = LogBuffer()

    buffer.add(20, "stdout", f"{'x' * before} postgresql://u:{'s3cret' * 5}@host/d {'y' * 99}")

    [line] = texts(buffer)
    assert len(line) <= MAX_LINE_CHARACTERS
    assert "s3cret" not in line


def test_lines_that_could_not_be_stored_come_first_again() -> None:
    buffer = LogBuffer()
    for n in range(5):
        buffer.add(20, "stdout", str(n))

    buffer.put_back(buffer.take(3))

    assert texts(buffer) == ["0", "1", "2", "3", "4"]


def test_lines_are_numbered_in_their_order_and_keep_their_numbers_when_given_back() -> None:
    buffer = LogBuffer(max_lines=4)
    for n in range(6):
        buffer.add(20, "stdout", str(n))
    buffer.put_back(buffer.take(3))
    buffer.note_dropped()

    assert [line.number for line in buffer.take()] == [1, 2, 3, 4, 5]


def test_lines_above_the_cap_are_counted_and_told_once() -> None:
    buffer = LogBuffer(max_lines=3)
    for n in range(10):
        buffer.add(20, "stdout", str(n))
    buffer.note_dropped()
    buffer.note_dropped()

    *kept, last = texts(buffer)
    assert kept == ["0", "1", "2"]
    assert last.startswith("7 more lines were dropped")


def test_lines_given_back_do_not_count_twice_against_the_cap() -> None:
    buffer = LogBuffer(max_lines=2)
    buffer.add(20, "stdout", "a")
    for _ in range(5):
        buffer.put_back(buffer.take())
    buffer.add(20, "stdout", "b")

    assert texts(buffer) == ["a", "b"]


def test_a_line_is_kept_in_a_form_that_can_be_stored() -> None:
    buffer = LogBuffer()
    buffer.add(10**9, "lo\x00gger\ud800" * 100, "text\x00\ud800" + "x" * 10_000)
    buffer.add(-5, "s", "low")

    line, low = buffer.take()
    assert 0 <= line.level <= 32_767
    assert (low.level, low.text) == (0, "low")
    for text in (line.source, line.text):
        assert "\x00" not in text
        assert text.encode()
    assert len(line.text) == MAX_LINE_CHARACTERS
    assert len(line.source) <= 255


def test_a_record_keeps_level_logger_and_traceback() -> None:
    buffer = LogBuffer()
    logger = logger_into(buffer)
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        logger.exception("outer %s", 1)

    first, *trace = buffer.take()
    assert (first.level, first.source, first.text) == (logging.ERROR, "pipeline.mine", "outer 1")
    assert trace[0].text.startswith("Traceback")
    assert trace[-1].text == "ZeroDivisionError: division by zero"
    assert {line.source for line in trace} == {"pipeline.mine"}


@pytest.mark.parametrize("arguments", [("too", "many"), (object(),), ({},)])
def test_a_record_with_broken_arguments_is_kept(arguments: tuple[Any, ...]) -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    buffer = LogBuffer()
    logger = logger_into(buffer)

    logger.info("%d", *arguments)
    logger.info("%s", BrokenError())
    logger.info("")

    kept = texts(buffer)
    assert len(kept) == 3
    assert "broken arguments" in kept[0]
    assert "broken arguments" in kept[1]
    assert kept[2] == ""


def test_no_line_is_lost_when_threads_write_at_once() -> None:
    buffer = LogBuffer()
    taken: list[str] = []

    def write(name: str) -> None:
        for n in range(500):
            buffer.add(20, name, f"{name}{n}")

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken += [line.text for line in buffer.take(7)]
    taken += texts(buffer)

    assert sorted(taken) == sorted(f"{name}{n}" for name in "abcd" for n in range(500))
    for name in "abcd":
        mine = [text for text in taken if text[0] == name]
        assert mine == [f"{name}{n}" for n in range(500)]


# -- stdout and stderr ------------------------------------------------------------------------

FRAME = """
import json, logging, os, subprocess, sys, threading
from app.worker.logs import LogBuffer, OutputCapture
buffer = LogBuffer({cap})
capture = OutputCapture(buffer)
{body}
capture.release()
capture.release()
buffer.note_dropped()
lines = []
while batch := buffer.take():
    lines += [[line.level, line.source, line.text] for line in batch]
print(json.dumps(lines))
print("said afterwards", file=sys.stderr)
"""


def captured(body: str, cap: int = 10_000) -> list[list[Any]]:
    """What a process that runs this has in its log; its own stdout is back afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", FRAME.format(cap=cap, body=body)],
        cwd=ROOT,
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b"said afterwards\n"
    lines: list[list[Any]] = json.loads(done.stdout)
    return lines


def test_prints_native_writes_and_child_processes_are_heard() -> None:
    lines = captured(
        """
print("printed ü \\ud800")
print("no end", end="", file=sys.stderr)
os.write(1, b"native\\n")
subprocess.run(["sh", "-c", "echo from a child; echo and its stderr >&2"], check=True)
logging.getLogger("mine").warning("logged")
import warnings; warnings.warn("warned")
""",
    )

    assert [20, "stdout", "printed ü \\ud800"] in lines
    assert [20, "stdout", "native"] in lines
    assert [20, "stdout", "from a child"] in lines
    assert [30, "stderr", "and its stderr"] in lines
    assert [30, "stderr", "no end"] in lines
    assert [30, "mine", "logged"] in lines
    assert any(source == "py.warnings" and "warned" in text for _, source, text in lines)


def test_five_megabytes_are_drained_whatever_they_hold() -> None:
    lines = captured(
        """
for _ in range(5):
    os.write(1, bytes(range(256)) * 4096)
    os.write(2, b"x" * 1_000_000)
print()
print("still here")
""",
        cap=100_000,
    )

    assert [20, "stdout", "still here"] in lines
    assert all(len(text) <= MAX_LINE_CHARACTERS for _, _, text in lines)
    assert any("\N{REPLACEMENT CHARACTER}" in text for _, _, text in lines)
    assert not any("\x00" in text for _, _, text in lines)
    # A line without an end is cut instead of growing.
    assert [30, "stderr", "x" * (MAX_LINE_CHARACTERS - 6) + " [cut]"] in lines


def test_what_exceeds_the_cap_is_drained_and_counted() -> None:
    lines = captured(
        """
for n in range(100_000):
    print(n)
""",
        cap=10,
    )

    assert [text for _, _, text in lines[:10]] == [str(n) for n in range(10)]
    [[_, source, told]] = lines[10:]
    assert source == "haulage"
    assert told.startswith("99990 more lines were dropped")


def test_a_pipeline_may_close_or_replace_its_streams() -> None:
    lines = captured(
        """
print("before")
sys.stdout.close()
sys.stderr = None
os.write(1, b"after\\n")
""",
    )

    assert [text for _, _, text in lines] == ["before", "after"]


def test_a_grandchild_that_keeps_the_pipe_open_does_not_delay_the_end() -> None:
    lines = captured(
        """
import signal
child = subprocess.Popen(["sh", "-c", "echo begun; exec sleep 30"])
while not any("begun" in line.text for line in list(buffer._lines)):
    pass
capture.release()
child.kill()
child.wait()
""",
    )

    assert [text for _, _, text in lines] == ["begun"]


def test_a_line_knows_when_it_was_written() -> None:
    buffer = LogBuffer()
    buffer.add(20, "stdout", "a")

    [line] = buffer.take()
    assert line.at.tzinfo is not None
    assert replace(line, text="b") != line
