"""The analysis' own stages on labelled answers: prepare, embed, discover once per seed, name."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from app.pipelines.thematic import discover, embed, label, load, prepare
from app.pipelines.thematic.load import Answers
from app.pipelines.thematic.parameters import Parameters, Redact
from app.pipelines.thematic.parts import Span
from app.pipelines.thematic.people import People


@dataclass(frozen=True, slots=True)
class Ready:
    """Answers up to the point where themes are looked for.

    Attributes:
        prepared: the texts, each once.
        question: all that was asked.
        spans: answer -> the texts that it says, none for a non-answer.
        people: text -> how many say it.
        embedded: the texts' vectors.
    """

    prepared: prepare.Prepared
    question: str | None
    spans: list[list[Span]]
    people: People
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
    column_of = {question: column for column, question in enumerate(asked)}
    answers = Answers(
        ids=[str(row) for row in range(len(texts))],
        texts=list(texts),
        groups={},
        columns=[str(column) for column in range(len(asked))],
        questions=asked,
        column_of=[column_of[question] for question in questions] or [0] * len(texts),
        source={},
    )
    prepared = prepare.prepare(answers, Redact())
    return Ready(
        prepared=prepared,
        question=load.asked(answers),
        spans=prepare.spans(answers, prepared),
        people=prepare.people(prepared),
        embedded=asyncio.run(embed.embed(prepared.texts, backend, unheard)),
    )


def find(
    answers: Ready, parameters: Parameters, *, with_verdicts: bool = True
) -> discover.Discovered:
    """The themes, with the lists of words that judge and name nothing, or by vectors alone."""
    texts = answers.prepared.texts if with_verdicts else []
    return asyncio.run(
        discover.discover(answers.embedded, answers.people, parameters, unheard, texts)
    )


def name(answers: Ready, found: discover.Discovered) -> label.Labels:
    """Keywords and names by keywords."""
    return label.label(answers.prepared, answers.people, found, answers.question)


def groups(answers: Ready, found: discover.Discovered) -> Groups:
    """The theme of each answer, and the sub-theme within it."""
    texts = answers.prepared.texts
    finer = [
        subtheme if subtheme >= 0 or theme < 0 else len(found.parent_of) + theme
        for theme, subtheme in zip(found.theme_of, found.subtheme_of, strict=True)
    ]
    themes = [_most_of(spans, found.theme_of, texts) for spans in answers.spans]
    return Groups(
        themes=themes,
        subthemes=[
            _most_of(
                [span for span in spans if found.theme_of[span.text] == theme],
                finer,
                texts,
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
