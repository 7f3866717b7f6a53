"""The format of results: strict, and each falsification is found out by the check it breaks."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError
from thematic.surveys import analyse, problems, topics

from app.pipelines.thematic.parameters import BACKENDS
from app.results.themes import Embedding, Part, ThemesResult, theme_rows
from app.results.verifying import unexplained_figures, verify

ROWS = topics(20)
ANSWERS = {row["id"]: row["text"] for row in ROWS} | {"silent": "n/a"}
ZEROS = {
    "llm_calls": 0,
    "cached_calls": 0,
    "prompt_tokens": 0,
    "completion_tokens": 0,
    "retries": 0,
    "cost": 0.0,
}


@pytest.fixture(name="sound", scope="module")
def _sound() -> dict[str, Any]:
    rows = [*ROWS, {"id": "silent", "topic": "food", "text": "n/a"}]
    return analyse(
        {
            "answers": rows,
            "id_column": "id",
            "group_by": ["topic"],
            "max_themes": 3,
            "embedding": {"backend": "lsa"},
        }
    )


@pytest.fixture(name="rich", scope="module")
def _rich(sound: dict[str, Any]) -> dict[str, Any]:
    """Everything that a sound result may hold: several themes, stances, other, failed, usage."""
    rich = copy.deepcopy(sound)
    first, second, third = (t for t in rich["themes"] if t["parent"] is None)
    of_second = [e for e in rich["assignments"] if e["theme_ids"] == [second["id"]]]
    quoted = {quote["response_id"] for theme in rich["themes"] for quote in theme["quotes"]}
    free = [e for e in of_second if e["response_id"] not in quoted]
    other, failed, also = free[0], free[1], free[2]
    for lost in (other, failed):
        _leave(rich, lost)
    other.update(status="other", method="llm")
    failed.update(status="failed", method="llm", reason="the answer was cut off")
    also["theme_ids"].append(first["id"])
    also["stance"] = {second["id"]: "negative", first["id"]: "mixed"}
    _count(rich, first, also, 1)
    for theme in (first, second, third):
        theme["stance"] = {"positive": 0, "negative": 0, "mixed": 0, "neutral": 0}
    second["stance"]["negative"] = first["stance"]["mixed"] = 1
    sub = _theme(rich, also["subtheme_id"])
    if sub is not None:
        sub["stance"] = {"positive": 0, "negative": 1, "mixed": 0, "neutral": 0}
    whole = ANSWERS[other["response_id"]]
    quote = {
        "response_id": other["response_id"],
        "text": whole[:7],
        "start": 0,
        "end": 7,
        "verified": True,
    }
    suggestion = {"name": "Parking", "keywords": ["parking"], "responses": 1, "quotes": [quote]}
    rich["other"] = {
        "responses": 1,
        "share": 0.0167,
        "sample": [quote],
        "suggested": [suggestion],
    }
    rich["failed"] = {
        "responses": 1,
        "share": 0.0167,
        "reasons": {"the answer was cut off": 1},
    }
    rich["metrics"].update(coverage=0.9667, other_share=0.0167, failed_responses=0.0167)
    stage = {**ZEROS, "llm_calls": 3, "prompt_tokens": 900, "cost": 0.25}
    rich["usage"].update(stage, by_stage={"name": stage, "assign": dict(ZEROS)})
    rich["labelling"].update(method="mixed", model="small-instruct")
    rich["insights"] = [insight for insight in rich["insights"] if not insight["theme_ids"]]
    rich["insights"].append(_worded(rich))
    return rich


def _worded(result: dict[str, Any]) -> dict[str, Any]:
    """A model's sentence that rests on two facts."""
    theme = _theme(result, "T01")
    return _insight(
        text=f"“{theme['name']}” has {theme['responses']} of 60 answers, 1 has no theme.",
        theme_ids=["T01"],
        numbers={
            "F1.responses": theme["responses"],
            "F1.analysed": 60,
            "F1.share": theme["responses"] / 60,
            "F4.other": 1,
            "F4.analysed": 60,
            "F4.share": 1 / 60,
        },
    )


def _theme(result: dict[str, Any], theme_id: str | None) -> Any:
    return next((theme for theme in result["themes"] if theme["id"] == theme_id), None)


