"""The pipe from worker to manager: nothing in it can block, break or fool either end for long."""

import os
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from app.domain.jobs import Usage
from app.orchestrator.reports import MAX_READ_BYTES, Ended, ReportReader
from app.worker import reports
from app.worker.reports import Report, ReportWriter


class Pipe:
    """Both ends, and a descriptor by which a job writes what it likes."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self.raw = os.dup(writing)
        self.reader = ReportReader(reading)
        self.connection = Connection(writing, readable=False)
        self.writer = ReportWriter(self.connection)

    def fill(self, chunk: bytes = b"x" * 1_000) -> None:
        try:
            while True:
                os.write(self.raw, chunk)
        except BlockingIOError:
            pass


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.reader.close()
    os.close(pipe.raw)
    if not pipe.connection.closed:
        pipe.connection.close()


def test_what_was_told_is_heard_with_its_instant(pipe: Pipe) -> None:
    assert pipe.reader.poll() == 0
    assert pipe.reader.last_sign is None
    before = time.monotonic()

    pipe.writer.tell(Report.PID, 4_711)
    pipe.writer.tell(Report.CONNECTED)
    pipe.writer.tell(Report.LOADED)
    pipe.writer.tell(Report.OUTCOME)
    pipe.writer.tell_last(Report.ENDED, "signal", 9, "1.500000", 4_096)
    pipe.reader.poll()

    reader = pipe.reader
    assert (reader.worker_pid, reader.has_outcome) == (4_711, True)
    assert reader.ended == Ended(-9, Usage(4_096, 1.5))
    for instant in (reader.connected_at, reader.loaded_at, reader.last_sign):
        assert instant is not None
        assert instant >= before


def test_signs_of_life_are_few_and_count_at_reading(pipe: Pipe) -> None:
    for _ in range(100):
        pipe.writer.sign()
    waiting = time.monotonic()

    assert pipe.reader.poll() == len("alive\n")

    assert pipe.reader.last_sign is not None
    assert pipe.reader.last_sign >= waiting


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\xff\xfe\x00",
        b"pid\npid x\npid 1 2\n",
        b"ended\nended exit\nended exit x y z\nended signal -3 nan -1\n",
        b"ended exit 999999 1 1\nended exit 1 inf 1\nended exit 1 1 " + b"9" * 400 + b"\n",
        b"connected now\nloaded\x00\noutcome!\nALIVE\n",
        b"\n\n\n",
        b"a line that has no end " * 100,
        b"ended " * 10_000 + b"\n",
    ],
)
def test_rubbish_means_nothing_and_hides_nothing(pipe: Pipe, rubbish: bytes) -> None:
    for start in range(0, len(rubbish), 1_000):
        os.write(pipe.raw, rubbish[start : start + 1_000])
        pipe.reader.poll()
    assert pipe.reader.last_sign is None
    assert pipe.reader.ended is None

    pipe.writer.tell_last(Report.ENDED, "exit", 3, "0.1", 1)
    pipe.reader.poll()

    assert pipe.reader.ended == Ended(3, Usage(1, 0.1))


def test_only_the_first_pid_and_the_last_end_are_believed(pipe: Pipe) -> None:
    pipe.writer.tell(Report.PID, 4_711)
    os.write(pipe.raw, b"pid 1\nended exit 0 0 0\n")
    pipe.writer.tell_last(Report.ENDED, "exit", 3, "0.1", 1)

    pipe.reader.drain()

    assert pipe.reader.worker_pid == 4_711
    assert pipe.reader.ended == Ended(3, Usage(1, 0.1))


def test_how_the_worker_ended_is_known_before_its_guard_is_done(pipe: Pipe) -> None:
    os.write(pipe.raw, b"exited exit 0\nexited\nexited exit 256\nexited by mistake")
    pipe.reader.poll()
    assert pipe.reader.exit_code == 0  # a job's lie, until its guard speaks

    assert pipe.writer.tell_apart(Report.EXITED, "signal", 9)
    pipe.reader.poll()

    assert pipe.reader.exited_at is not None
    assert pipe.reader.exit_code == -9
    assert pipe.reader.ended is None
    pipe.writer.tell_last(Report.ENDED, "exit", 3, "0.1", 1)
    pipe.reader.poll()
    assert pipe.reader.exit_code == 3


def test_who_finds_no_room_is_told_so(pipe: Pipe) -> None:
    pipe.fill(b"x")
    assert not pipe.writer.tell_apart(Report.EXITED, "exit", 0)
    pipe.reader.drain()
    assert pipe.writer.tell_apart(Report.EXITED, "exit", 0)


def test_a_full_pipe_loses_lines_and_delays_nobody(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "LAST_WORD_SECONDS", 0.01)
    pipe.fill()
    pipe.writer.tell(Report.CONNECTED)
    pipe.writer.tell_last(Report.ENDED, "exit", 0, "0", 0)

    assert pipe.reader.poll() <= MAX_READ_BYTES
    assert len(pipe.reader._rest) == 0
    pipe.reader.drain()

    assert pipe.reader.connected_at is None
    pipe.writer.tell(Report.CONNECTED)
    os.write(pipe.raw, b"\n")
    pipe.writer.tell(Report.LOADED)
    pipe.reader.poll()
    assert pipe.reader.loaded_at is not None


def test_nothing_is_written_where_the_descriptor_is_another_file_by_now(pipe: Pipe) -> None:
    descriptor = pipe.connection.fileno()
    reading, writing = os.pipe()
    os.dup2(writing, descriptor)

    pipe.writer.tell(Report.ALIVE)

    os.close(writing)
    os.dup2(pipe.raw, descriptor)
    assert os.read(reading, 100) == b""
    os.close(reading)
    pipe.writer.tell(Report.ALIVE)
    assert pipe.reader.poll() == len("alive\n")


def test_a_manager_that_is_gone_harms_nobody(pipe: Pipe) -> None:
    pipe.reader.close()
    pipe.writer.tell(Report.OUTCOME)
    pipe.writer.tell_last(Report.ENDED, "exit", 0, "0", 0)
    assert pipe.reader.poll() == 0


def test_a_writer_without_a_pipe_keeps_quiet() -> None:
    writer = ReportWriter(None)
    writer.tell(Report.OUTCOME)
    writer.sign()
    writer.tell_last(Report.ENDED, "exit", 0, "0", 0)
