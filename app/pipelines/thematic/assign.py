"""Stage 7, assign: to which themes each answer belongs, and by whose word.

Without the model an answer belongs where its cluster is, and by nearness to a second theme or to
the codes of a given codebook. In full mode the model chooses from a closed list of theme names,
several at once, every answer under a key of its own. How many answers it can judge in one call is
measured first: some are asked about singly and again in batches, and the largest batch that says
the same is used.

An order in an answer, in whatever words and language, can reach the other answers of its batch. So
a batch that contradicts the clusters more than the singly judged answers make likely is asked
again in halves, down to single answers.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.pipelines.llm import AnswerRejectedError, LLMError
from app.pipelines.llm.parts import in_parts
from app.pipelines.thematic import codebook
from app.pipelines.thematic.asker import Asker
from app.pipelines.thematic.choosing import OTHER, Question
from app.pipelines.thematic.discover import Discovered
from app.pipelines.thematic.embed import Embedded
from app.pipelines.thematic.label import Labels
from app.pipelines.thematic.milestones import Report
from app.pipelines.thematic.name import centres
from app.pipelines.thematic.parameters import Parameters
from app.pipelines.thematic.prepare import Prepared
from app.pipelines.thematic.prompts import (
    Survey,
    reads_like_an_instruction,
)

SECOND_WITHIN: Final = 0.05
SECOND_LEAST: Final = 0.5
BATCHES: Final = (20, 10, 5)
CALIBRATED_ON: Final = 20
AGREEMENT: Final = 0.8
"""Least mean overlap (Jaccard) of themes, asked singly and in a batch, for the batch to be used."""

UNLIKELY: Final = 0.001
"""A batch is asked again where so many contradictions to the clusters are less likely than this;
of a thousand batches of an honest model it is about one."""
LEAST_SUSPECTED: Final = 4  # answers of a batch; fewer contradictions than these are no sign
MOST_AGAIN: Final = 40
"""Calls that may be spent on asking again, and one more for every batch. What they do not suffice
for is left to the clusters."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """Where one text belongs.

    Attributes:
        status: "assigned", "other", "non_answer" or "failed".
        themes: numbers, the primary one first; empty unless assigned.
        score: cosine to the primary theme's centre, None without one.
        method: "cluster", "similarity", "codebook" or "llm"; None for a non-answer by rule.
        reason: why it failed, None where it did not.
        stance: one of STANCES for each of `themes`; empty where it was not asked for.
    """

    status: str
    themes: list[int]
    score: float | None
    method: str | None
    reason: str | None = None
    stance: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Assignments:
    """Where all texts belong.

    Attributes:
        of: by text.
        batch: answers per call that the calibration chose, None without the model.
        agreements: batch size -> overlap with the answers judged singly.
        fallen_back: texts that the model was lost for; the clusters' word stands for them.
        suggested: groups of texts in none of the codes, with a codebook.
        lost: why the model was given up on the way, None where it was not.
    """

    of: list[Assigned]
    batch: int | None = None
    agreements: dict[str, float] = field(default_factory=dict)
    fallen_back: int = 0
    suggested: list[list[int]] = field(default_factory=list)
    lost: str | None = None


async def assign(
    asker: Asker,
    *,
    prepared: Prepared,
    people: list[int],
    embedded: Embedded,
    codes: NDArray[np.float16],
    found: Discovered,
    labels: Labels,
    survey: Survey,
    parameters: Parameters,
    report: Report,
) -> Assignments:
    """Assign every text."""
    cosine = _cosine(embedded, codes, found)
    nearby = _by_codes(cosine, found) if len(codes) else _by_clusters(cosine, found, parameters)
    outcome = Assignments(nearby)
    if parameters.mode == "full" and parameters.llm is not None:
        by_model = _ByModel(asker, prepared.texts, labels, survey, nearby, cosine, report)
        outcome = await by_model.assign(parameters.seed, with_stance=parameters.stance)
    if not len(codes):
        return outcome
    others = [text for text, each in enumerate(outcome.of) if each.status == "other"]
    suggested = await codebook.suggest(others, prepared.texts, embedded, people, parameters, report)
    return Assignments(
        outcome.of, outcome.batch, outcome.agreements, outcome.fallen_back, suggested, outcome.lost
    )


def _cosine(
    embedded: Embedded, codes: NDArray[np.float16], found: Discovered
) -> NDArray[np.float32]:
    """Text and theme -> cosine to the theme's centre or code."""
    members = [
        [text for text, of in enumerate(found.theme_of) if of == theme]
        for theme in range(len(found.cohesion))
    ]
    middle = codes.astype(np.float32) if len(codes) else centres(embedded.vectors, members)
    cosine: NDArray[np.float32] = embedded.vectors.astype(np.float32) @ middle.astype(np.float32).T
    return cosine


