"""What a run will ask of the model, told before the first question: calls, tokens, cost."""

import math
from collections.abc import Sequence
from typing import Final

from app.pipelines.llm.budget import Budget, Cost
from app.pipelines.llm.budget import estimate as priced
from app.pipelines.llm.interface import BudgetExceededError, LLMSettings
from app.pipelines.thematic import by_model, doubts, name, stance
from app.pipelines.thematic.assigned import Assignments
from app.pipelines.thematic.controls import CALLS as CONTROL_CALLS
from app.pipelines.thematic.controls import room
from app.pipelines.thematic.discover import Discovered
from app.pipelines.thematic.doubling import fewest
from app.pipelines.thematic.parameters import Parameters

_TASK: Final = 1_000  # characters of task, rules and schema
_NAMED: Final = 180  # of a name with its description
_THEME: Final = 140  # of a theme in a list
_JUDGED: Final = 60  # of what is said of one answer
_SENTENCES: Final = 1_600


def estimate(
    texts: Sequence[str], found: Discovered, parameters: Parameters, batch: int | None = None
) -> Cost | None:
    """What the stages from `name` on will ask the model; None without one.

    Embeddings are not part of it, as of the budget neither. Repairs and failed requests are not
    foreseen, nor what is kept of earlier runs.

    Args:
        batch: answers per call that the calibration chose; before it the most is hoped for.
    """
    if parameters.llm is None:
        return None
    themes = len(found.cohesion)
    length = sum(min(len(text), 600) for text in texts) / max(1, len(texts))
    questions = [(1, 0.0, 20.0), (1, 2.0 * _THEME * themes, float(_SENTENCES))]
    if themes and not parameters.codebook:
        questions.append(_naming(themes, len(found.parent_of), length))
        questions.append((1, float(_THEME * themes), 200.0))
    if parameters.mode == "full" and themes:
        size, is_all = batch or by_model.BATCHES[0], parameters.double_coding == "all"
        questions += _assigning(len(texts), themes, length, size, is_all=is_all)
    elif parameters.stance and themes:
        is_all = parameters.double_coding == "all"
        questions += _taking_stances(len(texts), length, is_all=is_all)
    total = Cost()
    for calls, shown, answered in questions:
        total += priced(parameters.llm, calls, _TASK + round(shown), round(answered))
    return total


def _naming(themes: int, subthemes: int, length: float) -> tuple[int, float, float]:
    """Calls, and what each shows and answers, in characters."""
    calls = math.ceil(themes / name.THEMES_PER_CALL)
    texts = themes * (name.QUOTES + name.CONTRASTS * name.CONTRAST_QUOTES)
    texts += subthemes * name.SUBTHEME_QUOTES
    named = themes + subthemes
    return calls, (texts * length + named * _THEME) / calls, named * _NAMED / calls


def is_held(expected: Cost, settings: LLMSettings) -> bool:
    """Whether the whole budget of the settings holds an estimate."""
    try:
        Budget(settings).check(expected)
    except BudgetExceededError:
        return False
    return True


def warnings(
    texts: Sequence[str], found: Discovered, parameters: Parameters, made: Assignments
) -> list[dict[str, str]]:
    """That the budget is too small where it is, by what the calibration showed of batches."""
    batch = made.batch if made.agreements else None
    needed = estimate(texts, found, parameters, batch)
    if parameters.llm is None or needed is None or is_held(needed, parameters.llm):
        return []
    text = (
        f"The analysis takes {told(needed)}, more than the budget holds; what it did not hold was "
        "done without the LLM."
    )
    return [{"code": "budget_too_small", "text": text}]


def told(expected: Cost) -> str:
    """An estimate in words."""
    tokens = expected.prompt_tokens + expected.completion_tokens
    return f"about {expected.calls:,} calls and {tokens:,} tokens"


def _assigning(
    texts: int, themes: int, length: float, batch: int, *, is_all: bool
) -> list[tuple[int, float, float]]:
    singly = min(texts, by_model.CALIBRATED_ON)
    rest, shown = texts - singly, float(_THEME * themes)
    batches = math.ceil(rest / room(batch))
    again = math.ceil(doubts.SHARE * rest / batch)
    if is_all:
        again = fewest(rest, min(rest, room(batch)), batch)
    if batch == 1:
        again = 0
    if rest:
        tried = [size for size in by_model.BATCHES if size >= batch]
        batches += sum(math.ceil(singly / room(size)) for size in tried) + CONTROL_CALLS
    each = min(batch, rest / again) if is_all and again else batch
    return [
        (singly, shown + length, float(_JUDGED)),
        (batches, shown + batch * length, float(batch * _JUDGED)),
        (again, shown + each * length, float(each * _JUDGED)),
    ]


def _taking_stances(texts: int, length: float, *, is_all: bool) -> list[tuple[int, float, float]]:
    pairs, size = stance.PAIRS_PER_CALL, room(stance.PAIRS_PER_CALL)
    once = math.ceil(texts / size)
    again = fewest(texts, min(texts, size), size) if is_all else math.ceil(once / size)
    each = min(pairs, texts / again) if is_all else pairs
    return [
        (once + CONTROL_CALLS, pairs * (length + 60), pairs * 20.0),
        (again, each * (length + 60), each * 20.0),
    ]
