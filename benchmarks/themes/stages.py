"""The analysis' own stages on labelled answers: prepare and embed once, discover for each seed."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from app.pipelines.thematic import discover, embed, prepare
from app.pipelines.thematic.load import Answers
from app.pipelines.thematic.parameters import Parameters, Redact
from app.pipelines.thematic.parts import Span


@dataclass(frozen=True, slots=True)
class Ready:
    """Answers up to the point where themes are looked for.

    Attributes:
        texts: each once.
        spans: answer -> the texts that it says, none for a non-answer.
        people: text -> how many say it.
        embedded: the texts' vectors.
    """

    texts: list[str]
    spans: list[list[Span]]
    people: list[int]
    embedded: embed.Embedded


@dataclass(frozen=True, slots=True)
class Groups:
    """Answer -> theme and sub-theme, -1 for none; of a long answer, where most of it is.

    An answer of a theme that is not divided has the theme for a sub-theme.
    """

    themes: list[int]
    subthemes: list[int]


async def unheard(done: float, message: str) -> None:
    """Takes a stage's progress and drops it."""


def ready(texts: Sequence[str], questions: Sequence[str] = (), backend: str = "auto") -> Ready:
    """Prepare the answers, each under its own question, and embed them."""
    asked: list[str | None] = [*dict.fromkeys(questions)] or [None]
    answers = Answers(
        ids=[str(row) for row in range(len(texts))],
        texts=list(texts),
        groups={},
        columns=[str(column) for column in range(len(asked))],
        questions=asked,
        column_of=[asked.index(question) for question in questions] or [0] * len(texts),
        source={},
    )
    prepared = prepare.prepare(answers, Redact())
    return Ready(
        texts=prepared.texts,
        spans=prepare.spans(answers, prepared),
        people=prepare.people(prepared),
        embedded=asyncio.run(embed.embed(prepared.texts, backend, unheard)),
    )


def groups(answers: Ready, parameters: Parameters) -> Groups:
    """The themes of the answers, and the sub-themes within them."""
    found = asyncio.run(
        discover.discover(answers.embedded, answers.people, parameters, unheard, answers.texts)
    )
    finer = [
        subtheme if subtheme >= 0 or theme < 0 else len(found.parent_of) + theme
        for theme, subtheme in zip(found.theme_of, found.subtheme_of, strict=True)
    ]
    themes = [_most_of(spans, found.theme_of, answers.texts) for spans in answers.spans]
    return Groups(
        themes=themes,
        subthemes=[
            _most_of(
                [span for span in spans if found.theme_of[span.text] == theme],
                finer,
                answers.texts,
            )
            for spans, theme in zip(answers.spans, themes, strict=True)
        ],
    )


def _most_of(spans: Sequence[Span], group_of: Sequence[int], texts: Sequence[str]) -> int:
    size: Counter[int] = Counter()
    for span in spans:
        if group_of[span.text] >= 0:
            size[group_of[span.text]] += len(texts[span.text])
    return size.most_common(1)[0][0] if size else -1
