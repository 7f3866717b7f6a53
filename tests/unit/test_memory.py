"""What a job's processes take, asked of real ones."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.orchestrator.memory import oom_counter, oom_kills, tree_memory_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

MEBIBYTE = 1_048_576
# Takes 100 MiB, then shares them with four children, all of which wait for the end of stdin.
SHARING = """
import os, sys
block = bytearray(os.urandom(1_048_576)) * 100
for _ in range(4):
    if os.fork() == 0:
        sum(block[::4096])
        os.write(1, b"1")
        os.read(0, 1)
        os._exit(0)
os.write(1, b"1")
os.read(0, 1)
"""


@contextmanager
def sharing() -> Iterator[int]:
    """A process that stands for a guard, with a tree of five below it; its pid."""
    # A shell that stays, as the guard does: the tree below it is what counts.
    command = ["sh", "-c", '"$0" -c "$1"; exit', sys.executable, SHARING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        assert shell.stdin is not None
        told = b""
        while len(told) < 5:
            told += os.read(shell.stdout.fileno(), 5)
        yield shell.pid
        shell.stdin.close()


def test_memory_that_a_pool_shares_counts_once_above_the_threshold() -> None:
    with sharing() as pid:
        quick = tree_memory_bytes(pid)
        below = tree_memory_bytes(pid, threshold_bytes=10_000 * MEBIBYTE)
        exact = tree_memory_bytes(pid, threshold_bytes=200 * MEBIBYTE)
    assert quick is not None
    assert below is not None
    assert exact is not None
    assert quick > 480 * MEBIBYTE
    assert below > 480 * MEBIBYTE
    assert 100 * MEBIBYTE < exact < 200 * MEBIBYTE


def test_the_guard_itself_does_not_count() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        assert tree_memory_bytes(process.pid) == 0
        process.kill()


def test_a_process_that_is_gone_takes_nothing() -> None:
    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    process.join()
    assert tree_memory_bytes(process.pid or 0, threshold_bytes=0) == 0
    process.close()


def test_kills_for_want_of_memory_are_counted(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("low 0\nhigh 0\nmax 12\noom 5\noom_kill 4\noom_group_kill 1\n")
    assert oom_kills(events) == 4


@pytest.mark.parametrize("text", ["", "oom 5\n", "oom_kill many\n"])
def test_a_counter_that_is_none_counts_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "memory.events").write_text(text)
    assert oom_kills(tmp_path / "memory.events") is None
    assert oom_kills(tmp_path / "nowhere") is None
    assert oom_kills(None) is None


def test_this_machine_has_a_counter() -> None:
    assert oom_kills(oom_counter()) is not None
