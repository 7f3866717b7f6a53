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
        ({"answers": [], "double_coding": "some"}, "double_coding"),
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


HIDDEN = "sk-proj-H1DDEN"


@pytest.mark.parametrize(
    "payload",
    [
        {"llm": {"api_key": HIDDEN}},
        {"llm": {"headers": {"authorization": HIDDEN}}},
        {"llm": HIDDEN},
        {"llm": [{"api_key": HIDDEN}]},
        {"llm": {"api_key_env": HIDDEN}},
        {"llm": {"api_key_env": HIDDEN + "A" * 160}},
        {"llm": {"api_key_env": [HIDDEN]}},
        {"llm": {"base_url": f"https://llm.example/v1?key={HIDDEN}"}},
        {"llm": {"base_url": f"https://{HIDDEN}@llm.example/v1"}},
        {"llm": {"base_url": f"https://{HIDDEN}@llm.example/{'v' * 500}"}},
        {"llm": {"max_tokens_total": HIDDEN}},
        {"llm": {"model": {"name": "m", "key": HIDDEN}}},
        {"embedding": {"api_key": HIDDEN}},
        {"embedding": {"api_key_env": HIDDEN}},
        {"embedding": {"backend": "lsa", "model": "m", "api_key_env": HIDDEN}},
        {"embedding": HIDDEN},
        {"api_key": HIDDEN},
        {"openai": {"token": HIDDEN}},
        {"redact": {"custom": HIDDEN}},
        {"redact": {"custom": [HIDDEN + "A" * 160]}},
        {"redact": {"password": HIDDEN}},
        {"codebook": [{"name": "A", "secret": HIDDEN}]},
        {"codebook": [HIDDEN]},
        {"question": {"text": {"key": HIDDEN}}},
    ],
    ids=str,
)
def test_no_error_shows_a_secret_or_what_stands_under_an_unknown_key(
    payload: dict[str, Any],
) -> None:
    own = {"base_url": "https://llm.example/v1", "model": "m", "api_key_env": "THE_KEY"}
    with pytest.raises(ParameterError) as caught:
        parse_request({"answers": [], **payload}, llm=own)
    assert HIDDEN not in str(caught.value) + repr(caught.value) + repr(caught.value.value)


@pytest.mark.parametrize("variable", [HIDDEN, HIDDEN + "A" * 160])
def test_no_error_shows_a_key_that_the_operator_put_in_the_place_of_its_name(variable: str) -> None:
    own = {"base_url": "https://llm.example/v1", "model": "m", "api_key_env": variable}
    with pytest.raises(ParameterError) as caught:
        parse_request({"answers": []}, llm=own)
    assert HIDDEN not in str(caught.value) + repr(caught.value.value)


def test_an_error_shows_a_wrong_value_and_is_short_whatever_was_given() -> None:
    with pytest.raises(ParameterError, match=r"^max_themes=0: give a whole number"):
        parse_request({"answers": [], "max_themes": 0})
    for payload in ({"k" * 100_000: 1}, {"mode": "m" * 100_000}):
        with pytest.raises(ParameterError) as caught:
            parse_request({"answers": [], **payload})
        assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("mode", ["name", "full"])
def test_modes_that_need_an_llm_say_that_none_is_configured(mode: str) -> None:
    with pytest.raises(ParameterError, match="needs an LLM and none is configured"):
        parse_request({"answers": [], "mode": mode})


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        ({"question": "q" * 2_001}, "question"),
        ({"question": {"a": "q" * 2_001}}, "question.a"),
        ({"question": {"c" * 1_001: "Why?"}}, "question"),
        ({"context": "c" * 4_001}, "context"),
        ({"text_column": "c" * 1_001}, "text_column"),
        ({"text_column": ["c" * 1_001]}, "text_column"),
        ({"id_column": "c" * 1_001}, "id_column"),
        ({"group_by": ["c" * 1_001]}, "group_by"),
        ({"group_by": [f"c{at}" for at in range(51)]}, "group_by"),
        ({"codebook": [{"name": "A", "definition": "d" * 1_001}]}, "codebook[0].definition"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_texts_of_a_payload_are_bounded(payload: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError) as caught:
        parse_request({"answers": [], **payload})
    assert caught.value.name == name


def test_texts_of_a_payload_may_be_as_long_as_surveys_have_them() -> None:
    request = parse_request(
        {"answers": [], "question": "q" * 2_000, "context": "c" * 4_000, "id_column": "c" * 1_000}
    )
    assert len(request.question or "") == 2_000


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
