"""A codebook in the payload: its themes, each with a name of its own and a definition."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.pipelines.thematic.checking import ParameterError, kind, line, refuse_unknown, text

MAX_CODES: Final = 100
NOT_THEMES: Final = ("other", "non-answer")
"""What an answer is where it belongs to no theme; no theme may be called so."""
_NOT_THEMES_SAID: Final = frozenset(
    "".join(filter(str.isalnum, name.casefold()))
    for name in (*NOT_THEMES, "others", "non-answers", "no answer", "no answers")
)


@dataclass(frozen=True, slots=True)
class Code:
    """One theme of a given codebook."""

    name: str
    definition: str


def is_no_theme(name: str) -> bool:
    """Whether a name says that an answer has no theme, or could be taken for saying so."""
    return "".join(filter(str.isalnum, name.casefold())) in _NOT_THEMES_SAID


def given_codes(payload: Mapping[str, Any]) -> tuple[Code, ...]:
    """The payload's codebook, empty where it has none.

    Raises:
        ParameterError: naming the first entry that is wrong.
    """
    given = payload.get("codebook", [])
    if not isinstance(given, list | tuple) or len(given) > MAX_CODES:
        raise ParameterError("codebook", kind(given), f"give a list of at most {MAX_CODES} themes")
    codes = []
    taken: set[str] = set()
    for at, entry in enumerate(given):
        place = f"codebook[{at}]"
        if not isinstance(entry, Mapping):
            raise ParameterError(place, kind(entry), "give an object with name and definition")
        refuse_unknown(entry, ("name", "definition"), f"{place}.")
        name = line(entry, "name", f"{place}.", longest=100)
        if name is None:
            raise ParameterError(f"{place}.name", None, "name the theme")
        name = " ".join(name.split())
        if name.casefold() in taken or is_no_theme(name):
            remedy = f"give each theme a name of its own, none of {', '.join(NOT_THEMES)}"
            raise ParameterError(f"{place}.name", name, remedy)
        taken.add(name.casefold())
        definition = text(entry, "definition", f"{place}.", longest=1_000) or ""
        codes.append(Code(name, " ".join(definition.split())))
    return tuple(codes)
