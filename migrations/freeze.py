"""Writes what stands in app/db now into the copy that belongs to one revision.

    python migrations/freeze.py reporting 0011     the views of a new revision, or its functions
    python migrations/freeze.py statements 0011    what programs of the newest revision run

A revision that was released keeps its copies: change the files in app/db, add a revision that drops
and makes anew what changed, and freeze for that one. Statements are frozen before the revision that
comes next changes them: programs of the former one go on running beside the new schema.
"""

import argparse
from pathlib import Path
from typing import Final, get_args

from app.db.definitions import Kind, source
from app.db.postgres.statements import STATEMENTS

ROOT: Final = Path(__file__).parents[1]
DEFINITIONS: Final = ROOT / "migrations" / "frozen"
STATEMENT_COPIES: Final = ROOT / "tests" / "migrations" / "statements"


def main() -> None:
    """Write the copy that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=[*get_args(Kind), "statements"])
    parser.add_argument("revision")
    given = parser.parse_args()
    if given.kind == "statements":
        path, text = STATEMENT_COPIES / f"{given.revision}.sql", named_statements()
    else:
        path, text = DEFINITIONS / f"{given.revision}_{given.kind}.sql", source(given.kind)
    path.write_text(text, "utf-8")


def named_statements() -> str:
    """Every named statement of this program, by name."""
    ordered = (STATEMENTS[name] for name in sorted(STATEMENTS))
    return "\n".join(f"-- name: {s.name}\n-- {s.purpose}\n{s.sql};\n" for s in ordered)


if __name__ == "__main__":
    main()