def _count(result: dict[str, Any], theme: Any, entry: Any, more: int) -> None:
    theme["responses"] += more
    theme["share"] = round(theme["responses"] / 60, 4)
    topic = next((row["topic"] for row in ROWS if row["id"] == entry["response_id"]), "food")
    theme["unique_texts"] += more  # every answer is there once
    group = theme["by_group"]["topic"][topic]
    group["responses"] += more
    group["share"] = round(group["responses"] / 20, 4)


def _leave(result: dict[str, Any], entry: Any) -> None:
    for theme_id in (*entry["theme_ids"], entry["subtheme_id"]):
        if theme_id is not None:
            _count(result, _theme(result, theme_id), entry, -1)
    entry.update(theme_ids=[], subtheme_id=None, score=None)


def first(result: dict[str, Any], status: str) -> Any:
    return next(entry for entry in result["assignments"] if entry["status"] == status)


def test_a_sound_result_has_no_problem(sound: dict[str, Any], rich: dict[str, Any]) -> None:
    assert problems(sound, ANSWERS) == []
    assert problems(rich, ANSWERS) == []


def test_a_result_is_read_back_byte_by_byte(rich: dict[str, Any]) -> None:
    again = ThemesResult.model_validate_json(json.dumps(rich)).model_dump(mode="json")
    assert json.dumps(again) == json.dumps(rich)


def test_every_field_is_described() -> None:
    silent = [
        f"{part.__name__}.{name}"
        for part in _parts(Part)
        for name, field in part.model_fields.items()
        if not field.description
    ]
    assert silent == []


def _parts(part: type[Part]) -> list[type[Part]]:
    return [found for child in part.__subclasses__() for found in [child, *_parts(child)]]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("schema", "themes/2"),
        ("surprise", 1),
        ("question", 7),
        ("themes", None),
        ("metrics", {}),
    ],
)
def test_a_result_of_another_form_is_refused(
    sound: dict[str, Any], place: str, value: object
) -> None:
    with pytest.raises(ValidationError):
        ThemesResult.model_validate({**sound, place: value})


