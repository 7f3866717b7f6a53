from typing import Any

import pytest

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
