"""The analysis' own stages on labelled answers: prepare and embed once, discover for each seed."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.errors import DatasetError
from app.pipelines.thematic import discover, embed, prepare
from app.pipelines.thematic.load import Answers
from app.pipelines.thematic.parameters import Parameters, Redact


@dataclass(frozen=True, slots=True)
class Ready:
    """Answers up to the point where themes are looked for.

    Attributes:
        texts: each once.
        text_of: answer -> text, -1 for a non-answer.
        people: text -> how many say it.
        embedded: the texts' vectors.
    """

    texts: list[str]
    text_of: list[int]
    people: list[int]
    embedded: embed.Embedded


@dataclass(frozen=True, slots=True)
class Groups:
    """Answer -> theme and sub-theme, -1 for none.

    An answer of a theme that is not divided has the theme for a sub-theme.
    """

    themes: list[int]
    subthemes: list[int]


async def unheard(done: float, message: str) -> None:
    """Takes a stage's progress and drops it."""


def ready(texts: Sequence[str], questions: Sequence[str] = (), backend: str = "auto") -> Ready:
    """Prepare the answers, each under its own question, and embed them."""
    asked: list[str | None] = list(questions) or [None] * len(texts)
    index_of: dict[str, int] = {}
    unique: list[str] = []
    text_of = [-1] * len(texts)
    for question in dict.fromkeys(asked):
        rows = [row for row, its in enumerate(asked) if its == question]
        answers = Answers(ids=[str(row) for row in rows], texts=[texts[row] for row in rows],
                          groups={})  # fmt: skip
        try:
            prepared = prepare.prepare(answers, question, Redact())
        except DatasetError:
            continue  # nobody answered this question
        for row, text in zip(rows, prepared.text_of, strict=True):
            if text < 0:
                continue
            wording = prepared.texts[text]
            text_of[row] = index_of.setdefault(wording.casefold(), len(unique))
            if text_of[row] == len(unique):
                unique.append(wording)
    times = Counter(text_of)
    embedded = asyncio.run(embed.embed(unique, backend, unheard))
    return Ready(unique, text_of, [times[text] for text in range(len(unique))], embedded)


def groups(answers: Ready, parameters: Parameters) -> Groups:
    """The themes of the answers, and the sub-themes within them."""
    found = asyncio.run(
        discover.discover(answers.embedded, answers.people, parameters, unheard, answers.texts)
    )
    finer = [
        subtheme if subtheme >= 0 or theme < 0 else len(found.parent_of) + theme
        for theme, subtheme in zip(found.theme_of, found.subtheme_of, strict=True)
    ]
    return Groups(
        themes=[found.theme_of[text] if text >= 0 else -1 for text in answers.text_of],
        subthemes=[finer[text] if text >= 0 else -1 for text in answers.text_of],
    )
