"""Many items asked about in batches: a few at once, results in order, one bad item alone."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from app.pipelines.llm.interface import AnswerRejectedError, LLMError

# More than any client has under way (64), so that it never waits for a question. Not all at once:
# 8,000 questions begun together took 26 s of the loop and 314 MiB before the first was sent.
AT_ONCE: Final = 68

X = TypeVar("X")
Y = TypeVar("Y")


async def in_parts(
    items: Sequence[X],
    size: int,
    work: Callable[[Sequence[X]], Awaitable[list[Y]]],
    on_failed: Callable[[X, list[str]], Y],
    *,
    on_lost: Callable[[X, LLMError], Y] | None = None,
) -> list[Y]:
    """`work` done on all items in batches of `size`, results in the order of the items.

    A batch whose answer is rejected is halved, down to single items. At most AT_ONCE batches are
    begun and not finished.

    Args:
        work: gives one result per item, in their order.
        on_failed: the result of an item that failed alone, from its problems.
        on_lost: the result of an item that a lost server or a spent budget left without an
            answer; without it such an error ends the whole, and the other calls under way.
    """

    async def done(part: Sequence[X]) -> list[Y]:
        try:
            results = await work(part)
        except AnswerRejectedError as error:
            if len(part) == 1:
                return [on_failed(part[0], error.problems)]
            middle = len(part) // 2
            return await done(part[:middle]) + await done(part[middle:])
        except LLMError as error:
            if on_lost is None:
                raise
            return [on_lost(item, error) for item in part]
        if len(results) != len(part):
            raise ValueError(f"{len(results)} results for {len(part)} items")
        return results

    starts = iter(range(0, len(items), size))
    finished: dict[int, list[Y]] = {}

    async def go_on() -> None:
        for start in starts:
            finished[start] = await done(items[start : start + size])

    workers = [asyncio.ensure_future(go_on()) for _ in range(min(AT_ONCE, -(-len(items) // size)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [result for start in sorted(finished) for result in finished[start]]
