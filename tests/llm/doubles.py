"""What surrounds a language model in tests: a job's memory, pauses that take no time."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict
from support.fake_llm import FakeLLM

from app.domain.errors import TooLargeError
from app.domain.sharing import MAX_CALL_ANSWER_BYTES, CallUsage
from app.pipelines.llm.asking import LLM
from app.pipelines.llm.concurrency import AdaptiveLimit
from app.pipelines.llm.http_client import HTTPClient
from app.pipelines.llm.interface import Chat, LLMSettings, Message
from app.pipelines.llm.retrying import Retrying

MODEL = "test-model"
QUESTION = (Message("system", "You name themes."), Message("user", "Name this theme: parking."))
CHAT = Chat(QUESTION, None, 100)


class Name(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    description: str | None = None


@dataclass
class Memory:
    """Keeps calls as a job's context does."""

    job_id: str = "00000000-0000-7000-8000-000000000000"
    kept: dict[str, str] = field(default_factory=dict)
    facts: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    cached: list[tuple[str, str, int]] = field(default_factory=list)

    async def load_call(self, key: str) -> Any:
        return json.loads(self.kept[key]) if key in self.kept else None

    async def save_call(self, key: str, answer: Any, **facts: Any) -> None:
        text = json.dumps(answer)
        if len(text) > MAX_CALL_ANSWER_BYTES:
            raise TooLargeError("answer of a call", len(text), MAX_CALL_ANSWER_BYTES)
        self.kept[key] = text
        self.facts.append(facts)

    async def count_cached_calls(self, stage: str, model: str, calls: int) -> None:
        self.cached.append((stage, model, calls))

    async def count_failed_calls(
        self, stage: str, model: str, calls: int, **figures: float
    ) -> None:
        self.failed.append({"stage": stage, "model": model, "calls": calls, **figures})

    async def load_usage(self) -> list[CallUsage]:
        paid = ({"calls": 1, **facts} for facts in self.facts)
        return [CallUsage(cached_calls=0, **facts) for facts in (*paid, *self.failed)]

    @property
    def stages(self) -> list[str]:
        """Of the calls that were kept; the first is the probe."""
        return [facts["stage"] for facts in self.facts]


class Pauses(list[float]):
    """Pauses instead of taking them."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def settings_for(fake: FakeLLM, **settings: Any) -> LLMSettings:
    return LLMSettings(base_url=fake.url, model=MODEL, **settings)


def retrying(
    pauses: Pauses, limit: AdaptiveLimit | None = None, *, max_retries: int = 5, told: Any = None
) -> Retrying:
    """Retries whose jitter always takes the ceiling."""
    return Retrying(max_retries, limit or AdaptiveLimit(4), told, chance=_Ceiling(), sleep=pauses)


class _Ceiling(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return b


def llm_for(fake: FakeLLM, memory: Memory, **settings: Any) -> LLM:
    """A model at `fake` that retries without a pause."""
    chosen = settings_for(fake, **settings)
    limit = AdaptiveLimit(chosen.concurrency)
    retries = retrying(Pauses(), limit, max_retries=chosen.max_retries)
    return LLM(chosen, HTTPClient(chosen, retrying=retries), memory)