def _by_clusters(
    cosine: NDArray[np.float32], found: Discovered, parameters: Parameters
) -> list[Assigned]:
    """The cluster's theme; in name mode a second one that is as near."""
    wants_second = parameters.mode != "keywords" and parameters.llm is not None
    assigned = []
    for text, theme in enumerate(found.theme_of):
        if theme < 0:
            assigned.append(Assigned("other", [], None, "cluster"))
            continue
        least = max(SECOND_LEAST, float(cosine[text, theme]) - SECOND_WITHIN)
        second = _nearest_but(cosine[text], theme, least) if wants_second else []
        method = "similarity" if second else "cluster"
        assigned.append(Assigned("assigned", [theme, *second], found.score[text], method))
    return assigned


def _by_codes(cosine: NDArray[np.float32], found: Discovered) -> list[Assigned]:
    assigned = []
    for text, theme in enumerate(found.theme_of):
        if theme < 0:
            assigned.append(Assigned("other", [], None, "codebook"))
            continue
        least = max(codebook.LEAST_COSINE, found.score[text] - codebook.SECOND_WITHIN)
        second = _nearest_but(cosine[text], theme, least)
        assigned.append(Assigned("assigned", [theme, *second], found.score[text], "codebook"))
    return assigned


def _nearest_but(cosine: NDArray[np.float32], theme: int, least: float) -> list[int]:
    others = cosine.copy()
    others[theme] = -np.inf
    best = int(others.argmax())
    return [best] if others[best] >= least else []


