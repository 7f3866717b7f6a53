"""Lints the SQL of every step with squawk: locks that stop writers, rewrites, missing time-outs.

    python migrations/lint.py

Prints what is wrong and ends with exit code 1. Rules are switched off in `.squawk.toml`; what one
step may do is listed here. A step that is not released yet is mended instead.
"""

import os
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from alembic.config import Config
from alembic.script import ScriptDirectory

from app.db.migrate import sql_of

ROOT: Final = Path(__file__).parents[1]
CONFIGURATION: Final = ROOT / ".squawk.toml"

HARMLESS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        # No program before this one wrote to `usage`, and `datasets` has a row for each upload.
        "0004": ("require-concurrent-index-creation",),
        # No program before this one wrote to `webhook_deliveries`.
        "0009": (
            "adding-foreign-key-constraint",
            "constraint-missing-not-valid",
            "require-concurrent-index-creation",
            "require-concurrent-index-deletion",
        ),
    }
)


def main() -> None:
    """Lint every step; exit code 1 where something was found."""
    passed = [passes(revision, sql) for revision, sql in steps()]
    sys.exit(0 if all(passed) else 1)


def steps() -> list[tuple[str, str]]:
    """Revisions and the SQL of each alone, oldest first."""
    config = Config()
    config.set_main_option("script_location", str(ROOT / "migrations").replace("%", "%%"))
    chain = reversed(list(ScriptDirectory.from_config(config).walk_revisions()))
    return [
        (step.revision, sql_of(f"{step.down_revision or 'base'}:{step.revision}")) for step in chain
    ]


def passes(revision: str, sql: str) -> bool:
    """Whether squawk finds nothing in a step; it prints what it finds."""
    # Given on the command line too: what stands there replaces the list of the file.
    rules = tomllib.loads(CONFIGURATION.read_text("utf-8"))["excluded_rules"]
    excluded = ",".join([*rules, *HARMLESS.get(revision, ())])
    # Installed beside the interpreter, which need not be on PATH.
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", "")))
    done = subprocess.run(
        [
            "squawk",
            f"--config={CONFIGURATION}",
            f"--exclude={excluded}",
            "--reporter=gcc",
            f"--stdin-filepath={revision}.sql",
        ],
        env=os.environ | {"PATH": path},
        input=sql,
        text=True,
        check=False,
    )
    return done.returncode == 0


if __name__ == "__main__":
    main()
