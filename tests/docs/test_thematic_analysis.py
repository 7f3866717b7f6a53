"""The page on the thematic analysis: its tables are fresh, its payloads are accepted."""

import json
import re

import pytest

from app.pipelines.thematic import parameters
from app.pipelines.thematic.pipeline import STAGES
from app.pipelines.thematic.reaching import LLM_KEYS
from app.results.themes import Metrics
from docs.render import PAGES, THEMATIC, rendered

TEXT = THEMATIC.read_text("utf-8")
PAYLOADS = re.findall(r"```json payload\n(.*?)```", TEXT, re.DOTALL)


def test_the_fields_are_what_the_models_say() -> None:
    assert rendered(TEXT, PAGES[THEMATIC]) == TEXT, "run `python docs/render.py`"


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="the part 'result' is there 0 times"):
        rendered("", PAGES[THEMATIC])


def test_every_model_that_is_linked_has_its_table() -> None:
    headings = {f"#{name.lower()}" for name in re.findall(r"^### (\w+)$", TEXT, re.MULTILINE)}
    assert set(re.findall(r"\]\((#\w+)\)", TEXT)) <= headings


def test_every_key_of_the_payload_is_explained() -> None:
    told = set(re.findall(r"`(\w+)`", TEXT))
    assert set(parameters._KEYS) - told == set()
    assert set(LLM_KEYS) - told == set()


def test_every_stage_and_metric_is_named() -> None:
    told = set(re.findall(r"`(\w+)`", TEXT))
    assert set(STAGES) - told == set()
    assert set(Metrics.model_fields) - told == set()


@pytest.mark.parametrize("payload", PAYLOADS)
def test_every_payload_is_accepted(payload: str) -> None:
    llm = {"base_url": "https://api.example.com/v1", "model": "some-instruct-model"}
    parameters.parse_request(json.loads(payload), llm=llm)


def test_there_are_payloads() -> None:
    assert len(PAYLOADS) >= 3
