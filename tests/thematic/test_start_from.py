"""A job that starts from another one's stages takes them over, and refuses those of other input."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from support.fake_llm import FakeLLM
from thematic.coder import good, stage
from thematic.recording import BrokenOffError, RecordingContext
from thematic.surveys import analyse, problems, topics

from app.pipelines.thematic import pipeline
from app.pipelines.thematic.parameters import SOURCES, ParameterError, parse_request
from app.pipelines.thematic.pipeline import STAGES, ThematicAnalysis

OLD = "11111111-1111-7111-8111-111111111111"
ROWS = topics(20)
GIVEN = {row["id"]: row["text"] for row in ROWS}


def payload(**more: Any) -> dict[str, Any]:
    given = {"answers": ROWS, "id_column": "id", "embedding": {"backend": "lsa"}}
    return {**given, **more}


def starting(at: str, **more: Any) -> dict[str, Any]:
    return payload(start_from={"job": OLD, "stage": at}, **more)


@pytest.fixture(name="old", scope="module")
def _old() -> dict[str, str]:
    kept: dict[str, str] = {}
    analyse(payload(), RecordingContext(kept))
    return kept


def context(old: dict[str, str], kept: dict[str, str] | None = None) -> RecordingContext:
    return RecordingContext(kept, of_jobs={OLD: old})


def done_anew(recorded: RecordingContext) -> list[str | None]:
    taken = {told for _, told, message in recorded.reports if "taken over" in str(message)}
    return [told for told in recorded.milestones if told not in taken]


def without(result: dict[str, Any], *names: str) -> str:
    return json.dumps({**result, **dict.fromkeys(("usage", *names))})


@pytest.mark.parametrize("at", SOURCES)
def test_stages_up_to_the_chosen_one_are_taken_over(at: str, old: dict[str, str]) -> None:
    recorded = context(old)
    result = analyse(starting(at), recorded)
    order = list(STAGES)
    assert done_anew(recorded) == order[order.index(at) + 1 :]
    assert result["created_by"]["started_from"] == {"job": OLD, "stage": at}
    assert without(result, "created_by") == without(analyse(payload()), "created_by")


def test_later_stages_have_the_new_parameters(old: dict[str, str]) -> None:
    fewer = analyse(starting("embed", max_themes=2), context(old))
    assert without(fewer, "created_by") == without(analyse(payload(max_themes=2)), "created_by")
    assert sum(theme["parent"] is None for theme in fewer["themes"]) == 2


def test_another_model_names_what_was_discovered_before(old: dict[str, str]) -> None:
    with FakeLLM(good) as llm:
        defaults = {"llm": {"base_url": llm.url, "model": "fake"}}
        recorded = context(old)
        run = ThematicAnalysis(defaults=defaults).run(starting("discover", mode="full"), recorded)
        result = asyncio.run(run)
        asked = Counter(stage(call.request) for call in llm.calls)
    assert problems(result, GIVEN) == []
    assert result["labelling"]["method"] == "llm"
    assert asked["name"] > 0
    assert "discover" not in done_anew(recorded)


def test_names_of_a_model_are_taken_over_with_who_gave_them() -> None:
    kept: dict[str, str] = {}
    with FakeLLM(good) as llm:
        defaults = {"llm": {"base_url": llm.url, "model": "fake"}}
        first = asyncio.run(
            ThematicAnalysis(defaults=defaults).run(payload(), RecordingContext(kept))
        )
    result = analyse(starting("insights", mode="keywords"), context(kept))
    assert problems(result, GIVEN) == []
    assert result["themes"] == first["themes"]
    assert (result["labelling"]["method"], result["labelling"]["model"]) == ("llm", "fake")
    assert result["usage"]["llm_calls"] == 0
    assert result["usage"]["cached_calls"] > 0
    assert result["usage"]["cost"] == 0


def test_a_retried_job_needs_the_other_one_no_more(old: dict[str, str]) -> None:
    kept: dict[str, str] = {}
    broken = RecordingContext(kept, break_off_at="quotes", of_jobs={OLD: old})
    with pytest.raises(BrokenOffError):
        analyse(starting("discover"), broken)
    again = RecordingContext(kept)
    result = analyse(starting("discover"), again)
    assert without(result, "created_by") == without(analyse(payload()), "created_by")


def test_a_job_may_start_from_one_that_did_so_itself(old: dict[str, str]) -> None:
    kept: dict[str, str] = {}
    analyse(starting("embed", max_themes=2), context(old, kept))
    result = analyse(starting("discover"), context(kept))
    assert sum(theme["parent"] is None for theme in result["themes"]) == 2


@pytest.mark.parametrize(
    ("change", "at", "said"),
    [
        ({"answers": topics(19)}, "load", "another input"),
        ({"id_column": None}, "load", "another input"),
        ({"question": "What was bad?"}, "prepare", "another input"),
        ({"group_by": ["topic"]}, "load", "another input"),
        ({"codebook": [{"name": "Food"}]}, "embed", "another codebook"),
        ({"codebook": [{"name": "Food"}]}, "discover", "another codebook"),
    ],
)
def test_stages_of_other_input_are_refused(
    change: dict[str, Any], at: str, said: str, old: dict[str, str]
) -> None:
    given = {key: value for key, value in starting(at, **change).items() if value is not None}
    with pytest.raises(ParameterError, match=said) as caught:
        analyse(given, context(old))
    assert caught.value.name == "start_from.job"


def test_a_new_codebook_may_start_before_the_texts_are_embedded(old: dict[str, str]) -> None:
    given = starting("prepare", codebook=[{"name": "Food", "definition": "lunch, the meal"}])
    assert analyse(given, context(old))["labelling"]["method"] == "codebook"


def test_a_stage_that_the_other_job_has_not_finished_is_refused(old: dict[str, str]) -> None:
    partly = {name: old[name] for name in ("load", "prepare")}
    with pytest.raises(ParameterError, match="no finished stage 'embed'"):
        analyse(starting("discover"), context(partly))


def test_a_job_that_is_not_there_is_refused() -> None:
    with pytest.raises(ParameterError, match="no finished stage 'load'"):
        analyse(starting("discover"), RecordingContext())


def test_stages_of_another_version_are_refused(
    old: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "VERSION", "99.0")
    with pytest.raises(ParameterError, match=r"this is 99\.0"):
        analyse(starting("discover"), context(old))


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("x", "start_from"),
        ({"job": OLD}, "start_from.stage"),
        ({"job": OLD, "stage": "check"}, "start_from.stage"),
        ({"job": OLD, "stage": "sleep"}, "start_from.stage"),
        ({"job": "../etc/passwd", "stage": "load"}, "start_from.job"),
        ({"job": 7, "stage": "load"}, "start_from.job"),
        ({"job": OLD, "stage": "load", "attempt": 2}, "start_from.attempt"),
    ],
)
def test_a_wrong_start_is_refused_by_its_place(given: Any, name: str) -> None:
    with pytest.raises(ParameterError) as caught:
        parse_request({"answers": [], "start_from": given})
    assert caught.value.name == name
