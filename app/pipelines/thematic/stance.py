"""Stage 9, stance: how each answer stands to each of its themes, where that was asked for.

In full mode the assignment has asked already; else pairs of answer and theme are asked in batches.
A pair without an answer has no stance, and is counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from pydantic import BaseModel

from app.pipelines.llm import LLMError
from app.pipelines.llm.parts import in_parts
from app.pipelines.thematic.asker import Asker
from app.pipelines.thematic.assign import Assigned
from app.pipelines.thematic.choosing import STANCES
from app.pipelines.thematic.label import Labels
from app.pipelines.thematic.milestones import Report
from app.pipelines.thematic.prepare import Prepared
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

_TASK: Final = (
    "Say for every entry under `answers` how the answer stands to the theme beside it: positive "
    "(praise, agreement), negative (complaint, disagreement), mixed, or neutral. Judge each entry "
    "by itself, under its own key."
)
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
) -> Stances:
    """Ask about all pairs of text and theme that have no stance yet."""
    pairs = [
        (text, theme)
        for text, each in enumerate(assigned)
        if not each.stance
        for theme in each.themes
    ]
    suspicious = {t for t, text in enumerate(prepared.texts) if reads_like_an_instruction(text)}
    alone = [pair for pair in pairs if pair[0] in suspicious]
    plain = [pair for pair in pairs if pair[0] not in suspicious]
    done = 0

    async def work(part: Sequence[_Pair]) -> list[str]:
        nonlocal done
        keys = [str(at) for at in range(1, len(part) + 1)]
        shown_pairs = {
            key: {"answer": shown(prepared.texts[text]), "theme": labels.names[theme]}
            for key, (text, theme) in zip(keys, part, strict=True)
        }
        answer = await asker.ask(
            "stance",
            messages(_TASK, **survey.facts(), answers=shown_pairs),
            _form(len(part)),
        )
        done += len(part)
        await report(done / len(pairs), f"{done:,} of {len(pairs):,} answers to their themes")
        return [str(told) for told in items(answer).values()]

    def failed(_pair: _Pair, _problems: list[str]) -> str:
        return ""

    def lost(_pair: _Pair, _error: LLMError) -> str:
        return ""

    told: dict[_Pair, str] = {}
    for group, size in ((alone, 1), (plain, PAIRS_PER_CALL)):
        answers = await in_parts(group, size, work, failed, on_lost=lost)
        told |= dict(zip(group, answers, strict=True))
    return Stances(
        of=[
            each.stance or [told[text, theme] for theme in each.themes]
            for text, each in enumerate(assigned)
        ],
        unknown=sum(not each for each in told.values()),
        lost=asker.lost,
    )
