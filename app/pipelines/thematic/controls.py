"""Controls: sentences of our own in every batch, whose verdict is known, to tell obedience.

An order hidden in an answer, in whatever words and language, works on what stands beside it. So
each batch holds sentences that were judged before among themselves; where one of them is judged
otherwise now, somebody in that batch has been obeyed. Which ones, and where among the others, no
answer can know. Answers would not do as controls: they may hold the order themselves.
"""

import random
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from app.pipelines.llm import LLMError

PER_BATCH: Final = 2
"""As unlike each other as can be: an order may agree with one of them by chance."""
MOST: Final = 8
CALLS: Final = 2  # to know their verdicts
_PLAIN: Final = ("This is about: {}.",)
_WITH_STANCE: Final = ("I am very pleased with this: {}.", "This was bad, I am displeased: {}.")

Item = TypeVar("Item", bound=Hashable)
Verdict = TypeVar("Verdict")


def room(batch: int) -> int:
    """How many items of a batch are not controls, where there are enough of them."""
    return batch - PER_BATCH if batch > PER_BATCH else batch


def sentences(names: Sequence[str], *, with_stance: bool) -> list[tuple[str, int]]:
    """What controls say, each with the number of the theme that it speaks of."""
    forms = _WITH_STANCE if with_stance else _PLAIN
    return [
        (form.format(name), theme)
        for theme, name in enumerate(names[: MOST // len(forms)])
        for form in forms
    ]


async def firm(
    items: Sequence[Item],
    ask: Callable[[Sequence[Item]], Awaitable[list[Verdict]]],
    is_same: Callable[[Verdict, Verdict], bool],
) -> dict[Item, Verdict]:
    """The controls on which the model says the same twice, in one order and in the other.

    None where it cannot judge them, which is for the batches to tell.
    """
    try:
        told = dict(zip(items, await ask(items), strict=True))
        backwards = items[::-1]
        again = dict(zip(backwards, await ask(backwards), strict=True))
    except LLMError:
        return {}
    return {item: verdict for item, verdict in told.items() if is_same(verdict, again[item])}


class Controls(Generic[Item, Verdict]):
    """Known verdicts, and batches asked about with some of them in between.

    Args:
        known: verdicts that `firm` has found.
        is_same: whether two verdicts on one item agree.
        kind: what a verdict says, part by part; an order can agree with one kind by chance.
    """

    def __init__(
        self,
        known: Mapping[Item, Verdict],
        is_same: Callable[[Verdict, Verdict], bool],
        kind: Callable[[Verdict], tuple[Hashable, ...]],
        seed: int,
    ) -> None:
        self._known = dict(known)
        self._is_same = is_same
        self._kind = kind
        self._seed = seed

    def room(self, batch: int) -> int:
        """How many items of a batch are not controls, with those that there are."""
        return batch - min(batch - room(batch), len(self._known))

    async def ask(
        self,
        part: Sequence[Item],
        ask: Callable[[Sequence[Item]], Awaitable[list[Verdict]]],
        *,
        always: bool = False,
    ) -> tuple[list[Verdict], bool]:
        """The verdicts on `part`, and whether the controls beside it were judged as they are.

        Args:
            ask: gives one verdict per item, in their order.
            always: also beside a single item, which nobody else could suffer from.
        """
        if len(part) <= 1 and not always:
            return await ask(part), True
        # The same batch always has the same controls: a retried job finds its calls again.
        chance = random.Random(f"{self._seed}/{part[0]}/{len(part)}")  # noqa: S311
        controls = self._drawn(chance)
        shown = list(part)
        for control in controls:
            shown.insert(chance.randrange(len(shown) + 1), control)
        judged = dict(zip(shown, await ask(shown), strict=True))
        is_honest = all(self._is_same(self._known[each], judged[each]) for each in controls)
        return [judged[item] for item in part], is_honest

    def _drawn(self, chance: random.Random) -> list[Item]:
        left = list(self._known)
        drawn: list[Item] = []
        while left and len(drawn) < PER_BATCH:
            chance.shuffle(left)
            # The first at random, the second as unlike it as there is one.
            left.sort(key=lambda item: -self._unlike(item, drawn))
            drawn.append(left.pop(0))
        return drawn

    def _unlike(self, item: Item, others: Sequence[Item]) -> int:
        mine = self._kind(self._known[item])
        theirs = [self._kind(self._known[other]) for other in others]
        return sum(one != two for kind in theirs for one, two in zip(mine, kind, strict=True))