def test_a_result_cannot_be_changed(sound: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        ThemesResult.model_validate(sound).question = "another one"


def test_an_answer_that_was_not_given_is_found_out(sound: dict[str, Any]) -> None:
    assert any("was not given" in problem for problem in problems(sound, {}))


def _move(result: Any) -> None:
    entry = first(result, "assigned")
    elsewhere = "T02" if entry["theme_ids"] == ["T01"] else "T01"
    entry.update(theme_ids=[elsewhere], subtheme_id=None)


def _invent_theme(result: Any) -> None:
    first(result, "assigned").update(theme_ids=["T99"], subtheme_id=None)


def _assign_to_subtheme(result: Any) -> None:
    sub = next(theme["id"] for theme in result["themes"] if theme["parent"] is not None)
    first(result, "assigned").update(theme_ids=[sub], subtheme_id=None)


def _subtheme_of_another(result: Any) -> None:
    entry = first(result, "assigned")
    entry["subtheme_id"] = "T02.1" if entry["theme_ids"][0] != "T02" else "T01.1"


def _theme_twice(result: Any) -> None:
    entry = first(result, "assigned")
    entry["theme_ids"] = entry["theme_ids"] * 2


def _assigned_to_nothing(result: Any) -> None:
    first(result, "assigned").update(theme_ids=[], subtheme_id=None, score=None)


def _score_for_nothing(result: Any) -> None:
    first(result, "other")["score"] = 0.5


def _silent_by_method(result: Any) -> None:
    first(result, "non_answer")["method"] = "cluster"


def _unassigned_by_anything(result: Any) -> None:
    first(result, "other")["method"] = None


def _fail_without_reason(result: Any) -> None:
    first(result, "failed")["reason"] = None


def _stance_to_unlisted(result: Any) -> None:
    entry = next(e for e in result["assignments"] if e["theme_ids"] == ["T01"])
    entry["stance"] = {"T02": "positive"}


def _lose(result: Any) -> None:
    del result["assignments"][0]


def _double(result: Any) -> None:
    result["assignments"].append(result["assignments"][0])


def _theme_there_twice(result: Any) -> None:
    result["themes"].append(result["themes"][0])


def _same_name(result: Any) -> None:
    tops = [theme for theme in result["themes"] if theme["parent"] is None]
    tops[1]["name"] = tops[0]["name"]


def _orphan(result: Any) -> None:
    sub = next(theme for theme in result["themes"] if theme["parent"] is not None)
    sub["parent"] = "T99"


def _pretend(result: Any) -> None:
    result["labelling"].update(method="llm", model="grand-model")


def _no_model(result: Any) -> None:
    result["labelling"]["model"] = None


def _no_call(result: Any) -> None:
    result["usage"].update(ZEROS, by_stage={})


def _regroup(result: Any) -> None:
    next(iter(result["themes"][0]["by_group"]["topic"].values()))["responses"] += 1


def _forget_non_answer(result: Any) -> None:
    result["non_answers"]["texts"] = []


def _more_suggested(result: Any) -> None:
    result["other"]["suggested"][0]["responses"] = 5


def _another_reason(result: Any) -> None:
    result["failed"]["reasons"] = {}


def _more_unique(result: Any) -> None:
    result["input"]["unique_texts"] += 1


def _other_stance(result: Any) -> None:
    theme = next(t for t in result["themes"] if t["stance"] and t["stance"]["negative"])
    theme["stance"].update(negative=0, positive=1)


def _hidden_stance(result: Any) -> None:
    next(t for t in result["themes"] if t["stance"] and t["stance"]["mixed"])["stance"] = None


def _quote_freely(result: Any) -> None:
    result["themes"][0]["quotes"][0]["text"] += "!"


def _quote_elsewhere(result: Any) -> None:
    one, another = [theme for theme in result["themes"] if theme["parent"] is None][:2]
    one["quotes"], another["quotes"] = another["quotes"], one["quotes"]


def _quote_blank(result: Any) -> None:
    result["themes"][0]["quotes"][0].update(text="", start=0, end=0)


def _quote_unseen(result: Any) -> None:
    result["themes"][0]["quotes"][0]["verified"] = False


def _sample_from_theme(result: Any) -> None:
    result["other"]["sample"] = result["themes"][0]["quotes"]


def _suggest_from_theme(result: Any) -> None:
    result["other"]["suggested"][0]["quotes"] = result["themes"][0]["quotes"]


def _halve_support(result: Any) -> None:
    result["metrics"]["quote_support"] = 0.5


def _insight(**changes: Any) -> dict[str, Any]:
    return {
        "text": "The largest theme.",
        "source": "llm",
        "theme_ids": [],
        "evidence": [],
        "numbers": {},
        "numbers_checked": True,
        **changes,
    }


def _say(**changes: Any) -> Callable[[Any], None]:
    return lambda result: result["insights"].append(_insight(**changes))


def _count_twice(result: Any) -> None:
    """The answer that lists both themes is one answer."""
    both = [_theme(result, theme_id) for theme_id in ("T01", "T02")]
    responses = sum(theme["responses"] for theme in both)
    numbers = {"largest": 2, "themes": 3, "responses": responses, "analysed": 60}
    _say(theme_ids=["T01", "T02"], numbers={**numbers, "share": responses / 60})(result)


def _lie_by_model(result: Any) -> None:
    told = result["insights"][-1]
    told["text"] = f"“{_theme(result, 'T01')['name']}” has 58 of 60 answers (97 %)."
    told["numbers"] |= {"F1.responses": 58, "F1.share": 58 / 60}


def _hide_rest(result: Any) -> None:
    result["insights"][-1]["numbers"] |= {"F4.other": 0, "F4.share": 0.0}


def _more_silent(result: Any) -> None:
    silent = next(it for it in result["insights"] if "non_answers" in it["numbers"])
    silent["text"] = "5 of 61 rows (8 %) say nothing and were set apart."
    silent["numbers"] |= {"non_answers": 5, "share": 5 / 61}


def _swap_groups(result: Any) -> None:
    groups = result["themes"][0]["by_group"]["topic"]
    most, least = sorted(groups, key=lambda group: -groups[group]["responses"])[::2]
    groups[most]["responses"], groups[least]["responses"] = (
        groups[least]["responses"],
        groups[most]["responses"],
    )


def _share_of_all(result: Any) -> None:
    for group in result["themes"][0]["by_group"]["topic"].values():
        group["share"] = 1.0


def _more_texts_in_theme(result: Any) -> None:
    result["themes"][0]["unique_texts"] = 1000


def _fewer_texts(result: Any) -> None:
    result["input"]["unique_texts"] -= 5
    result["input"]["duplicates"] += 5


def _more_empty(result: Any) -> None:
    result["input"]["empty"] = 9


def _other_silence(result: Any) -> None:
    result["non_answers"]["texts"] = [{"text": "terrible service", "responses": 1}]


@pytest.mark.parametrize(
    ("falsify", "said"),
    [
        (_lose, "is not assigned"),
        (_double, "assigned 2 times"),
        (_move, "theme T01 states"),
        (_invent_theme, "which is no theme"),
        (_assign_to_subtheme, "which is no theme"),
        (_subtheme_of_another, "is not within"),
        (_theme_twice, "has a theme twice"),
        (_assigned_to_nothing, "is assigned and has 0 themes"),
        (_score_for_nothing, "has a score for no theme"),
        (_silent_by_method, "is non_answer by method 'cluster'"),
        (_unassigned_by_anything, "is other by method None"),
        (_fail_without_reason, "is failed for the reason None"),
        (_stance_to_unlisted, "has a stance to 'T02', which it does not list"),
        (_theme_there_twice, "theme T01 is there 2 times"),
        (_same_name, "2 themes are named"),
        (_orphan, "is within 'T99', which is no theme"),
        (_pretend, "labelling says llm, names are by keywords"),
        (_no_model, "labelling says mixed and no model"),
        (_no_call, "labelling names an LLM, and no call was made"),
        (_regroup, "groups of 'topic' add up"),
        (_forget_non_answer, "the non-answers add up to 0"),
        (_more_suggested, "the suggested themes hold 5 answers, other has 1"),
        (_another_reason, "the reasons of the failed add up to 0"),
        (_more_unique, "the different texts and duplicates add up to"),
        (_other_stance, "states 0 negative answers, there are 1"),
        (_hidden_stance, "states 0 mixed answers, there are 1"),
        (_quote_freely, "not verbatim"),
        (_quote_elsewhere, "is assigned elsewhere"),
        (_quote_blank, "is blank"),
        (_quote_unseen, "was not compared"),
        (_sample_from_theme, "other: quoted answer"),
        (_suggest_from_theme, "'Parking': quoted answer"),
        (_halve_support, "only 0.5 of the quotes"),
        (_say(text="It is 77 more."), "states 77, which was not computed"),
        (_say(text="Half: 51 %.", numbers={"share": 0.5}), "states 51, which was not computed"),
        (_say(numbers_checked=False), "was not checked"),
        (_say(theme_ids=["T42"]), "which does not exist"),
        (_say(evidence=[{"response_id": "r999"}]), "rests on 'r999'"),
        (_say(numbers={"people": 7}), "rests on numbers of no known kind: people 7"),
        (_say(text="“Ghosts” are named."), "quotes “Ghosts”, which is none of"),
        (_lie_by_model, "not so: responses 58, analysed 60"),
        (_hide_rest, "not so: other 0, analysed 60"),
        (_more_silent, "not so: non_answers 5, rows 61"),
        (_count_twice, "not so: largest 2"),
        (_swap_groups, "do not agree"),
        (_share_of_all, "do not agree"),
        (_more_texts_in_theme, "T01 states 1000 different texts"),
        (_fewer_texts, "input states 55 different texts, there are 60 to 60"),
        (_more_empty, "input.empty states 9 rows, there are 0"),
        (_other_silence, "'terribleservice' is listed among the non-answers"),
    ],
)
def test_a_falsified_result_is_found_out(
    rich: dict[str, Any], falsify: Callable[[Any], None], said: str
) -> None:
    false = copy.deepcopy(rich)
    falsify(false)
    assert any(said in problem for problem in problems(false, ANSWERS))


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (("themes", 0), "theme T01 states a share of"),
        (("other",), "other states a share of"),
        (("failed",), "failed states a share of"),
        (("non_answers",), "non_answers states a share of"),
    ],
)
def test_a_wrong_share_is_found_out(
    rich: dict[str, Any], place: tuple[str | int, ...], said: str
) -> None:
    false: Any = copy.deepcopy(rich)
    part = false
    for step in place:
        part = part[step]
    part["share"] += 0.1
    assert any(said in problem for problem in problems(false, ANSWERS))