class _ByModel:
    def __init__(
        self,
        asker: Asker,
        texts: list[str],
        labels: Labels,
        survey: Survey,
        nearby: list[Assigned],
        cosine: NDArray[np.float32],
        report: Report,
    ) -> None:
        self._asker = asker
        self._texts = texts
        self._question = Question(labels, survey)
        self._nearby = nearby
        self._cosine = cosine
        self._report = report
        self._done = 0
        self._fallen_back = 0
        self._judged: list[tuple[Sequence[int], list[Assigned]]] = []
        self._again_left = 0

    async def assign(self, seed: int, *, with_stance: bool) -> Assignments:
        """Judge some texts singly and in batches, then the rest in the largest batches that do."""
        self._question.with_stance = with_stance
        alone = {t for t, text in enumerate(self._texts) if reads_like_an_instruction(text)}
        plain = [text for text in range(len(self._texts)) if text not in alone]
        drawn = random.Random(seed).sample(plain, min(CALIBRATED_ON, len(plain)))  # noqa: S311
        sample = sorted(drawn)
        assigned = dict(zip(sample, await self._judge(sample, 1), strict=True))
        rest = [text for text in plain if text not in assigned]
        agreements: dict[str, float] = {}
        batch = 1
        if rest and self._asker.is_there:
            batch = await self._calibrate(sample, assigned, agreements)
        apart = sorted(alone)
        assigned |= dict(zip(apart, await self._judge(apart, 1), strict=True))
        self._judged.clear()
        assigned |= dict(zip(rest, await self._judge(rest, batch), strict=True))
        self._again_left = MOST_AGAIN + len(self._judged)
        usual = [self._contradicts(text, assigned[text]) for text in sample]
        # In the order of the texts, and one after the other: whose turn it is does not depend on
        # which call comes back first.
        for part, judged in sorted(self._judged, key=lambda each: each[0][0]):
            if self._is_suspicious(part, judged, usual):
                assigned |= await self._again(part, judged)
        return Assignments(
            of=[assigned[text] for text in range(len(self._texts))],
            batch=batch,
            agreements=agreements,
            fallen_back=self._fallen_back,
            lost=self._asker.lost,
        )

    async def _calibrate(
        self, sample: list[int], singly: dict[int, Assigned], agreements: dict[str, float]
    ) -> int:
        """The largest batch in which the sample is judged as it was singly."""
        for size in BATCHES:
            try:
                again = [
                    judged
                    for start in range(0, len(sample), size)
                    for judged in await self._asked(sample[start : start + size])
                ]
            except AnswerRejectedError:
                agreements[str(size)] = 0.0
                continue
            except LLMError:
                return size
            pairs = zip((singly[text] for text in sample), again, strict=True)
            overlap = sum(_overlap(one, other) for one, other in pairs) / len(sample)
            agreements[str(size)] = round(overlap, 4)
            if overlap >= AGREEMENT:
                return size
        return 1

    async def _judge(self, texts: Sequence[int], size: int) -> list[Assigned]:
        """What the model says of each text; the clusters' word where it is lost."""

        async def work(part: Sequence[int]) -> list[Assigned]:
            judged = await self._asked(part)
            self._judged.append((part, judged))
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
        return _overlap(judged, self._nearby[text]) == 0

    def _is_suspicious(
        self, part: Sequence[int], judged: Sequence[Assigned], usual: Sequence[bool]
    ) -> bool:
        """Whether a batch contradicts the clusters more often than texts judged singly do."""
        against = sum(map(self._contradicts, part, judged))
        if against < LEAST_SUSPECTED:
            return False
        return _at_least(against, len(part), sum(usual), len(usual)) < UNLIKELY

    async def _again(self, part: Sequence[int], judged: Sequence[Assigned]) -> dict[int, Assigned]:
        """The verdicts on a suspicious batch: what contradicts the clusters, the text alone has."""
        told = dict(zip(part, judged, strict=True))
        if len(part) == 1 or not any(map(self._contradicts, part, judged)):
            return told
        middle = len(part) // 2
        for half in (part[:middle], part[middle:]):
            if self._again_left <= 0 or not self._asker.is_there:
                told |= self._left_to_the_clusters(half)
                continue
            self._again_left -= 1
            try:
                told |= await self._again(half, await self._asked(half))
            except AnswerRejectedError as error:
                alone = len(half) == 1
                told |= (
                    {half[0]: _failed(error.problems)}
                    if alone
                    else await self._again(half, [told[text] for text in half])
                )
            except LLMError:
                told |= self._left_to_the_clusters(half)
        return told

    def _left_to_the_clusters(self, part: Sequence[int]) -> dict[int, Assigned]:
        self._fallen_back += len(part)
        return {text: self._nearby[text] for text in part}

    async def _tell(self, more: int) -> None:
        self._done += more
        total = len(self._texts)
        await self._report(min(1.0, self._done / total), f"{self._done:,} of {total:,} texts")

    async def _asked(self, part: Sequence[int]) -> list[Assigned]:
        given = await self._question.ask(self._asker, [self._texts[text] for text in part])
        return [
            self._placed(text, themes, stance)
            for text, (themes, stance) in zip(part, given, strict=True)
        ]

    def _placed(self, text: int, themes: list[int | str], stance: list[str]) -> Assigned:
        numbers = [theme for theme in themes if isinstance(theme, int)]
        if not numbers:
            status = "other" if themes[0] == OTHER else "non_answer"
            return Assigned(status, [], None, "llm")
        score = round(float(self._cosine[text, numbers[0]]), 4)
        return Assigned("assigned", numbers, score, "llm", None, stance)


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


def _overlap(one: Assigned, other: Assigned) -> float:
    """Jaccard of what two judgements say."""
    first: set[Any] = set(one.themes) or {one.status}
    second: set[Any] = set(other.themes) or {other.status}
    return len(first & second) / len(first | second)
