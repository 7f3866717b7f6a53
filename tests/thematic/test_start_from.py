"""A job that starts from another one's stages takes them over, and refuses those of other input."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from support.fake_llm import FakeLLM
from thematic.coder import good, lying, stage
from thematic.recording import BrokenOffError, RecordingContext
from thematic.surveys import analyse, problems, topics

from app.pipelines.thematic import pipeline, review
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


@pytest.mark.parametrize("at", ["review", "insights"])
def test_names_that_a_review_has_changed_are_taken_over_with_who_gave_them(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(review, "DOUBLES", -1.0)  # these few answers have no real doubles

    def join_two(answer: Any, shown: dict[str, Any]) -> Any:
        return {**answer, "merge": [sorted(theme["id"] for theme in shown["themes"])[:2]]}

    kept: dict[str, str] = {}
    with FakeLLM(lying("review", join_two)) as llm:
        defaults = {"llm": {"base_url": llm.url, "model": "fake"}}
        first = asyncio.run(
            ThematicAnalysis(defaults=defaults).run(payload(), RecordingContext(kept))
        )
    assert any(theme["merged_from"] for theme in first["themes"])
    result = analyse(starting(at, mode="keywords"), context(kept))
    assert problems(result, GIVEN) == []
    assert result["themes"] == first["themes"]
    for labelling in (first["labelling"], result["labelling"]):
        assert (labelling["method"], labelling["model"]) == ("llm", "fake")


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
    result = analyse(starting("discover", max_themes=2), context(kept))
    assert sum(theme["parent"] is None for theme in result["themes"]) == 2


def masked(*phrases: str) -> dict[str, Any]:
    return {"redact": {"custom": list(phrases)}}


@pytest.mark.parametrize(
    ("change", "at", "name", "instead"),
    [
        (masked("lunch"), "prepare", "redact", "load"),
        (masked("lunch"), "discover", "redact", "load"),
        ({"redact": {"emails": False}}, "insights", "redact", "load"),
        ({"embedding": {"backend": "minilm-int8"}}, "embed", "embedding", "prepare"),
        ({"codebook": [{"name": "Food"}]}, "discover", "codebook", "prepare"),
        ({"max_themes": 2}, "discover", "max_themes", "embed"),
        ({"min_theme_size": 2}, "quotes", "min_theme_size", "embed"),
        ({"granularity": "fine"}, "discover", "granularity", "embed"),
        ({"seed": 1}, "discover", "seed", "embed"),
        ({"context": "Of patients."}, "name", "context", "discover"),
        ({"stance": True}, "assign", "stance", "review"),
        ({"double_coding": "all"}, "assign", "double_coding", "review"),
        ({"quotes_per_theme": 1}, "quotes", "quotes_per_theme", "assign"),
    ],
    ids=str,
)
def test_a_setting_is_never_ignored_because_its_stage_is_taken_over(
    change: dict[str, Any], at: str, name: str, instead: str, old: dict[str, str]
) -> None:
    with pytest.raises(ParameterError) as caught:
        analyse(starting(at, **change), context(old))
    assert caught.value.name == "start_from.stage"
    assert f"made with another {name}" in caught.value.remedy
    assert f"start from {instead!r}" in caught.value.remedy
    if name != "embedding":  # the other model is for another test
        assert analyse(starting(instead, **change), context(old))["themes"]


def test_words_to_mask_reach_no_model_through_the_stages_of_another_job(
    old: dict[str, str],
) -> None:
    with FakeLLM(good) as llm:
        defaults = {"llm": {"base_url": llm.url, "model": "fake"}}
        analysis = ThematicAnalysis(defaults=defaults)
        for at in ("prepare", "embed", "discover"):
            given = starting(at, mode="full", **masked("lunch"))
            with pytest.raises(ParameterError, match="another redact"):
                asyncio.run(analysis.run(given, context(old)))
        assert not llm.calls
        given = starting("load", mode="full", **masked("lunch"))
        asyncio.run(analysis.run(given, context(old)))
        assert llm.calls
        assert not any("lunch" in json.dumps(call.request).lower() for call in llm.calls)


def test_what_a_job_has_taken_over_is_checked_again_when_it_is_retried(
    old: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, str] = {}
    with pytest.raises(BrokenOffError):
        analyse(
            starting("discover"), RecordingContext(kept, break_off_at="name", of_jobs={OLD: old})
        )
    with pytest.raises(ParameterError, match="another redact"):
        analyse(starting("discover", **masked("lunch")), RecordingContext(kept))
    with pytest.raises(ParameterError, match="another input"):
        analyse(starting("discover", answers=topics(19)), RecordingContext(kept))
    monkeypatch.setattr(pipeline, "VERSION", "99.0")
    with pytest.raises(ParameterError, match=r"this is 99\.0"):
        analyse(starting("discover"), RecordingContext(kept))


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"answers": topics(19)}, "load"),
        ({"id_column": None}, "load"),
        ({"question": "What was bad?"}, "prepare"),
        ({"group_by": ["topic"]}, "load"),
    ],
)
def test_stages_of_other_input_are_refused(
    change: dict[str, Any], at: str, old: dict[str, str]
) -> None:
    given = {key: value for key, value in starting(at, **change).items() if value is not None}
    with pytest.raises(ParameterError, match="another input") as caught:
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
