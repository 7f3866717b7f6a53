"""Answers that are good for some seconds: asked for once at a time, and never older than said."""

import asyncio

import pytest

from app.api.security_cache import BriefCache
from app.domain.errors import DatabaseUnavailableError


class Source:
    """Answers what it is told to, when it is let; counts the questions."""

    def __init__(self, answer: int | None = 1) -> None:
        self.answer = answer
        self.asked = 0
        self.fault: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def load(self, key: str) -> int | None:
        self.asked += 1
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return self.answer


def cache_of(source: Source, seconds: float = 60.0, max_entries: int = 3) -> BriefCache[str, int]:
    return BriefCache(source.load, seconds=seconds, max_entries=max_entries)


async def test_many_who_ask_at_once_ask_once() -> None:
    source = Source()
    source.gate.clear()
    cache = cache_of(source)
    asking = [asyncio.create_task(cache.get("a")) for _ in range(9)]
    await asyncio.sleep(0)
    asking[0].cancel()  # a client that hangs up takes nothing from the others
    await asyncio.sleep(0)
    source.gate.set()

    assert await asyncio.gather(*asking[1:]) == [1] * 8
    assert await cache.get("a") == 1
    assert source.asked == 1


async def test_none_is_not_kept_and_takes_what_was() -> None:
    source = Source()
    cache = cache_of(source, seconds=0.0)
    assert await cache.get("a") == 1
    source.answer = None
    assert await cache.get("a") is None
    assert await cache.get("a") is None
    assert source.asked == 3
    assert not cache._kept


async def test_a_value_is_asked_for_again_before_it_is_too_old() -> None:
    source = Source()
    cache = cache_of(source, seconds=60.0)
    await cache.get("a")
    began, value = cache._kept["a"]
    cache._kept["a"] = (began - 40.0, value)
    source.answer = 2

    assert await cache.get("a") == 1  # at once; the new one is on its way
    await asyncio.gather(*cache._loading.values())
    assert await cache.get("a") == 2
    cache._kept["a"] = (began - 61.0, 2)
    source.fault = DatabaseUnavailableError("away")
    with pytest.raises(DatabaseUnavailableError):
        await cache.get("a")


async def test_a_failure_that_nobody_waits_for_is_silent_and_tried_again() -> None:
    source = Source()
    cache = cache_of(source)
    await cache.get("a")
    began, value = cache._kept["a"]
    cache._kept["a"] = (began - 40.0, value)
    source.fault = DatabaseUnavailableError("away")
    for asked in (2, 3):
        assert await cache.get("a") == 1
        await asyncio.gather(*cache._loading.values(), return_exceptions=True)
        assert source.asked == asked


async def test_it_is_bounded() -> None:
    source = Source()
    cache = cache_of(source, max_entries=3)
    for key in "abcde":
        await cache.get(key)
    assert list(cache._kept) == ["c", "d", "e"]
    source.gate.clear()
    waiting = [asyncio.create_task(cache.get(key)) for key in "xyz"]
    await asyncio.sleep(0)
    with pytest.raises(DatabaseUnavailableError):
        await cache.get("w")
    assert await cache.get("e") == 1
    await cache.close()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert not cache._loading
