"""Stage 9, stance: how each answer stands to each of its themes, where that was asked for.

In full mode the assignment has asked already; else pairs of answer and theme are asked in batches,
each with controls (`controls.py`), and in halves where a batch gets no answer in time. Pairs are
coded twice (`doubling.py`): all of them where that was asked for, else one of each batch. A pair
without an answer has no stance, and is counted.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from pydantic import BaseModel

from app.pipelines.llm import AnswerRejectedError, LLMError
from app.pipelines.llm.parts import in_parts
from app.pipelines.thematic.asker import Asker
from app.pipelines.thematic.assigned import Assigned
from app.pipelines.thematic.choosing import STANCES
from app.pipelines.thematic.controls import Controls, firm, sentences
from app.pipelines.thematic.doubling import doubled, one_by_one
from app.pipelines.thematic.label import Labels
from app.pipelines.thematic.milestones import Report
from app.pipelines.thematic.parameters import Parameters
from app.pipelines.thematic.patience import Patience, TooManyError
from app.pipelines.thematic.prepare import Prepared, authors
from app.pipelines.thematic.prompts import (
    Survey,
    items,
    keyed,
    messages,
    one_of,
    reads_like_an_instruction,
    shown,
)

PAIRS_PER_CALL: Final = 20
MOST_AGAIN: Final = 80
"""Calls that may be spent on batches in which an answer was obeyed."""

_TASK: Final = (
    "Say for every entry under `answers` how the answer stands to the theme beside it: positive "
    "(praise, agreement), negative (complaint, disagreement), mixed, or neutral. Judge each entry "
    "by itself, under its own key."
)
_OPPOSITE: Final = {"positive", "negative"}
_Pair = tuple[int, int]


@cache
def _form(pairs: int) -> type[BaseModel]:
    """Made once per size of batch: a class that pydantic has made stays in memory."""
    return keyed("Stances", one_of(STANCES), map(str, range(1, pairs + 1)))


@dataclass(frozen=True, slots=True)
class Stances:
    """How the texts stand to their themes.

    Attributes:
        of: text -> for each of its themes one of STANCES, "" where it is not known.
        unknown: pairs that the model gave no usable answer for.
        lost: why the model was given up on the way, None where it was not.
    """

    of: list[list[str]]
    unknown: int = 0
    lost: str | None = None


def untold(assigned: Sequence[Assigned]) -> Stances:
    """No stance of any text."""
    return Stances([[] for _ in assigned])


async def stance(
    asker: Asker,
    prepared: Prepared,
    labels: Labels,
    assigned: Sequence[Assigned],
    survey: Survey,
    report: Report,
    parameters: Parameters,
) -> Stances:
    """Ask about all pairs of text and theme that have no stance yet."""
    pairs = [
        (text, theme)
        for text, each in enumerate(assigned)
        if not each.stance
        for theme in each.themes
    ]
    judge = _Judge(asker, prepared, labels, survey, report)
    told = await judge.judge(pairs, parameters.seed, is_all=parameters.double_coding == "all")
    return Stances(
        of=[
            each.stance or [told[text, theme] for theme in each.themes]
            for text, each in enumerate(assigned)
        ],
        unknown=sum(not each for each in told.values()),
        lost=asker.lost,
    )


class _Judge:
    def __init__(
        self, asker: Asker, prepared: Prepared, labels: Labels, survey: Survey, report: Report
    ) -> None:
        self._asker = asker
        self._texts = prepared.texts
        self._authors = authors(prepared)
        self._labels = labels
        self._survey = survey
        self._report = report
        self._sentences: list[str] = []
        self._controls = _controls({}, 0)
        self._patience = Patience(self._asked)
        self._obeyed: list[Sequence[_Pair]] = []
        self._honest: list[Sequence[_Pair]] = []
        self._done = 0
        self._of = 0
        self._to_do = 0
        self._again_left = 0

    async def judge(self, pairs: Sequence[_Pair], seed: int, *, is_all: bool) -> dict[_Pair, str]:
        """The stance of each pair, "" where it is not known."""
        self._of = len(pairs)
        suspicious = {t for t, text in enumerate(self._texts) if reads_like_an_instruction(text)}
        alone = [pair for pair in pairs if pair[0] in suspicious]
        plain = [pair for pair in pairs if pair[0] not in suspicious]
        self._to_do = len(pairs) + (len(plain) if is_all else 0)
        told = await self._told(alone, 1)
        size = PAIRS_PER_CALL
        if plain and self._asker.is_there:
            self._patience.lend(plain)
            self._controls = _controls(await self._firm(), seed)
            size = await self._size(plain)
        told |= await self._told(plain, size)
        self._again_left = MOST_AGAIN
        # In the order of the pairs: whose turn it is does not depend on which call came first.
        for part in sorted(self._obeyed, key=lambda part: part[0]):
            told |= await self._again(part)
        await self._code_twice(told, size, seed, is_all=is_all)
        return told

    async def _code_twice(
        self, told: dict[_Pair, str], size: int, seed: int, *, is_all: bool
    ) -> None:
        """Put right what a second batch says otherwise, and what stood beside it."""
        parts = sorted((*self._honest, *self._obeyed), key=lambda part: part[0])
        batches = [[pair for pair in part if told[pair]] for part in parts if len(part) > 1]
        chance = random.Random(seed)  # noqa: S311
        chosen = (
            [pair for batch in batches for pair in batch]
            if is_all
            else [chance.choice(batch) for batch in batches if batch]
        )
        again = await doubled(
            parts, chosen, size, told, self._asked_again, lambda pair: self._authors[pair[0]]
        )
        moved = {pair for pair, alone in again.alone.items() if {told[pair], alone} == _OPPOSITE}
        told |= again.alone
        if is_all:
            told |= dict.fromkeys(again.open, "")
            return
        beside = [
            pair
            for batch in batches
            if not moved.isdisjoint(batch)
            for pair in batch
            if pair not in moved
        ]
        alone = await one_by_one(beside[: self._again_left], self._asked_again)
        told |= {pair: alone.get(pair, "") for pair in beside}

    async def _asked_again(self, part: Sequence[_Pair]) -> list[str]:
        judged = await self._patience.ask(part)
        self._done += len(part)
        words = "asking again beside fewer or other answers"
        await self._report(min(1.0, self._done / self._to_do), words)
        return judged

    async def _firm(self) -> dict[_Pair, str]:
        """Controls, whose texts have negative numbers."""
        told = sentences(self._labels.names, with_stance=True)
        self._sentences = [sentence for sentence, _ in told]
        pairs = [(~at, theme) for at, (_, theme) in enumerate(told)]
        return await firm(pairs, self._patience.ask_by_halves, str.__eq__)

    async def _size(self, pairs: Sequence[_Pair]) -> int:
        """How many pairs the model answers about in time, found out with the first ones.

        Before many are asked about at once: a few late answers in a row, and the model is given up.
        """
        size = self._controls.room(PAIRS_PER_CALL)
        while size > 1 and self._asker.is_there:
            try:
                await self._controls.ask(pairs[:size], self._patience.ask)
            except TooManyError:
                size //= 2
            except LLMError:
                break
            else:
                break
        return size

    async def _told(self, pairs: Sequence[_Pair], size: int) -> dict[_Pair, str]:
        async def work(part: Sequence[_Pair]) -> list[str]:
            judged, is_honest = await self._controls.ask(part, self._patience.ask)
            (self._honest if is_honest else self._obeyed).append(part)
            self._done += len(part)
            words = f"{self._done:,} of {self._of:,} answers to their themes"
            await self._report(self._done / self._to_do, words)
            return judged

        def failed(_pair: _Pair, _problems: list[str]) -> str:
            return ""

        def lost(_pair: _Pair, _error: LLMError) -> str:
            return ""

        answers = await in_parts(pairs, size, work, failed, on_lost=lost)
        return dict(zip(pairs, answers, strict=True))

    async def _again(self, part: Sequence[_Pair]) -> dict[_Pair, str]:
        """The stances of a batch in which somebody was obeyed, asked in halves; else unknown."""
        middle = len(part) // 2
        told: dict[_Pair, str] = {}
        for half in (part[:middle], part[middle:]):
            told |= dict.fromkeys(half, "")
            if self._again_left <= 0 or not self._asker.is_there:
                continue
            self._again_left -= 1
            try:
                judged, is_honest = await self._controls.ask(half, self._asked_again)
            except AnswerRejectedError:
                is_honest = False
            except LLMError:
                continue
            if is_honest:
                told |= dict(zip(half, judged, strict=True))
            elif len(half) > 1:
                told |= await self._again(half)
        return told

    def _text(self, at: int) -> str:
        return self._texts[at] if at >= 0 else self._sentences[~at]

    async def _asked(self, part: Sequence[_Pair]) -> list[str]:
        keys = [str(at) for at in range(1, len(part) + 1)]
        shown_pairs = {
            key: {"answer": shown(self._text(text)), "theme": self._labels.names[theme]}
            for key, (text, theme) in zip(keys, part, strict=True)
        }
        answer = await self._asker.ask(
            "stance",
            messages(_TASK, **self._survey.facts(), answers=shown_pairs),
            _form(len(part)),
        )
        return [str(told) for told in items(answer).values()]


def _controls(known: dict[_Pair, str], seed: int) -> Controls[_Pair, str]:
    return Controls(known, str.__eq__, lambda told: (told,), seed)