@pytest.mark.parametrize("name", ["coverage", "other_share", "failed_responses"])
def test_a_wrong_metric_is_found_out(rich: dict[str, Any], name: str) -> None:
    false = copy.deepcopy(rich)
    false["metrics"][name] += 0.01
    assert any(f"metrics.{name} states" in problem for problem in problems(false, ANSWERS))


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("other", "responses"),
        ("failed", "responses"),
        ("non_answers", "responses"),
        ("input", "non_answers"),
        ("input", "analysed"),
        ("input", "rows"),
    ],
)
def test_a_wrong_count_is_found_out(rich: dict[str, Any], part: str, name: str) -> None:
    false = copy.deepcopy(rich)
    false[part][name] += 1
    found = problems(false, ANSWERS)
    assert any(problem.startswith((f"{part} states", f"{part}.{name} states")) for problem in found)


GROUPS = {"topic": {row["id"]: row["topic"] for row in ROWS} | {"silent": "food"}}


def _exchange(result: Any) -> None:
    """Counts and shares of two groups: as plausible as before, unless one knows the groups."""
    groups = result["themes"][0]["by_group"]["topic"]
    most, least = sorted(groups, key=lambda group: -groups[group]["responses"])[::2]
    groups[most], groups[least] = groups[least], groups[most]


