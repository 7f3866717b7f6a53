"""The assignment by a model: closed lists, batches as large as it can judge, orders found out.

How many answers the model can judge in one call is measured first: some are asked about singly and
again in batches, and the largest batch that says the same is used.

An order in an answer, in whatever words and language, can reach the other answers of its batch. So
every batch holds controls (`controls.py`), and one whose controls are judged otherwise than before,
or that contradicts the clusters more than the singly judged answers make likely, is asked again in
halves, down to single answers. What is left of the verdicts of batches is coded twice
(`doubling.py`): all of them where that was asked for, else those that the vectors support least.
"""

import math
import random
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.pipelines.llm import AnswerRejectedError, LLMError
from app.pipelines.llm.parts import in_parts
from app.pipelines.thematic.asker import Asker
from app.pipelines.thematic.assigned import Assigned, Assignments, overlap, says_the_same
from app.pipelines.thematic.choosing import OTHER, Question
from app.pipelines.thematic.controls import Controls, firm, sentences
from app.pipelines.thematic.doubling import doubled, one_by_one
from app.pipelines.thematic.doubts import Doubts
from app.pipelines.thematic.label import Labels
from app.pipelines.thematic.milestones import Report
from app.pipelines.thematic.patience import Patience, TooManyError
from app.pipelines.thematic.prepare import Prepared, authors
from app.pipelines.thematic.prompts import Survey, reads_like_an_instruction

BATCHES: Final = (20, 10, 5)
CALIBRATED_ON: Final = 18  # with two controls the largest batch
AGREEMENT: Final = 0.8
"""Least mean overlap (Jaccard) of themes, asked singly and in a batch, for the batch to be used."""

MOST_SEARCH: Final = 16
"""Calls that may be spent on finding orders among the answers of the calibration."""

UNLIKELY: Final = 0.001
"""A batch is asked again where so many contradictions to the clusters are less likely than this;
of a thousand batches of an honest model it is about one."""
LEAST_SUSPECTED: Final = 4  # answers of a batch; fewer contradictions than these are no sign
MOST_AGAIN: Final = 40
"""Calls that may be spent on asking again, and one more for every batch. What they do not suffice
for is left to the clusters."""


