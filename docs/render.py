"""Writes the parts of the documentation that the code knows better.

These are states and the example in README.md, the settings in settings.md, the fields of the result
in thematic-analysis.md, and the kinds of problems in api.md.

openapi.json is written whole.

    python docs/render.py           write them
    python docs/render.py --check   only compare; exit code 1 and a sentence where they are stale

A part is what stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from app.api.problem_kinds import KINDS
from app.api.server import NoScheduler, WebServer
from app.config import PREFIX, Settings
from app.db.interface import DBInterface
from app.domain.lifecycle import TRANSITIONS
from app.results.themes import ThemesResult

ROOT: Final = Path(__file__).parents[1]
README: Final = ROOT / "README.md"
SETTINGS: Final = ROOT / "docs" / "settings.md"
OPENAPI: Final = ROOT / "docs" / "openapi.json"
THEMATIC: Final = ROOT / "docs" / "thematic-analysis.md"
API: Final = ROOT / "docs" / "api.md"

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


def result() -> str:
    """Every model of a result with its fields, types and meanings."""
    return "\n\n".join(map(_model_table, _models(ThemesResult)))


def kinds() -> str:
    """Every kind of problem."""
    lines = ["| problem | status | meaning |", "|---|---|---|"]
    for kind, statuses, meaning in KINDS:
        lines.append(f"| `{kind}` | {', '.join(map(str, statuses))} | {meaning} |")
    return "\n".join(lines)


def openapi() -> str:
    """The description of the API, as a running service gives it."""
    described = WebServer(cast("DBInterface", None), NoScheduler()).app.openapi()
    return json.dumps(described, indent=2, ensure_ascii=False) + "\n"


def _models(model: type[BaseModel]) -> list[type[BaseModel]]:
    """The model and those within it, each once, in the order in which a reader meets them."""
    found = [model]
    for outer in found:
        for field in outer.model_fields.values():
            found += [part for part in _parts_of(field.annotation) if part not in found]
    return found


def _parts_of(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _parts_of(inner)


def _model_table(model: type[BaseModel]) -> str:
    about = (model.__doc__ or "").partition("\n\n")[0]
    lines = [f"### {model.__name__}", "", about, "", "| field | type | meaning |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        meaning = (field.description or "").replace("|", "\\|")
        lines.append(f"| `{field.alias or name}` | {_type(field.annotation)} | {meaning} |")
    return "\n".join(lines)


def _type(annotation: Any) -> str:
    """A type in words; a model's name leads to its table."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is list:
        return f"list of {_type(inner[0])}"
    if origin is dict:
        return f"object of {_type(inner[1])}"
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (Union, UnionType):
        named = [_type(each) for each in inner if each is not NoneType]
        named = ["number"] if set(named) == {"number", "whole number"} else named
        return " or ".join([*named, *(["null"] if NoneType in inner else [])])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return _WORDS[annotation]


_WORDS: Final = MappingProxyType(
    {str: "text", int: "whole number", float: "number", bool: "true or false"}
)

Parts = Mapping[str, Callable[[], str]]
PARTS: Final[Parts] = MappingProxyType({"states": states, "example": example})
PAGES: Final[Mapping[Path, Parts]] = MappingProxyType(
    {
        README: PARTS,
        SETTINGS: MappingProxyType({"settings": settings}),
        THEMATIC: MappingProxyType({"result": result}),
        API: MappingProxyType({"problems": kinds}),
    }
)


def rendered(text: str, parts: Parts = PARTS) -> str:
    """`text` with every part made anew.

    Raises:
        ValueError: it lacks the marks of a part, or has them twice.
    """
    for name, make in parts.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        part = f"{begin}\n{make()}\n{end}"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        text, found = pattern.subn(lambda _match, part=part: part, text)  # type: ignore[misc]
        if found != 1:
            raise ValueError(f"the part {name!r} is there {found} times")
    return text


def main(arguments: list[str] | None = None) -> int:
    """Write or compare; the exit code."""
    parser = argparse.ArgumentParser(description="Write the generated parts of the documentation.")
    parser.add_argument("--check", action="store_true", help="only compare")
    only_check = parser.parse_args(arguments).check
    stale = 0
    pages = {page: rendered(page.read_text("utf-8"), parts) for page, parts in PAGES.items()}
    for page, after in {**pages, OPENAPI: openapi()}.items():
        before = page.read_text("utf-8") if page.exists() else ""
        if before == after:
            continue
        if only_check:
            stale = 1
            remedy = "run `python docs/render.py`"
            print(f"{page.name} is not what the code says: {remedy}", file=sys.stderr)
        else:
            page.write_text(after, "utf-8")
    return stale


def _default(name: str, field: FieldInfo) -> str:
    if name in _DEFAULTS:
        return _DEFAULTS[name]
    value: Any = field.get_default(call_default_factory=True)
    if value is None or value in ({}, []):
        return ""
    return f"`{json.dumps(value) if not isinstance(value, str) else value}`"


if __name__ == "__main__":
    sys.exit(main())
