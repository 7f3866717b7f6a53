"""Pipelines that do harm to their process, on purpose or by accident; what each does is its name.

HOSTILE registers them: the pipeline "hostile" does the harm that its payload names, and classes
that are hostile before they run have names of their own.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from support import harm_data, harm_endings, harm_errors, harm_surroundings

HOSTILE: Mapping[str, Any] = {
    name: f"support.hostile:{name.title().replace('-', '')}"
    for name in (
        "hostile",
        "raises-at-once",
        "exits-at-once",
        "interrupts-at-once",
        "unprintable-at-once",
        "generator",
        "async-generator",
        "hands-on",
    )
}

Harm = Callable[[Mapping[str, Any], Any], Awaitable[Any]]


def _harms(module: ModuleType) -> dict[str, Harm]:
    """The coroutine functions that a module defines, by their names with hyphens."""
    return {
        name.replace("_", "-"): function
        for name, function in vars(module).items()
        if inspect.iscoroutinefunction(function) and function.__module__ == module.__name__
    }


HARMS: Mapping[str, Harm] = {
    **_harms(harm_data),
    **_harms(harm_endings),
    **_harms(harm_errors),
    **_harms(harm_surroundings),
}


class Hostile:
    """Does what the `harm` of its payload names, and returns what that gives."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> Any:
        return await HARMS[payload["harm"]](payload, context)


class RaisesAtOnce(Hostile):
    """Cannot be constructed."""

    def __init__(self) -> None:
        raise ValueError("no licence for this machine")


class ExitsAtOnce(Hostile):
    """Takes itself for a script."""

    def __init__(self) -> None:
        raise SystemExit(0)


class InterruptsAtOnce(Hostile):
    """Raises what only a terminal should."""

    def __init__(self) -> None:
        raise KeyboardInterrupt


class UnprintableAtOnce(Hostile):
    """Raises what cannot be printed."""

    def __init__(self) -> None:
        raise harm_errors.UnprintableError


class Generator:
    """Has a generator where a coroutine is due."""

    def run(self, payload: Mapping[str, Any], context: Any) -> Iterator[int]:
        yield 1


class AsyncGenerator:
    """Has an asynchronous generator where a coroutine is due."""

    async def run(self, payload: Mapping[str, Any], context: Any) -> AsyncIterator[int]:
        yield 1


class HandsOn(Hostile):
    """Returns a coroutine from an ordinary method."""

    def run(self, payload: Mapping[str, Any], context: Any) -> Awaitable[Any]:  # type: ignore[override]
        return super().run(payload, context)
