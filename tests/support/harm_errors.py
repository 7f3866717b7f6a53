"""Harms that are exceptions: of odd kinds, or such as cannot be printed; see `support.hostile`."""

import asyncio
import builtins
import threading
from collections.abc import Mapping
from typing import Any, NoReturn


class UnprintableError(Exception):
    """Can be neither printed nor pickled."""

    def __init__(self) -> None:
        super().__init__(threading.Lock())

    def __str__(self) -> str:
        raise RuntimeError("no words")

    def __repr__(self) -> str:
        raise RuntimeError("no picture")

    def __reduce__(self) -> NoReturn:
        raise RuntimeError("no jar")


class ExitingError(Exception):
    """Ends the program of whoever prints it."""

    def __str__(self) -> str:
        raise SystemExit(0)


class OddText(str):
    """Text of which nothing can be made."""

    __slots__ = ()

    def replace(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("irreplaceable")

    def encode(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("no bytes")

    def __len__(self) -> int:
        raise RuntimeError("no length")


class OddTextError(Exception):
    """Speaks in odd text."""

    def __str__(self) -> str:
        return OddText("odd but said")


class _Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in {"__name__", "__qualname__", "__module__"}:
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=_Nameless):  # noqa: N818  without a name for it
    """Does not tell its class's name."""


class LyingError(Exception):
    """Does not tell its class."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            raise RuntimeError("no class")
        return super().__getattribute__(name)


class FalseError(Exception):
    """Counts as nothing."""

    def __bool__(self) -> bool:
        return False


class OwnBaseError(BaseException):
    """Not meant to be caught by anybody."""


async def raise_it(payload: Mapping[str, Any], context: Any) -> None:
    """Raise what the payload names, of here or of Python's own."""
    kind = globals().get(payload["error"]) or getattr(builtins, payload["error"])
    raise kind() if kind is UnprintableError else kind("as the payload says")


async def cancelled_error(payload: Mapping[str, Any], context: Any) -> None:
    raise asyncio.CancelledError("by itself")


async def cancel_itself(payload: Mapping[str, Any], context: Any) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(600)


async def cancel_everything(payload: Mapping[str, Any], context: Any) -> None:
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(600)


async def cancel_the_others(payload: Mapping[str, Any], context: Any) -> str:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0.1)
    await context.progress(0.5, "alone")
    return "done"


async def recurse(payload: Mapping[str, Any], context: Any) -> None:
    _recurse()


def _recurse() -> None:
    _recurse()


async def group(payload: Mapping[str, Any], context: Any) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(raise_it({"error": "ValueError"}, context))
        tasks.create_task(raise_it({"error": "UnprintableError"}, context))


async def deep_group(payload: Mapping[str, Any], context: Any) -> None:
    error: Exception = ValueError("the first reason")
    for _ in range(2_000):
        error = ExceptionGroup("deeper", [error])
    raise error


async def chain_of_causes(payload: Mapping[str, Any], context: Any) -> None:
    error: Exception = ValueError("the first reason")
    for number in range(1_000):
        try:
            raise RuntimeError(f"reason {number}") from error  # noqa: TRY301  as a chain needs it
        except RuntimeError as raised:
            error = raised
    raise error


async def unprintable_cause(payload: Mapping[str, Any], context: Any) -> None:
    try:
        raise UnprintableError  # noqa: TRY301  as a chain needs it
    except UnprintableError as error:
        raise ValueError("because of another") from error


async def unprintable_note(payload: Mapping[str, Any], context: Any) -> None:
    error = ValueError("with a note")
    error.__notes__ = [UnprintableError(), 3]  # type: ignore[list-item]
    raise error


async def choose_without_words(payload: Mapping[str, Any], context: Any) -> None:
    """Give up, ask for a retry or find nothing to do, for a reason that cannot be printed."""
    verb = getattr(context, payload["verb"])
    reason = UnprintableError()
    verb(float("inf"), reason) if payload["verb"] == "retry_later" else verb(reason)
