"""Double coding: verdicts given in a batch, asked for again beside answers of other batches.

An order in an answer can reach whatever stands in its batch, also so that the controls
(`controls.py`) do not show it. It cannot reach a batch that it is not in. So where a verdict comes
out the same in two batches that have no other item in common, no order of one answer made it; where
it does not, the item is asked about alone, and what is said then holds.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from app.pipelines.llm import AnswerRejectedError, LLMError
from app.pipelines.llm.parts import in_parts

Item = TypeVar("Item", bound=Hashable)
Verdict = TypeVar("Verdict")


@dataclass(frozen=True, slots=True)
class Doubled(Generic[Item, Verdict]):
    """What came of asking twice.

    Attributes:
        same: items of which both batches said the same.
        alone: item of which they did not -> what is said of it alone.
        open: items without a second verdict, or without one that decides.
    """

    same: list[Item] = field(default_factory=list)
    alone: dict[Item, Verdict] = field(default_factory=dict)
    open: list[Item] = field(default_factory=list)


def apart(
    batches: Sequence[Sequence[Item]],
    size: int,
    answer: Callable[[Item], Hashable] = lambda item: item,
) -> list[list[Item]]:
    """Groups of at most `size` items, such that what stood in one batch is in no group together.

    Args:
        answer: what an item asks about; where it is in several batches, it meets none of them.
    """
    places: dict[Hashable, set[int]] = defaultdict(set)
    for number, batch in enumerate(batches):
        for item in batch:
            places[answer(item)].add(number)
    # What stands in several comes first, while there is most to put beside it.
    left = [sorted(batch, key=lambda item: len(places[answer(item)])) for batch in batches if batch]
    groups = []
    while left:
        # From those with the most left: so the last groups are not of one batch's remains.
        left.sort(key=len, reverse=True)
        group: list[Item] = []
        met: set[int] = set()
        for batch in left:
            where = places[answer(batch[-1])]
            if len(group) < size and met.isdisjoint(where):
                group.append(batch.pop())
                met |= where
        groups.append(group)
        left = [batch for batch in left if batch]
    return groups


async def doubled(
    batches: Sequence[Sequence[Item]],
    size: int,
    told: Mapping[Item, Verdict],
    ask: Callable[[Sequence[Item]], Awaitable[list[Verdict]]],
    is_same: Callable[[Verdict, Verdict], bool],
    answer: Callable[[Item], Hashable] = lambda item: item,
) -> Doubled[Item, Verdict]:
    """Ask again about items of `batches`, as they stood together before.

    Args:
        size: items per call.
        told: what was said of them.
        ask: gives one verdict per item, in their order.
        answer: what an item asks about.
    """
    again = await _asked(apart(batches, size, answer), ask)
    same = [item for item, verdict in again.items() if is_same(told[item], verdict)]
    settled = set(same)
    alone = await one_by_one([item for item in again if item not in settled], ask)
    open_ = [item for batch in batches for item in batch if item not in settled | alone.keys()]
    return Doubled(same, alone, open_)


async def one_by_one(
    items: Sequence[Item], ask: Callable[[Sequence[Item]], Awaitable[list[Verdict]]]
) -> dict[Item, Verdict]:
    """What is said of each item alone, where something is."""
    return await _asked([[item] for item in items], ask)


async def _asked(
    groups: Sequence[Sequence[Item]], ask: Callable[[Sequence[Item]], Awaitable[list[Verdict]]]
) -> dict[Item, Verdict]:
    """What is said of the items of groups, a few of them at once; in the order of the groups."""

    async def about(group: Sequence[Item]) -> dict[Item, Verdict]:
        try:
            return dict(zip(group, await ask(group), strict=True))
        except AnswerRejectedError:
            middle = len(group) // 2
            if not middle:
                return {}
            return await about(group[:middle]) | await about(group[middle:])
        except LLMError:
            return {}

    async def work(part: Sequence[Sequence[Item]]) -> list[dict[Item, Verdict]]:
        return [await about(group) for group in part]

    def failed(_group: Sequence[Item], _problems: list[str]) -> dict[Item, Verdict]:
        return {}

    found: dict[Item, Verdict] = {}
    for each in await in_parts(groups, 1, work, failed):
        found |= each
    return found
