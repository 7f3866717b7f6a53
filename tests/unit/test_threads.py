"""Work in threads of the worker's own: who no longer waits for it is not in its way."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from app.worker.threads import in_thread


async def test_what_a_call_returns_or_raises_comes_back() -> None:
    assert await in_thread(lambda: threading.current_thread().name) == "haulage-beside"
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


async def test_a_call_that_is_given_up_before_its_thread_begins_is_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held_up: list[Callable[[], None]] = []
    calls: list[str] = []

    class LateThread:
        def __init__(self, target: Callable[[], None], **_: object) -> None:
            held_up.append(target)

        def start(self) -> None:
            pass

    monkeypatch.setattr(threading, "Thread", LateThread)
    waiting = asyncio.create_task(in_thread(lambda: calls.append("made")))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    [begin] = held_up
    begin()

    assert calls == []