def _another_group(result: Any) -> None:
    groups = result["themes"][0]["by_group"]["topic"]
    groups["sports"] = groups.pop("food")


def _no_groups(result: Any) -> None:
    result["themes"][0]["by_group"] = {}


@pytest.mark.parametrize(
    ("falsify", "said"),
    [
        (_exchange, "answers, there are"),
        (_another_group, "has the groups"),
        (_no_groups, "is counted by no group"),
        (_share_of_all, "states a share of 1.0"),
    ],
)
def test_counts_by_group_are_compared_with_the_groups(
    rich: dict[str, Any], falsify: Callable[[Any], None], said: str
) -> None:
    false = copy.deepcopy(rich)
    assert verify(ThemesResult.model_validate(false), ANSWERS, GROUPS) == []
    falsify(false)
    found = verify(ThemesResult.model_validate(false), ANSWERS, GROUPS)
    assert any(said in problem for problem in found)


@pytest.mark.parametrize("name", ["rows", "non_answers"])
def test_questions_account_for_all_rows(rich: dict[str, Any], name: str) -> None:
    false = copy.deepcopy(rich)
    false["input"]["questions"][0][name] += 1
    assert any("questions" in problem for problem in problems(false, ANSWERS))


def test_languages_account_for_all_answers(rich: dict[str, Any]) -> None:
    false = copy.deepcopy(rich)
    false["input"]["languages"]["de"] = 1
    assert any("input.languages states" in problem for problem in problems(false, ANSWERS))


@pytest.mark.parametrize("name", list(ZEROS))
def test_usage_adds_up(rich: dict[str, Any], name: str) -> None:
    false = copy.deepcopy(rich)
    false["usage"][name] += 1
    assert any("its stages add up" in problem for problem in problems(false, ANSWERS))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("1,204 of 2,000 answers (60 %)", []),
        ("60.2 % of all", []),
        ("60.2 per cent of all", []),
        ("1,204 % of 60", ["1,204", "60"]),
        ("1,2,04 and 12,04", ["1,2,04", "12,04"]),
        ("¾, or nine in ten, or half", ["nine", "ten", "half", "¾"]),
        ("In 2024, 1,204 answers", ["2024"]),
        ("“Ward 7” has 1,204", []),
        ("“The “7” bus” has 2,000", []),
        ("61 %", ["61"]),
        ("2000k answers, -60 %, 12,04 of them", ["2000k", "-60", "12,04"]),
    ],
)
def test_figures_are_computed_ones_or_names(text: str, left: list[str]) -> None:
    numbers = {"responses": 1204, "analysed": 2000, "share": 0.602}
    assert unexplained_figures(text, numbers, ["The “7” bus"]) == left


def test_a_share_is_no_count_and_z_is_neither() -> None:
    numbers = {"F1.share": 1, "F1.z": 0.5, "F1.responses": 40}  # 1: as JavaScript writes 1.0
    assert unexplained_figures("100 % of 40", numbers) == []
    assert unexplained_figures("40 %, 50 %, 1", numbers) == ["40", "50", "1"]


def test_the_backends_are_described() -> None:
    told = Embedding.model_fields["backend"].description
    assert all(f'"{backend}"' in str(told) for backend in BACKENDS if backend != "auto")


def test_the_table_ends_with_what_has_no_theme(rich: dict[str, Any]) -> None:
    table = theme_rows(ThemesResult.model_validate(rich))
    assert [row.name for row in table][-2:] == ["Other", "Not judged"]
    assert sum(row.responses for row in table) == 61  # one answer has two themes
