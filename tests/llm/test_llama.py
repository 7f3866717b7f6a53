"""A real model behind a real server answers by schema; what it says is another matter."""

from collections.abc import Iterator
from typing import Literal

import pytest
from llm.doubles import Memory
from pydantic import BaseModel, Field
from support import llama

from app.pipelines.llm import LLMSettings, Message, as_data, open_llm

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        not llama.is_installed() and not llama.IS_EXPECTED, reason="no wheel of llama.cpp here"
    ),
]


class Theme(BaseModel):
    name: str = Field(max_length=40)
    stance: Literal["positive", "negative", "mixed"]


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with llama.llama_server() as url:
        yield url


async def test_a_real_model_answers_by_schema_and_is_asked_once(base_url: str) -> None:
    memory = Memory()
    settings = LLMSettings(base_url, llama.MODEL, max_output_tokens=200, timeout_seconds=50)
    answers = ["No space to park", "Parking costs too much", "Waited long for a space"]
    question = [
        Message("system", "You name the theme of survey answers in a few words."),
        Message("user", as_data(answers)),
    ]
    llm = open_llm(settings, memory)
    theme = await llm.ask("name", question, Theme)
    await llm.close()
    assert theme.stance in {"positive", "negative", "mixed"}
    assert llm.usage("name").completion_tokens > 0

    again = open_llm(settings, memory)
    assert await again.ask("name", question, Theme) == theme
    await again.close()
    assert again.usage("name").cached_calls == 1
    assert again.usage("name").calls == again.usage("probe").calls == 0
