"""Killing processes that nobody here has started: all of a tree, whatever it looks like by then."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.processes import children, living
from support.service import wait_until

from app.worker import descent
from app.worker.descent import descendants, kill_descendants, kill_if

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc to read")

DEPTH = 30
# Each link has a session of its own, and so has nothing but its parent to be found by.
CHAIN = f"""
import ctypes, os, signal
ctypes.CDLL(None).prctl(36, ctypes.c_ulong(1), 0, 0, 0)  # a child subreaper, as guards are
for depth in range({DEPTH}):
    if os.fork():
        break
    os.setsid()
else:
    print("complete", flush=True)
while True:
    signal.pause()
"""


@contextmanager
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def chain() -> Iterator[int]:
    """A subreaper with a chain of processes below it, none of which has an environment."""
    command = [sys.executable, "-c", CHAIN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"complete\n"
        try:
            yield process.pid
        finally:
            while kill_descendants(process.pid):
                pass
            process.kill()


def test_a_process_is_killed_where_nothing_can_pin_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with sleeping() as process:
        assert not kill_if(process.pid, lambda status: status.parent == process.pid)
        assert kill_if(process.pid, lambda status: status.parent == os.getpid())
        assert process.wait(10.0) == -signal.SIGKILL


def test_who_has_lost_its_parent_on_the_way_is_killed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with chain() as root:
        tree = descendants(root)
        assert len(tree) == DEPTH
        # A look at the tree is old by the time of the kills: each of them hands the next link to
        # the subreaper.
        [first] = children(root)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: len(children(root)) > 1, "the subreaper's new child")

        with monkeypatch.context() as patch:
            patch.setattr(descent, "descendants", lambda _: tree)
            assert kill_descendants(root)

        wait_until(lambda: not living(set(tree)), "the end of the chain")


def test_a_process_that_is_somebody_elses_by_now_is_spared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with sleeping() as root, sleeping() as process:
        monkeypatch.setattr(descent, "descendants", lambda _: {process.pid: root.pid})

        assert not kill_descendants(root.pid)

        assert living({process.pid})
