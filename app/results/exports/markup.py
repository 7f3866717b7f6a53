"""Markup whose values are escaped, whatever they are: the one way texts get into a page."""

from collections.abc import Iterable
from html import escape


class Markup(str):
    """Text that is markup already; only `markup` and `joined` make it."""

    __slots__ = ()


def markup(template: str, **values: object) -> Markup:
    """A template of ours with values in its {places}, each escaped unless it is markup.

    Escaped for elements and for attributes in quotes; never put a value anywhere else.
    """
    shown = {
        name: value if isinstance(value, Markup) else escape(str(value))
        for name, value in values.items()
    }
    return Markup(template.format(**shown))


def joined(pieces: Iterable[Markup]) -> Markup:
    """Pieces one after the other."""
    return Markup("".join(pieces))
