"""Another process that uses an embedded server: the tests' handle on it, and its program.

The program reads one command a line and answers each with one line.
"""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import asyncpg

from app.db.postgres.account import Account
from app.db.postgres.embedded import EmbeddedPostgres
from app.domain.errors import EmbeddedDatabaseError

ANSWER_SECONDS = 40
# Our packages too: another account may need another interpreter than that of our environment.
PYTHONPATH = os.pathsep.join(
    str(folder) for folder in (Path(__file__).parents[2], Path(asyncpg.__file__).parents[1])
)
MYSELF = Account("the current user")


class Companion:
    """Starts the program; as a context manager it ends it, however the test went."""

    def __init__(
        self, folder: Path, *, account: Account = MYSELF, python: str = sys.executable
    ) -> None:
        self._process = subprocess.Popen(
            [python, "-B", __file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            user=account.uid,
            group=account.gid,
            extra_groups=None if account.uid is None else (),
        )
        self.pid = self._process.pid

    def tell(self, command: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS)
        assert ready, "no answer in time"
        return self._process.stdout.readline().strip()

    def ask(self, command: str) -> str:
        self.tell(command)
        return self.answer()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait(ANSWER_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream
            stream.close()


def main(folder: Path) -> None:
    server = EmbeddedPostgres(folder, durable=False)
    for line in sys.stdin:
        try:
            match line.strip():
                case "start":
                    server.start()
                    answer = str(server.status().pid)
                case "close":
                    answer = str(server.close())
                case "stop":
                    server.stop()
                    answer = "stopped"
                case other:
                    answer = f"unknown command {other}"
        except EmbeddedDatabaseError as error:
            answer = f"error: {error}"
        print(answer, flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main(Path(sys.argv[1]))
