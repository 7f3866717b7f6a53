from typing import Any

import pytest

from app.pipelines.thematic.load import MAX_GROUPS, load
from app.pipelines.thematic.parameters import ParameterError, parse_request


def test_defaults_are_filled_in() -> None:
    parameters = parse_request({"answers": []}).parameters
    assert (parameters.mode, parameters.max_themes, parameters.min_theme_size) == ("auto", 15, 5)
    assert (parameters.granularity, parameters.quotes_per_theme, parameters.seed) == (
        "medium",
        5,
        0,
    )
    assert parameters.redact.emails
    assert parameters.redact.phones
    assert parameters.embedding_backend == "auto"


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        ({}, "answers"),
        ({"answers": "one text"}, "answers"),
        ({"answers": [], "path": "/etc/passwd"}, "path"),
        ({"answers": [], "url": "http://127.0.0.1/"}, "url"),
        ({"answers": [], "max_theme": 3}, "max_theme"),
        ({"answers": [], "max_themes": 0}, "max_themes"),
        ({"answers": [], "max_themes": True}, "max_themes"),
        ({"answers": [], "min_theme_size": 2.5}, "min_theme_size"),
        ({"answers": [], "seed": -1}, "seed"),
        ({"answers": [], "granularity": "tiny"}, "granularity"),
        ({"answers": [], "granularity": ["fine"]}, "granularity"),
        ({"answers": [], "redact": {"names": True}}, "redact.names"),
        ({"answers": [], "redact": {"emails": "yes"}}, "redact.emails"),
        ({"answers": [], "redact": True}, "redact"),
        ({"answers": [], "embedding": {"backend": "gpt"}}, "embedding.backend"),
        ({"answers": [], "embedding": {"model": "x"}}, "embedding"),
        ({"answers": [], "group_by": "region"}, "group_by"),
        ({"answers": [], "group_by": ["region", "region"]}, "group_by"),
        ({"answers": [], "question": " "}, "question"),
        ({"answers": [], "text_column": 3}, "text_column"),
        ({"answers": [object()]}, "answers"),
    ],
)
def test_a_wrong_value_is_refused_by_name(payload: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError) as caught:
        parse_request(payload)
    assert caught.value.name == name
    assert caught.value.remedy


@pytest.mark.parametrize("mode", ["name", "full"])
def test_modes_that_need_an_llm_say_that_none_is_configured(mode: str) -> None:
    with pytest.raises(ParameterError, match="needs an LLM and none is configured"):
        parse_request({"answers": [], "mode": mode})


def test_too_many_answers_are_refused_without_showing_them() -> None:
    with pytest.raises(ParameterError, match="3 answers': at most 2"):
        parse_request({"answers": ["a", "b", "c"]}, max_answers=2)


def test_the_fingerprint_changes_with_answers_and_parameters() -> None:
    payloads: list[dict[str, Any]] = [
        {"answers": ["a"]},
        {"answers": ["b"]},
        {"answers": ["a"], "seed": 1},
        {"answers": ["a"], "question": "Why?"},
        {"answers": ["a"], "redact": {"phones": False}},
        {"answers": [{"text": "a"}]},
    ]
    assert len({parse_request(payload).fingerprint for payload in payloads}) == len(payloads)
    same = parse_request({"seed": 0, "answers": ["a"], "mode": "auto"})
    assert same.fingerprint == parse_request({"answers": ["a"]}).fingerprint


def test_plain_texts_are_numbered() -> None:
    answers = load(parse_request({"answers": ["a", "b"]}))
    assert (answers.ids, answers.texts) == (["1", "2"], ["a", "b"])


def test_objects_give_ids_texts_and_groups() -> None:
    answers = load(
        parse_request(
            {
                "answers": [
                    {"n": 7, "said": "a", "where": "north"},
                    {"n": 8, "said": None},
                    {"n": 9, "where": 3},
                ],
                "id_column": "n",
                "text_column": "said",
                "group_by": ["where"],
            }
        )
    )
    assert answers.ids == ["7", "8", "9"]
    assert answers.texts == ["a", "", ""]
    assert answers.groups == {"where": ["north", "(none)", "3"]}


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        ({"answers": ["a", {"text": "b"}]}, "answers[0]"),
        ({"answers": [{"text": "a"}, 5]}, "answers[1]"),
        ({"answers": [{"text": 5}]}, "answers[0].text"),
        ({"answers": [{"said": "a"}]}, "text_column"),
        ({"answers": [{"text": "a"}], "id_column": "id"}, "id_column"),
        ({"answers": [{"text": "a", "id": ""}], "id_column": "id"}, "answers[0].id"),
        ({"answers": [{"text": "a", "id": 1}, {"text": "b", "id": "1"}], "id_column": "id"}, "id"),
        ({"answers": [{"text": "a"}], "group_by": ["region"]}, "group_by"),
        ({"answers": [{"text": "a", "g": []}], "group_by": ["g"]}, "answers[0].g"),
        ({"answers": ["a"], "group_by": ["g"]}, "group_by"),
    ],
)
def test_a_wrong_answer_is_refused_by_its_place(payload: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError) as caught:
        load(parse_request(payload))
    assert caught.value.name == name


def test_a_column_of_free_text_is_no_group() -> None:
    rows = [{"text": "a", "g": str(number)} for number in range(MAX_GROUPS + 1)]
    with pytest.raises(ParameterError, match="different values"):
        load(parse_request({"answers": rows, "group_by": ["g"]}))
