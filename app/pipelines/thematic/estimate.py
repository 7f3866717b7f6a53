"""What a run will ask of the model, told before the first question: calls, tokens, cost.

A token is taken for four characters, as good a rule as any without the model's own vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.pipelines.llm import LLMSettings
from app.pipelines.thematic import assign, name, stance
from app.pipelines.thematic.discover import Discovered
from app.pipelines.thematic.parameters import Parameters

CHARACTERS_PER_TOKEN: Final = 4
_TASK_TOKENS: Final = 250  # task, rules and schema of a question
_NAME_TOKENS: Final = 45
_THEME_TOKENS: Final = 35
_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Estimated:
    """Before the run; repairs, and what is kept of earlier runs, are not foreseen."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float


def estimate(texts: Sequence[str], found: Discovered, parameters: Parameters) -> Estimated | None:
    """What the stages from `name` on will ask; None without a model."""
    if parameters.llm is None:
        return None
    themes = len(found.cohesion)
    per_text = sum(map(len, texts)) / max(1, len(texts)) / CHARACTERS_PER_TOKEN
    asked = [(1, 40.0, 10.0), (1, 60.0 * themes, 400.0)]  # probe, insights
    if not parameters.codebook:
        asked.append(_naming(themes, len(found.parent_of), per_text))
        asked.append((1, 2.0 * _THEME_TOKENS * themes, 60.0))
    if parameters.mode == "full":
        asked += _assigning(len(texts), themes, per_text)
    elif parameters.stance:
        calls = math.ceil(len(texts) / stance.PAIRS_PER_CALL)
        asked.append((calls, stance.PAIRS_PER_CALL * (per_text + 10), stance.PAIRS_PER_CALL * 6.0))
    return _sum(asked, parameters.llm)


def _naming(themes: int, subthemes: int, per_text: float) -> tuple[int, float, float]:
    calls = math.ceil(themes / name.THEMES_PER_CALL)
    shown = name.QUOTES + name.CONTRASTS * name.CONTRAST_QUOTES
    texts = (themes * shown + subthemes * name.SUBTHEME_QUOTES) / max(1, calls)
    named = (themes + subthemes) / max(1, calls)
    return calls, texts * per_text + named * 40, named * _NAME_TOKENS


def _assigning(texts: int, themes: int, per_text: float) -> list[tuple[int, float, float]]:
    singly = min(texts, assign.CALIBRATED_ON)
    batch = assign.BATCHES[0]
    batches = math.ceil((texts - singly) / batch) + (texts > singly)
    told = float(_THEME_TOKENS * themes)
    return [
        (singly, told + per_text, 15.0),
        (batches, told + batch * per_text, batch * 15.0),
    ]


def _sum(asked: Sequence[tuple[int, float, float]], llm: LLMSettings) -> Estimated:
    calls = sum(times for times, _, _ in asked)
    prompt = round(sum(times * (_TASK_TOKENS + tokens) for times, tokens, _ in asked))
    completion = round(sum(times * tokens for times, _, tokens in asked))
    cost = (prompt * llm.prompt_price + completion * llm.completion_price) / _MILLION
    return Estimated(calls, prompt, completion, round(cost, 6))
