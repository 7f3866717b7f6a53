"""Writes the parts of README.md that the code knows better: states, settings, the example.

    python docs/render.py           write them
    python docs/render.py --check   only compare; exit code 1 and a sentence where they are stale

A part is what stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic.fields import FieldInfo

from app.config import PREFIX, Settings
from app.domain.lifecycle import TRANSITIONS

ROOT: Final = Path(__file__).parents[1]
README: Final = ROOT / "README.md"

# Defaults that depend on the machine, in words.
_DEFAULTS: Final = MappingProxyType(
    {
        "max_concurrent_jobs": "usable CPUs",
        "start_method": "`forkserver` on Linux",
    }
)


def states() -> str:
    """The transition table as a diagram, arrows between the same two states merged."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (before, event), after in TRANSITIONS.items():
        arrows.setdefault((before.value, after.value), []).append(event.value)
    lines = ["    [*] --> pending: enqueued"]
    lines += [f"    {a} --> {b}: {', '.join(events)}" for (a, b), events in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def settings() -> str:
    """Every setting with its default and what it means."""
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        meaning = (field.description or "").replace("|", "\\|")
        lines.append(f"| `{PREFIX}{name.upper()}` | {_default(name, field)} | {meaning} |")
    return "\n".join(lines)


def example() -> str:
    """The pipeline of the examples, word for word."""
    code = (ROOT / "examples" / "word_count.py").read_text("utf-8")
    return f"```python\n{code.rstrip()}\n```"


PARTS: Final[MappingProxyType[str, Callable[[], str]]] = MappingProxyType(
    {"states": states, "example": example, "settings": settings}
)


def rendered(text: str) -> str:
    """`text` with every part made anew.

    Raises:
        ValueError: it lacks the marks of a part, or has them twice.
    """
    for name, make in PARTS.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        part = f"{begin}\n{make()}\n{end}"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        text, found = pattern.subn(lambda _match, part=part: part, text)  # type: ignore[misc]
        if found != 1:
            raise ValueError(f"the part {name!r} is there {found} times")
    return text


def main(arguments: list[str] | None = None) -> int:
    """Write or compare; the exit code."""
    parser = argparse.ArgumentParser(description="Write the generated parts of README.md.")
    parser.add_argument("--check", action="store_true", help="only compare")
    only_check = parser.parse_args(arguments).check
    before = README.read_text("utf-8")
    after = rendered(before)
    if before == after:
        return 0
    if only_check:
        print("README.md is not what the code says: run `python docs/render.py`", file=sys.stderr)
        return 1
    README.write_text(after, "utf-8")
    return 0


def _default(name: str, field: FieldInfo) -> str:
    if name in _DEFAULTS:
        return _DEFAULTS[name]
    value: Any = field.get_default(call_default_factory=True)
    if value is None or value in ({}, []):
        return ""
    return f"`{json.dumps(value) if not isinstance(value, str) else value}`"


if __name__ == "__main__":
    sys.exit(main())
