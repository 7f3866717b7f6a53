"""Writes the definitions of views or functions as they stand into the copy of a new revision.

    python migrations/freeze.py reporting 0011

A revision that was released keeps its copy: change the files in app/db, add a revision that drops
and makes anew what changed, and freeze for that one.
"""

import argparse
from pathlib import Path
from typing import get_args

from app.db.definitions import Kind, source

FOLDER = Path(__file__).parent / "frozen"


def main() -> None:
    """Write the copy that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=get_args(Kind))
    parser.add_argument("revision")
    given = parser.parse_args()
    path = FOLDER / f"{given.revision}_{given.kind}.sql"
    path.write_text(source(given.kind), "utf-8")


if __name__ == "__main__":
    main()
