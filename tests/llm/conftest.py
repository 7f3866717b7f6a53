from collections.abc import Iterator

import pytest
from support.fake_llm import FakeLLM


@pytest.fixture
def fake() -> Iterator[FakeLLM]:
    with FakeLLM() as running:
        yield running