class ByModel:
    """Judges all texts of an analysis."""

    def __init__(
        self,
        asker: Asker,
        prepared: Prepared,
        labels: Labels,
        survey: Survey,
        nearby: list[Assigned],
        cosine: NDArray[np.float32],
        report: Report,
    ) -> None:
        self._asker = asker
        self._texts = prepared.texts
        self._authors = authors(prepared)
        self._question = Question(labels, survey)
        self._nearby = nearby
        self._cosine = cosine
        self._doubts = Doubts(cosine)
        self._report = report
        self._done = 0
        self._of = 0
        self._fallen_back = 0
        self._sentences: list[str] = []
        self._patience = Patience(self._asked)
        self._controls = _controls({}, 0)
        self._judged: list[tuple[Sequence[int], list[Assigned], bool]] = []
        self._by_itself: set[int] = set()
        self._search_left = MOST_SEARCH
        self._again_left = 0

    async def assign(self, seed: int, double_coding: str, *, with_stance: bool) -> Assignments:
        """Judge some texts singly and in batches, then the rest in the largest batches that do."""
        self._question.with_stance = with_stance
        alone = {t for t, text in enumerate(self._texts) if reads_like_an_instruction(text)}
        plain = [text for text in range(len(self._texts)) if text not in alone]
        drawn = random.Random(seed).sample(plain, min(CALIBRATED_ON, len(plain)))  # noqa: S311
        sample = sorted(drawn)
        is_all = double_coding == "all"
        self._of = len(self._texts) + (len(plain) - len(sample) if is_all else 0)
        assigned = dict(zip(sample, await self._judge(sample, 1), strict=True))
        rest = [text for text in plain if text not in assigned]
        self._patience.lend(rest)
        agreements: dict[str, float] = {}
        batch = 1
        if rest and self._asker.is_there:
            self._controls = _controls(await self._firm(), seed)
            batch = await self._calibrate(sample, assigned, agreements)
        apart = sorted(alone)
        assigned |= dict(zip(apart, await self._judge(apart, 1), strict=True))
        self._judged.clear()
        size = self._controls.room(batch)
        assigned |= dict(zip(rest, await self._judge(rest, size), strict=True))
        self._again_left = MOST_AGAIN + len(self._judged)
        usual = [self._contradicts(text, assigned[text]) for text in sample]
        # In the order of the texts, and one after the other: whose turn it is does not depend on
        # which call comes back first.
        for part, judged, is_honest in sorted(self._judged, key=lambda each: each[0][0]):
            if not is_honest or self._is_suspicious(part, judged, usual):
                assigned |= await self._again(part, judged, is_honest=is_honest)
        twice, same = await self._code_twice(assigned, batch, is_all=is_all)
        return Assignments(
            of=[assigned[text] for text in range(len(self._texts))],
            batch=batch,
            agreements=agreements,
            doubled=twice,
            doubled_same=same,
            fallen_back=self._fallen_back,
            lost=self._asker.lost,
        )

    async def _calibrate(
        self, sample: list[int], singly: dict[int, Assigned], agreements: dict[str, float]
    ) -> int:
        """The largest batch in which the sample is judged as it was singly.

        A batch that gets no usable answer in time is too large for the model. What got none singly
        tells nothing of batches, and would spoil its own.
        """
        sample = [text for text in sample if _is_told(singly[text])]
        for batch in BATCHES:
            size = self._controls.room(batch)
            again: dict[int, Assigned] = {}
            try:
                for start in range(0, len(sample), size):
                    again |= await self._asked_without_orders(sample[start : start + size])
            except AnswerRejectedError:
                agreements[str(batch)] = 0.0
                continue
            except LLMError:
                return batch
            agreed = sum(overlap(singly[text], told) for text, told in again.items())
            agreements[str(batch)] = round(agreed / max(1, len(again)), 4)
            if agreements[str(batch)] >= AGREEMENT:
                return batch
        return 1

    async def _asked_without_orders(self, part: Sequence[int]) -> dict[int, Assigned]:
        """A batch of the calibration, which is to tell of the model and not of an order in it."""
        try:
            judged, is_honest = await self._controls.ask(part, self._patience.ask)
        except TooManyError:
            raise
        except AnswerRejectedError:
            # One answer may have brought it about, or so many are too much for the model.
            if not (obeyed := await self._obeyed(part)):
                raise
        else:
            obeyed = [] if is_honest else await self._obeyed(part)
        if obeyed:
            part = [text for text in part if text not in obeyed]
            judged, _ = await self._controls.ask(part, self._patience.ask)
        return dict(zip(part, judged, strict=True))

    async def _obeyed(self, part: Sequence[int]) -> list[int]:
        """The texts of a batch beside which controls are judged otherwise, as far as calls reach.

        None where the model is out of its depth with so many: by halves it is honest.
        """
        if len(part) == 1:
            return list(part)
        middle = len(part) // 2
        found = []
        for half in (part[:middle], part[middle:]):
            if self._search_left <= 0:
                break
            self._search_left -= 1
            try:
                _, is_honest = await self._controls.ask(half, self._patience.ask, always=True)
            except TooManyError:
                raise
            except AnswerRejectedError:
                is_honest = False
            if not is_honest:
                found += await self._obeyed(half)
        return found

    async def _firm(self) -> dict[int, Assigned]:
        """Controls by their numbers, which are negative."""
        told = sentences(self._question.names, with_stance=self._question.with_stance)
        self._sentences = [sentence for sentence, _ in told]
        controls = [~at for at in range(len(told))]
        return await firm(controls, self._patience.ask_by_halves, says_the_same)

    async def _judge(self, texts: Sequence[int], size: int) -> list[Assigned]:
        """What the model says of each text; the clusters' word where it is lost."""

        async def work(part: Sequence[int]) -> list[Assigned]:
            judged, is_honest = await self._controls.ask(part, self._patience.ask)
            self._judged.append((part, judged, is_honest))
            await self._tell(len(part))
            return judged

        def failed(_text: int, problems: list[str]) -> Assigned:
            return _failed(problems)

        def lost(text: int, _error: LLMError) -> Assigned:
            # A known cluster says more than a hole, and the result tells that it is one.
            self._fallen_back += 1
            return self._nearby[text]

        return await in_parts(texts, size, work, failed, on_lost=lost)

    def _contradicts(self, text: int, judged: Assigned) -> bool:
        return overlap(judged, self._nearby[text]) == 0

    def _is_suspicious(
        self, part: Sequence[int], judged: Sequence[Assigned], usual: Sequence[bool]
    ) -> bool:
        """Whether a batch contradicts the clusters more often than texts judged singly do."""
        against = sum(map(self._contradicts, part, judged))
        if against < LEAST_SUSPECTED:
            return False
        return _at_least(against, len(part), sum(usual), len(usual)) < UNLIKELY

    async def _again(
        self, part: Sequence[int], judged: Sequence[Assigned], *, is_honest: bool
    ) -> dict[int, Assigned]:
        """The verdicts on a suspicious batch: what contradicts the clusters, the text alone has."""
        told = dict(zip(part, judged, strict=True))
        if len(part) == 1:
            self._by_itself.update(part)
            return told
        if is_honest and not any(map(self._contradicts, part, judged)):
            return told
        middle = len(part) // 2
        for half in (part[:middle], part[middle:]):
            if self._again_left <= 0 or not self._asker.is_there:
                told |= self._left_to_the_clusters(half)
                continue
            self._again_left -= 1
            try:
                again, holds = await self._controls.ask(half, self._asked_again)
                told |= await self._again(half, again, is_honest=holds)
            except AnswerRejectedError as error:
                alone = len(half) == 1
                told |= (
                    {half[0]: _failed(error.problems)}
                    if alone
                    else await self._again(half, [told[text] for text in half], is_honest=False)
                )
            except LLMError:
                told |= self._left_to_the_clusters(half)
        return told

    async def _code_twice(
        self, assigned: dict[int, Assigned], size: int, *, is_all: bool
    ) -> tuple[int, int]:
        """Put right what a second batch says otherwise; how many were asked, and agreed, twice."""
        parts = [part for part, _, _ in sorted(self._judged, key=lambda each: each[0][0])]
        batches = [
            [text for text in part if self._is_of_a_batch(text, assigned[text])]
            for part in parts
            if len(part) > 1
        ]
        chosen = (
            [text for batch in batches for text in batch]
            if is_all
            else self._doubts.of(batches, assigned, size)
        )
        again = await doubled(
            parts, chosen, size, assigned, self._asked_again, self._authors.__getitem__
        )
        beside = [
            other
            for batch in batches
            for text in batch
            if text in again.alone
            for other in self._doubts.beside(text, assigned, again.alone[text], batch)
        ]
        assigned |= again.alone
        if is_all:
            assigned |= self._left_to_the_clusters(again.open)
        else:
            assigned |= await self._alone(beside)
        return len(again.same) + len(again.alone), len(again.same)

    def _is_of_a_batch(self, text: int, judged: Assigned) -> bool:
        return _is_told(judged) and text not in self._by_itself

    async def _alone(self, texts: Sequence[int]) -> dict[int, Assigned]:
        """What is said of each text by itself, as far as calls reach."""
        self._again_left, calls = max(0, self._again_left - len(texts)), self._again_left
        told = await one_by_one(texts[:calls], self._asked_again)
        return told | self._left_to_the_clusters([text for text in texts if text not in told])

    def _left_to_the_clusters(self, part: Sequence[int]) -> dict[int, Assigned]:
        self._fallen_back += len(part)
        return {text: self._nearby[text] for text in part}

    async def _tell(self, more: int) -> None:
        self._done += more
        words = f"{self._done:,} of {len(self._texts):,} texts"
        await self._report(self._done / self._of, words)

    async def _asked_again(self, part: Sequence[int]) -> list[Assigned]:
        judged = await self._patience.ask(part)
        self._done += len(part)
        words = "asking again beside fewer or other answers"
        await self._report(min(1.0, self._done / self._of), words)
        return judged

    async def _asked(self, part: Sequence[int]) -> list[Assigned]:
        """The verdicts on texts, and on controls by their negative numbers."""
        texts = [self._texts[at] if at >= 0 else self._sentences[~at] for at in part]
        given = await self._question.ask(self._asker, texts)
        return [
            self._placed(text, themes, stance)
            for text, (themes, stance) in zip(part, given, strict=True)
        ]

    def _placed(self, text: int, themes: list[int | str], stance: list[str]) -> Assigned:
        numbers = [theme for theme in themes if isinstance(theme, int)]
        if not numbers:
            status = "other" if themes[0] == OTHER else "non_answer"
            return Assigned(status, [], None, "llm")
        score = round(float(self._cosine[text, numbers[0]]), 4) if text >= 0 else None
        return Assigned("assigned", numbers, score, "llm", None, stance)


def _controls(known: dict[int, Assigned], seed: int) -> Controls[int, Assigned]:
    def kind(verdict: Assigned) -> tuple[object, object]:
        theme = verdict.themes[0] if verdict.themes else verdict.status
        return theme, (verdict.stance or [""])[0]

    return Controls(known, says_the_same, kind, seed)


def _is_told(judged: Assigned) -> bool:
    return judged.method == "llm" and judged.status != "failed"


def _failed(problems: Sequence[str]) -> Assigned:
    why = "; ".join(problems[:3])[:300] or "no usable answer"
    return Assigned("failed", [], None, "llm", why)


def _at_least(hits: int, of: int, seen: int, seen_of: int) -> float:
    """The chance of `hits` or more `of` so many where `seen` were `seen_of` so many.

    Beta-binomial with an even prior: the rate itself is known from a small sample only.
    """
    against, along = seen + 1, seen_of - seen + 1
    return sum(
        math.comb(of, each)
        * math.exp(_log_beta(each + against, of - each + along) - _log_beta(against, along))
        for each in range(hits, of + 1)
    )


def _log_beta(first: int, second: int) -> float:
    return math.lgamma(first) + math.lgamma(second) - math.lgamma(first + second)
