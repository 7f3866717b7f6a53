"""Insights worded by the model: from computed facts alone, each sentence checked against them.

The model sees facts with their numbers, never the answers. A sentence names the facts that it
rests on; figures, names in quotation marks and words that are not theirs make it void. What holds
is kept, whatever becomes of the rest.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, create_model

from app.pipelines.llm import AnswerRejectedError, LLMError
from app.pipelines.thematic.asker import Asks, Sparing, reason
from app.pipelines.thematic.claims import wrong_words
from app.pipelines.thematic.figures import wrong_figures
from app.pipelines.thematic.insights import Insights, Sentence, percent
from app.pipelines.thematic.prepare import clean
from app.pipelines.thematic.prompts import Survey, bounded, messages, one_of

MOST_SENTENCES: Final = 8
MOST_FACTS: Final = 3
SENTENCE_CHARACTERS: Final = range(20, 401)

_TASK: Final = (
    "Write up to eight sentences that tell a reader the most important findings of a survey, from "
    "the facts under `facts` alone. Under `facts` of each sentence list the ids of the one to "
    "three facts that it rests on. Use only figures of those facts, written as they are there, in "
    "digits. Write plain English. Compare, judge and deny only in the very words of a fact, such "
    "as its “more often where”, together with the names that stand there; else say only that a "
    "theme comes up, without words such as most, many, rare, more, common, praise or complain. In "
    "a sentence on several facts put the figures in brackets directly behind the theme's name. Put "
    "names of themes and groups in “ ” exactly as they are. Explain nothing, and do not show the "
    "ids in the text."
)
_MARKUP: Final = re.compile(r"[{}<>\[\]`\\|\x00-\x1f\x7f\ufffd\"]|https?:|\b[FT]\d+\b")
_IN_QUOTES: Final = re.compile(r"“([^“”]*)”")


async def word(
    asks: Asks, by_template: Insights, more: Sequence[Sentence], survey: Survey
) -> Insights:
    """Sentences of the model where they hold, then the templates' on what those leave out.

    Args:
        by_template: sentences that are facts to the model.
        more: further facts, told by no template.
    """
    facts = {f"F{at}": fact for at, fact in enumerate((*by_template.insights, *more), start=1)}
    if not facts:
        return by_template
    checker = _Checker(facts)
    lost = unanswered = None
    try:
        await Sparing(asks).ask(
            "insights",
            messages(_TASK, **survey.facts(), facts=_document(facts)),
            _form(list(facts)),
            checker.check,
        )
    except AnswerRejectedError as error:
        # The sentences that hold are kept all the same.
        unanswered = "; ".join(error.problems[:1])[:300] if not checker.held else None
    except LLMError as error:
        lost = reason(error)
    told = {fact for facts_of, _ in checker.held for fact in facts_of}
    rest = [fact for identity, fact in facts.items() if identity not in told]
    return Insights(
        insights=[
            *(sentence for _, sentence in checker.held),
            *(fact for fact in rest if fact in by_template.insights),
        ],
        dropped=checker.dropped,
        lost=lost,
        unanswered=unanswered,
    )


def _document(facts: Mapping[str, Sentence]) -> dict[str, Any]:
    return {
        identity: {
            "says": fact["text"],
            "numbers": {
                name: f"{value:,}" if isinstance(value, int) else percent(value)
                for name, value in fact["numbers"].items()
                if name != "z"
            },
        }
        for identity, fact in facts.items()
    }


def _form(ids: list[str]) -> type[BaseModel]:
    strict = ConfigDict(extra="forbid")
    known: Any = one_of(ids)
    sentence: Any = create_model(
        "Told",
        __config__=strict,
        text=(str, bounded(SENTENCE_CHARACTERS)),
        facts=(list[known], bounded(items=MOST_FACTS)),
    )
    return create_model(
        "Insights", __config__=strict, sentences=(list[sentence], bounded(items=MOST_SENTENCES))
    )


class _Checker:
    """Judges an answer's sentences one by one.

    Attributes:
        held: sentences that hold, with the facts that they rest on; of the answer with more of
            them where a repaired one has lost some.
        dropped: how many of that answer do not.
    """

    def __init__(self, facts: Mapping[str, Sentence]) -> None:
        self._facts = facts
        self.held: list[tuple[list[str], Sentence]] = []
        self.dropped = 0

    def check(self, answer: Any) -> list[str]:
        """What is wrong with an answer; what is right in it is remembered."""
        held: list[tuple[list[str], Sentence]] = []
        dropped = 0
        problems = []
        seen: set[str] = set()
        for at, told in enumerate(answer.sentences[:MOST_SENTENCES], start=1):
            ids = list(dict.fromkeys(told.facts))
            text = _with_curly_quotes(clean(told.text))
            wrong = [f"sentence {at}: {what}" for what in self._wrong(text, ids)]
            problems += wrong
            if wrong or text.casefold() in seen:
                dropped += 1
                continue
            seen.add(text.casefold())
            held.append((ids, self._sentence(text, ids)))
        if len(held) >= len(self.held):
            self.held, self.dropped = held, dropped
        return problems

    def _wrong(self, text: str, ids: Sequence[str]) -> Iterator[str]:
        if len(text) not in SENTENCE_CHARACTERS:
            yield "a sentence has 20 to 400 characters"
        if not 0 < len(ids) <= MOST_FACTS:
            yield f"a sentence rests on 1 to {MOST_FACTS} facts"
            return
        facts = [self._facts[identity] for identity in ids]
        known = {name for fact in facts for name in _IN_QUOTES.findall(fact["text"])}
        yield from wrong_quotes(text, known, needs_one=any(fact["theme_ids"] for fact in facts))
        plain = _IN_QUOTES.sub("", text)
        yield from wrong_words(text, facts)
        yield from wrong_figures(text, facts)
        if "“" in plain or "”" in plain or _MARKUP.search(plain):
            yield "only whole names stand in “ ”, and no ids or signs of markup in the text"

    def _sentence(self, text: str, ids: Sequence[str]) -> Sentence:
        facts = [(identity, self._facts[identity]) for identity in ids]
        return Sentence(
            text=text,
            source="llm",
            theme_ids=list(dict.fromkeys(each for _, fact in facts for each in fact["theme_ids"])),
            evidence=list(dict.fromkeys(each for _, fact in facts for each in fact["evidence"])),
            numbers={
                f"{identity}.{name}": value
                for identity, fact in facts
                for name, value in fact["numbers"].items()
                if name != "z"
            },
        )


def wrong_quotes(text: str, known: set[str], *, needs_one: bool) -> Iterator[str]:
    """Names in quotation marks that are none of the facts'."""
    quoted = _IN_QUOTES.findall(text)
    for name in quoted:
        if name not in known:
            yield f"“{name}” is no name in these facts"
    if needs_one and not quoted:
        yield "put the name of the theme in “ ”"


def _with_curly_quotes(text: str) -> str:
    return re.sub(r'"([^"“”]*)"', "“\\1”", text)
