"""The servers of the tests themselves: they end with the tests, however those end."""

import os
import subprocess
import sys
from pathlib import Path

from support.service import ROOT, process_exists, wait_until

START = """
import time
from support import mongo
with mongo.replica_set(2) as (_, nodes):
    print(*(node.process.pid for node in nodes), flush=True)
    time.sleep(600)
"""


def test_servers_end_when_the_tests_are_killed(tmp_path: Path) -> None:
    folder = tmp_path / "servers"
    folder.mkdir()
    path = f"{ROOT}:{ROOT / 'tests'}"
    with subprocess.Popen(
        [sys.executable, "-c", START],
        cwd=ROOT / "tests",
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        assert tests.stdout is not None
        pids = [int(pid) for pid in tests.stdout.readline().split()]
        assert [process_exists(pid) for pid in pids] == [True, True]
        assert list(folder.iterdir())
        tests.kill()

    wait_until(lambda: not any(map(process_exists, pids)), "end of the servers")
    wait_until(lambda: not list(folder.iterdir()), "end of their data")
