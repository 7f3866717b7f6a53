"""A given codebook: answers to its themes by nearness or by the model, and what it lacks."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from support.fake_llm import FakeLLM
from thematic.coder import good, lying, stage
from thematic.recording import RecordingContext
from thematic.surveys import analyse, problems, topics

from app.pipelines.thematic.parameters import ParameterError, parse_request
from app.pipelines.thematic.pipeline import ThematicAnalysis

CODES = [
    {"name": "Parking", "definition": "Parking spaces, the car park, what parking costs"},
    {"name": "Food", "definition": "Lunch, the meal, hospital food and how it tasted"},
]
UFO = [{"id": f"u{n}", "topic": "ufo", "text": f"Strange lights in the sky {n}"} for n in range(9)]
ANSWERS = [*topics(10), *UFO]
GIVEN = {row["id"]: row["text"] for row in ANSWERS}


def payload(**more: Any) -> dict[str, Any]:
    return {"answers": ANSWERS, "id_column": "id", "codebook": CODES, **more}


def by_name(result: dict[str, Any]) -> dict[str, Any]:
    return {theme["name"]: theme for theme in result["themes"]}


def test_answers_go_to_the_nearest_code() -> None:
    result = analyse(payload())
    assert problems(result, GIVEN) == []
    themes = by_name(result)
    assert set(themes) == {"Parking", "Food"}
    assert themes["Food"]["description"] == CODES[1]["definition"]
    assert {theme["name_source"] for theme in result["themes"]} == {"codebook"}
    assert result["labelling"]["method"] == "codebook"
    right = Counter(
        row["topic"]
        for row, entry in zip(ANSWERS, result["assignments"], strict=True)
        if themes["Parking"]["id"] in entry["theme_ids"]
    )
    assert right["parking"] >= 9
    assert right["ufo"] == 0
    assert {entry["method"] for entry in result["assignments"]} == {"codebook"}


def test_what_no_code_fits_is_suggested_as_themes() -> None:
    result = analyse(payload())
    suggested = result["other"]["suggested"]
    lights = next(each for each in suggested if "lights" in each["name"].casefold())
    assert lights["responses"] == 9
    assert lights["quotes"][0]["text"] in GIVEN.values()
    assert sum(each["responses"] for each in suggested) <= result["other"]["responses"]


@pytest.mark.parametrize("backend", ["minilm-int8", "lsa"])
def test_a_code_that_nobody_speaks_of_is_there_with_none(backend: str) -> None:
    codes = [*CODES, {"name": "Xylophones", "definition": "Qwertz uiop"}]
    result = analyse({**payload(codebook=codes), "embedding": {"backend": backend}})
    assert problems(result, GIVEN) == []
    assert len(result["themes"]) == 3


def test_the_model_assigns_to_the_codes_in_full_mode() -> None:
    with FakeLLM(good) as llm:
        pipeline = ThematicAnalysis(defaults={"llm": {"base_url": llm.url, "model": "fake"}})
        result = _run(pipeline, payload(mode="full"))
        asked = Counter(stage(call.request) for call in llm.calls)
    assert problems(result, GIVEN) == []
    assert {entry["method"] for entry in result["assignments"]} == {"llm"}
    assert asked["name"] == asked["review"] == 0
    assert result["labelling"]["model"] == "fake"
    assert result["labelling"]["method"] == "codebook"
    assert any("lights" in each["name"].casefold() for each in result["other"]["suggested"])


def test_a_code_that_the_model_invents_is_none() -> None:
    invented = lying("assign", lambda answer, _: {key: {"themes": ["UFOs"]} for key in answer})
    with FakeLLM(invented) as llm:
        pipeline = ThematicAnalysis(defaults={"llm": {"base_url": llm.url, "model": "fake"}})
        result = _run(pipeline, payload(mode="full"))
    assert problems(result, GIVEN) == []
    assert result["failed"]["responses"] == len(ANSWERS)
    assert set(by_name(result)) == {"Parking", "Food"}


@pytest.mark.parametrize(
    ("codebook", "name"),
    [
        ("Parking", "codebook"),
        ([{"name": "Food"}] * 101, "codebook"),
        (["Parking"], "codebook[0]"),
        ([{"definition": "x"}], "codebook[0].name"),
        ([{"name": " "}], "codebook[0].name"),
        ([{"name": "a\nb"}], "codebook[0].name"),
        ([{"name": "Other"}], "codebook[0].name"),
        ([{"name": "non-answer"}], "codebook[0].name"),
        ([{"name": "Food"}, {"name": "food"}], "codebook[1].name"),
        ([{"name": "Food", "definition": 3}], "codebook[0].definition"),
        ([{"name": "Food", "color": "red"}], "codebook[0].color"),
    ],
)
def test_a_wrong_codebook_is_refused_by_its_place(codebook: Any, name: str) -> None:
    with pytest.raises(ParameterError) as caught:
        parse_request({"answers": [], "codebook": codebook})
    assert caught.value.name == name


def _run(pipeline: ThematicAnalysis, given: dict[str, Any]) -> dict[str, Any]:

    return asyncio.run(pipeline.run(given, RecordingContext()))
