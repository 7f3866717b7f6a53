"""Checks the pinned requirement files: hashes, no addresses, one version of everything.

    python requirements/check.py

Prints what is wrong and ends with exit code 1; prints nothing where all is well.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[1]
# Each file's pins are a part of the next one's: what serves is what was tested.
FILES: Final = ("uv.txt", "server.txt", "app.txt", "dev.txt")
# Installed beside the others, without what it declares to need.
APART: Final = "llama.txt"
# The extras that a file holds beside the project's own dependencies, as in `make lock`.
EXTRAS: Final = {
    "server.txt": ("thematic", "mongo"),
    "app.txt": ("embedded", "thematic", "mongo"),
    "dev.txt": ("embedded", "thematic", "llm", "mongo", "dev"),
}

_HASH: Final = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def pins(name: str) -> dict[str, list[str]]:
    """The requirements of a file, markers kept, each with its hashes."""
    found: dict[str, list[str]] = {}
    text = (ROOT / "requirements" / name).read_text().replace("\\\n", " ")
    for line in text.splitlines():
        requirement, *hashes = line.split(" --hash")
        found[requirement.strip()] = ["--hash" + given.rstrip() for given in hashes]
    return found


def problems() -> Iterator[str]:
    """One sentence for everything that is wrong."""
    for name in (*FILES, APART):
        yield from _form_problems(name)
    tested = pins("dev.txt").keys()
    for name in FILES[:-1]:
        for requirement in sorted(pins(name).keys() - tested):
            yield f"{name}: {requirement} is not what dev.txt pins"
    for name, extras in EXTRAS.items():
        yield from _unmet(name, extras)


def _form_problems(name: str) -> Iterator[str]:
    for requirement, hashes in pins(name).items():
        if not re.match(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==[^=\s]+( ;|$)", requirement):
            yield f"{name}: {requirement!r} is not a pinned version"
        if not hashes or not all(_HASH.fullmatch(given) for given in hashes):
            yield f"{name}: {requirement} has no hash, or a broken one"


def _unmet(name: str, extras: Iterable[str]) -> Iterator[str]:
    """Dependencies in pyproject.toml that the file lacks or pins outside of their bounds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    found: dict[str, list[str]] = {}
    for pinned in map(Requirement, pins(name)):
        versions = found.setdefault(canonicalize_name(pinned.name), [])
        versions.append(next(iter(pinned.specifier)).version)
    for requirement in map(Requirement, wanted):
        versions = found.get(canonicalize_name(requirement.name), [])
        if not versions or not all(map(requirement.specifier.contains, versions)):
            yield f"{name}: does not meet {requirement}; run `make lock`"


if __name__ == "__main__":
    found_problems = list(problems())
    sys.exit("\n".join(found_problems) if found_problems else 0)
