"""Answers that have nothing in common: no theme is a result as any other."""

from typing import Any

import pytest
from support.fake_llm import FakeLLM, Status
from thematic.coder import good
from thematic.surveys import analyse, problems
from thematic.test_lying_llm import run

WORDS = [
    "Parking",
    "Food",
    "Staff",
    "Noise",
    "Light",
    "Toilets",
    "Signage",
    "Queues",
    "Heating",
    "Beds",
    "Privacy",
    "Wifi",
]
DIGITS = [str(1_000 + number) for number in range(12)]
STOP_WORDS = [
    "It",
    "Was",
    "Not",
    "This",
    "These",
    "Those",
    "They",
    "Them",
    "Their",
    "Here",
    "There",
    "Then",
]
ANSWERS = (WORDS, DIGITS, STOP_WORDS)


def payload(answers: list[str], mode: str, **more: Any) -> dict[str, Any]:
    return {"answers": answers, "mode": mode, "embedding": {"backend": "lsa"}, **more}


def is_sound(result: dict[str, Any], answers: list[str]) -> bool:
    given = {str(number): text for number, text in enumerate(answers, 1)}
    return problems(result, given) == [] and result["metrics"]["name_specificity"] is None


@pytest.mark.parametrize("answers", ANSWERS, ids=lambda answers: answers[0])
def test_without_a_model_all_are_other(answers: list[str]) -> None:
    result = analyse(payload(answers, "keywords"))
    assert is_sound(result, answers)
    assert result["themes"] == []
    assert result["other"]["responses"] == len(answers)
    assert result["labelling"]["method"] == "keywords"


@pytest.mark.parametrize("answers", ANSWERS, ids=lambda answers: answers[0])
@pytest.mark.parametrize("mode", ["keywords", "name", "full"])
@pytest.mark.parametrize("stance", [False, True])
def test_with_a_model_likewise(answers: list[str], mode: str, *, stance: bool) -> None:
    with FakeLLM(good) as llm:
        given = payload(answers, mode, stance=stance and mode != "keywords")
        result = run(llm, given, max_retries=0)
        asked = len(llm.calls)
    assert is_sound(result, answers)
    assert result["themes"] == []
    assert result["labelling"]["method"] == "keywords"
    assert result["other"]["responses"] == len(answers)
    assert asked == result["usage"]["llm_calls"] <= 2


@pytest.mark.parametrize("mode", ["name", "full"])
def test_with_a_model_that_is_lost_likewise(mode: str) -> None:
    with FakeLLM(good) as llm:
        llm.always = Status(401)
        result = run(llm, payload(WORDS, mode, stance=True), max_retries=0)
    assert is_sound(result, WORDS)
    assert result["other"]["responses"] == len(WORDS)
