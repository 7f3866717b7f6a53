"""Double coding: verdicts given in a batch, asked for again beside answers of other batches.

An order in an answer can reach whatever stands in its batch, also so that the controls
(`controls.py`) do not show it. It cannot reach a batch that nothing of its author is in. So where a
verdict comes out the same in two batches that have no other author in common, no order of one
person made it; where it does not, the item is asked about alone, and what is said then holds.
"""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
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
    chosen: Collection[Item],
    size: int,
    author: Callable[[Item], Hashable],
) -> list[list[Item]]:
    """The chosen items in groups of at most `size`: who met in a batch meets in none of them.

    Nor do others of theirs, where somebody's items stood in several batches.
    """
    places: dict[Hashable, set[int]] = defaultdict(set)
    for number, batch in enumerate(batches):
        for item in batch:
            places[author(item)].add(number)
    wanted = set(chosen)
    in_turn = [(at, item) for at, batch in enumerate(batches) for item in batch if item in wanted]
    most = max(Counter(at for at, _ in in_turn).values(), default=0)
    # One group after the other gets an item, so those of one batch get into different ones. What
    # stood in several batches comes first, while there is most room.
    groups: list[list[Item]] = [[] for _ in range(fewest(len(in_turn), most, size))]
    met: list[set[int]] = [set() for _ in groups]
    turn = 0
    for _, item in sorted(in_turn, key=lambda each: -len(places[author(each[1])])):
        where = places[author(item)]
        for at in chain(range(turn, len(groups)), range(turn)):
            if len(groups[at]) < size and met[at].isdisjoint(where):
                break
        else:
            at = len(groups)
            groups.append([])
            met.append(set())
        groups[at].append(item)
        met[at] |= where
        turn = (at + 1) % len(groups)
    return [group for group in groups if group]


def fewest(items: int, most: int, size: int) -> int:
    """Groups of at most `size` that `items` take, where `most` of them stood in one batch."""
    return max(-(-items // size), most)


async def doubled(
    batches: Sequence[Sequence[Item]],
    chosen: Collection[Item],
    size: int,
    told: Mapping[Item, Verdict],
    ask: Callable[[Sequence[Item]], Awaitable[list[Verdict]]],
    author: Callable[[Item], Hashable],
) -> Doubled[Item, Verdict]:
    """Ask again about the chosen ones of `batches`, as items stood together before.

    Args:
        size: items per call.
        told: what was said of them.
        ask: gives one verdict per item, in their order.
        author: whose an item is.
    """
    again = await _asked(apart(batches, chosen, size, author), ask)
    same = [item for item, verdict in again.items() if told[item] == verdict]
    settled = set(same)
    alone = await one_by_one([item for item in again if item not in settled], ask)
    settled |= alone.keys()
    return Doubled(same, alone, [item for item in chosen if item not in settled])


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
