"""The operating-system account that the server runs under.

PostgreSQL refuses to run as root. Started by root, its programs switch to an account without
privileges; started by anybody else, they stay with the account that they have.
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from app.domain.errors import EmbeddedDatabaseError

_CANDIDATES = ("postgres", "nobody")
# Nothing of the caller's PG* variables, language or time zone may reach the server.
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


@dataclass(frozen=True, slots=True)
class Account:
    """Who runs PostgreSQL's programs.

    Attributes:
        name: for messages.
        uid: the user to switch to, None to stay; `gid` likewise.
    """

    name: str
    uid: int | None = None
    gid: int | None = None

    @classmethod
    def for_server(cls) -> Self:
        """Choose `postgres`, else `nobody` for root, ourselves for anybody else.

        Raises:
            EmbeddedDatabaseError: root, and the system has neither of the two.
        """
        if os.geteuid() != 0:
            return cls(name="the current user")
        import pwd  # noqa: PLC0415 - Windows has none

        for name in _CANDIDATES:
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(name=f"user {name}", uid=entry.pw_uid, gid=entry.pw_gid)
        raise EmbeddedDatabaseError(
            "PostgreSQL does not run as root and there is no user postgres or nobody: "
            "run Haulage as an ordinary user or set HAULAGE_DATABASE_URL"
        )

    def run(
        self,
        command: Sequence[str | Path],
        *,
        timeout_seconds: float,
        output: IO[bytes] | int = subprocess.PIPE,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end as this account, in a session of its own.

        Both output streams go to `output`, by default into the answer's `stdout`.

        Raises:
            OSError: it cannot be executed, for instance because the account cannot reach it.
            EmbeddedDatabaseError: it took longer and was killed.
        """
        try:
            return subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
                cwd="/",
                env=_ENVIRONMENT,
                timeout=timeout_seconds,
                pass_fds=pass_fds,
                start_new_session=True,
                user=self.uid,
                group=self.gid,
                extra_groups=None if self.uid is None else (),
            )
        except subprocess.TimeoutExpired as error:
            raise EmbeddedDatabaseError(
                f"{command[0]} did not end in {timeout_seconds} s: is the machine overloaded?"
            ) from error

    def can_enter(self, folder: Path) -> bool:
        """Whether this account can pass through a folder that we can, and all its parents."""
        if self.uid is None:
            return True
        # Asking the kernel as that account; permission bits alone would miss access lists.
        return self.run(["test", "-x", folder], timeout_seconds=10).returncode == 0

    def give(self, path: Path) -> None:
        """Make this account the owner of a file or folder of ours."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)
