"""What is told of our own pipelines is what they are and take."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

import pytest

from app.pipelines import registry
from app.pipelines.llm.interface import LLMSettings
from app.pipelines.payloads import BUILT_IN
from app.pipelines.thematic import checking, codes, parameters, reaching
from app.pipelines.thematic.parameters import ParameterError, Request, parse_request
from app.pipelines.thematic.reaching import EMBEDDING_KEYS
from app.worker.loading import import_class

THEMATIC = BUILT_IN["app.pipelines.thematic.pipeline:ThematicAnalysis"].payload_schema or {}
PROPERTIES: Mapping[str, Any] = THEMATIC["properties"]
ID = "019ad0f2-5f3e-7c1a-9d0e-2b7c8f6f0a11"
OPERATOR = {"base_url": "http://127.0.0.1:1/v1", "model": "m"}
# What a value needs around it to be taken.
AROUND: dict[str, dict[str, Any]] = {
    "embedding.backend": {"embedding": {"base_url": OPERATOR["base_url"], "model": "m"}},
    "start_from.job": {"start_from": {"stage": "load"}},
    "start_from.stage": {"start_from": {"job": ID}},
}


def parsed(payload: Mapping[str, Any], llm: Mapping[str, Any] | None = OPERATOR) -> Request:
    if "dataset" not in payload:
        payload = {"answers": ["a"], **payload}
    return parse_request(payload, llm=llm)


def leaves(
    properties: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    for name, schema in properties.items():
        if schema.get("type") == "object" and "properties" in schema:
            yield from leaves(schema["properties"], (*path, name))
        else:
            yield (*path, name), schema


LEAVES = {".".join(path): schema for path, schema in leaves(PROPERTIES)}
NUMBERS = [name for name, schema in LEAVES.items() if "maximum" in schema]
CHOICES = [name for name, schema in LEAVES.items() if "enum" in schema]
FLAGS = [name for name, schema in LEAVES.items() if schema.get("type") == "boolean"]
TEXTS = [name for name, schema in LEAVES.items() if "maxLength" in schema]


def with_value(name: str, value: Any) -> dict[str, Any]:
    outer, _, inner = name.partition(".")
    if not inner:
        return {outer: value}
    return {outer: {**AROUND.get(name, {}).get(outer, {}), inner: value}}


def test_every_pipeline_of_ours_is_described_by_its_own_words() -> None:
    assert set(BUILT_IN) == set(registry._BUILT_IN.values())
    for target, declared in BUILT_IN.items():
        found = import_class(target)
        assert declared.description == (inspect.getdoc(found) or "").partition("\n")[0]
        assert declared.defaults == getattr(found, "job_defaults", {})
        assert registry.load_registrations({})


def test_the_schema_has_exactly_the_keys_that_are_known() -> None:
    assert sorted(PROPERTIES) == sorted(parameters._KEYS)
    assert sorted(PROPERTIES["redact"]["properties"]) == sorted(parameters._REDACT_KEYS)
    assert sorted(PROPERTIES["embedding"]["properties"]) == sorted(EMBEDDING_KEYS)
    assert sorted(PROPERTIES["llm"]["properties"]) == sorted(get_type_hints(LLMSettings))
    assert LEAVES["start_from.stage"]["enum"] == list(parameters.SOURCES)
    for schema in (THEMATIC, *(PROPERTIES[n] for n in ("redact", "embedding", "llm", "dataset"))):
        assert schema["additionalProperties"] is False


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_taken_within_their_bounds_and_not_beyond(name: str) -> None:
    schema = LEAVES[name]
    step = 0.01 if schema["type"] == "number" else 1
    for value in (schema["minimum"], schema["maximum"]):
        parsed(with_value(name, value))
    for value in (schema["minimum"] - step, schema["maximum"] + step, "1", True):
        with pytest.raises(ParameterError):
            parsed(with_value(name, value))


@pytest.mark.parametrize("name", CHOICES)
def test_each_choice_is_taken_and_no_other(name: str) -> None:
    for value in LEAVES[name]["enum"]:
        payload = with_value(name, value)
        if name == "embedding.backend" and value != "endpoint":
            payload = {"embedding": {"backend": value}}
        parsed(payload)
    with pytest.raises(ParameterError):
        parsed(with_value(name, "another"))


@pytest.mark.parametrize("name", FLAGS)
def test_flags_are_true_or_false(name: str) -> None:
    for value in (True, False):
        parsed(with_value(name, value))
    with pytest.raises(ParameterError):
        parsed(with_value(name, 1))


def test_defaults_are_those_that_hold() -> None:
    plain = parsed({}).parameters
    for name, schema in PROPERTIES.items():
        if "default" in schema:
            assert getattr(plain, name) == schema["default"], name
    for name, schema in PROPERTIES["redact"]["properties"].items():
        if "default" in schema:
            assert getattr(plain.redact, name) == schema["default"], name
    assert plain.llm is not None
    for name, schema in PROPERTIES["llm"]["properties"].items():
        if "default" in schema:
            assert getattr(plain.llm, name) == schema["default"], name
    assert plain.embedding_backend == LEAVES["embedding.backend"]["default"]


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in TEXTS
        if name not in {"embedding.base_url", "embedding.model", "llm.base_url"}
    ],
)
def test_texts_are_taken_up_to_their_length(name: str) -> None:
    longest = LEAVES[name]["maxLength"]
    parsed(with_value(name, "x" * longest))
    for value in ("x" * (longest + 1), " "):
        with pytest.raises(ParameterError):
            parsed(with_value(name, value))


@pytest.mark.parametrize("name", ["text_column", "group_by", "redact.custom", "codebook"])
def test_lists_are_taken_up_to_their_length(name: str) -> None:
    schema = LEAVES[name]
    [schema] = [s for s in schema.get("anyOf", [schema]) if s.get("type") == "array"]
    most = schema["maxItems"]

    def items(count: int) -> list[Any]:
        if name == "codebook":
            return [{"name": f"n{n}", "definition": "d"} for n in range(count)]
        return [f"n{n}" for n in range(count)]

    parsed(with_value(name, items(most)))
    with pytest.raises(ParameterError):
        parsed(with_value(name, items(most + 1)))
    longest = schema["items"].get("maxLength")
    if longest is not None:
        parsed(with_value(name, ["x" * longest]))
        with pytest.raises(ParameterError):
            parsed(with_value(name, ["x" * (longest + 1)]))


def test_bounds_are_those_of_the_code() -> None:
    assert PROPERTIES["answers"]["maxItems"] == parameters.MAX_ANSWERS
    [question] = [s for s in PROPERTIES["question"]["anyOf"] if s["type"] == "object"]
    assert question["maxProperties"] == parameters.MAX_QUESTIONS
    assert question["additionalProperties"]["maxLength"] == parameters.MAX_QUESTION
    assert question["propertyNames"]["maxLength"] == checking.MAX_COLUMN
    assert LEAVES["group_by"]["maxItems"] == checking.MAX_COLUMNS
    assert LEAVES["codebook"]["maxItems"] == codes.MAX_CODES
    assert LEAVES["llm.structured"]["enum"] == list(reaching.STRUCTURED)
    assert LEAVES["llm.client"]["enum"] == list(reaching.CLIENTS)


def test_answers_or_a_dataset_are_needed_and_not_both() -> None:
    assert THEMATIC["oneOf"] == [{"required": ["answers"]}, {"required": ["dataset"]}]
    parse_request({"answers": []})
    parse_request({"dataset": {"id": ID}})
    refused: list[dict[str, Any]] = [
        {},
        {"answers": [], "dataset": {"id": ID}},
        {"dataset": {}},
    ]
    for payload in refused:
        with pytest.raises(ParameterError):
            parse_request(payload)
