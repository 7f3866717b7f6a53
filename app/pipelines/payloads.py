"""What our own pipelines say of themselves and their payloads, as data.

The API tells it without importing a pipeline; tests compare it with the classes. Every payload that
a schema describes is one that the pipeline takes, save for what it says in words.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_ID: Final = {
    "type": "string",
    "pattern": "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
}
_COLUMN: Final = {"type": "string", "pattern": r"\S", "maxLength": 1_000}
_QUESTION: Final = {"type": "string", "pattern": r"\S", "maxLength": 2_000}
_MOST: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a pipeline's class declares.

    Attributes:
        description: the first line of its docstring.
        payload_schema: JSON schema of its payloads, None where it declares none.
        defaults: its `job_defaults`, unchecked.
    """

    description: str | None = None
    payload_schema: Mapping[str, Any] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


def _whole(low: int, high: int, default: int | None = None) -> dict[str, Any]:
    bounds = {"type": "integer", "minimum": low, "maximum": high}
    return bounds if default is None else {**bounds, "default": default}


def _number(low: float, high: float, default: float | None = None) -> dict[str, Any]:
    bounds = {"type": "number", "minimum": low, "maximum": high}
    return bounds if default is None else {**bounds, "default": default}


def _one_of(*values: str, default: str | None = None) -> dict[str, Any]:
    return {"enum": list(values)} if default is None else {"enum": list(values), "default": default}


_THEMATIC: Final = _object(
    {
        "answers": {
            "type": "array",
            "maxItems": 50_000,
            "items": {"type": ["string", "object"]},
            "description": "Texts, or objects with the text in `text_column`.",
        },
        "dataset": _object({"id": _ID}, required=["id"], description="Stored before."),
        "text_column": {
            "anyOf": [
                _COLUMN,
                {
                    "type": "array",
                    "items": {"type": "string", "maxLength": 1_000},
                    "minItems": 1,
                    "maxItems": 20,
                    "uniqueItems": True,
                },
            ],
            "description": "Column of the answers, or several; default `text`, or what the "
            "dataset tells.",
        },
        "id_column": {**_COLUMN, "description": "Holds a unique id per row."},
        "group_by": {
            "type": "array",
            "items": {"type": "string", "maxLength": 1_000},
            "maxItems": 50,
            "uniqueItems": True,
            "description": "Columns to compare groups by.",
        },
        "question": {
            "anyOf": [
                _QUESTION,
                {
                    "type": "object",
                    "additionalProperties": _QUESTION,
                    "propertyNames": {"maxLength": 1_000},
                    "minProperties": 1,
                    "maxProperties": 20,
                },
            ],
            "description": "What was asked, or an object of column and question.",
        },
        "context": {
            "type": "string",
            "pattern": r"\S",
            "maxLength": 4_000,
            "description": "A paragraph about the survey, for the LLM.",
        },
        "mode": {
            **_one_of("auto", "keywords", "name", "full", default="auto"),
            "description": "`name` and `full` need an LLM.",
        },
        "max_themes": _whole(1, 100, 15),
        "min_theme_size": _whole(1, 10_000, 5),
        "granularity": _one_of("coarse", "medium", "fine", default="medium"),
        "quotes_per_theme": _whole(0, 20, 5),
        "codebook": {
            "type": "array",
            "maxItems": 100,
            "items": _object(
                {
                    "name": {"type": "string", "pattern": r"\S", "maxLength": 100},
                    "definition": {"type": "string", "pattern": r"\S", "maxLength": 1_000},
                },
                required=["name"],
            ),
            "description": "Themes to assign to, instead of those in the answers; each name once.",
        },
        "stance": {
            "type": "boolean",
            "default": False,
            "description": "Ask how answers stand to their themes; needs an LLM.",
        },
        "double_coding": {
            **_one_of("doubtful", "all", default="doubtful"),
            "description": "Whose verdict the LLM is asked for twice, beside other answers.",
        },
        "start_from": _object(
            {
                "job": _ID,
                "stage": _one_of(
                    "load",
                    "prepare",
                    "embed",
                    "discover",
                    "name",
                    "review",
                    "assign",
                    "quotes",
                    "stance",
                    "insights",
                ),
            },
            required=["job", "stage"],
            description="Take over the stages of an earlier job up to this one.",
        ),
        "seed": _whole(0, 1_000_000, 0),
        "redact": _object(
            {
                "emails": {"type": "boolean", "default": True},
                "phones": {"type": "boolean", "default": True},
                "custom": {
                    "type": "array",
                    "maxItems": 500,
                    "items": {"type": "string", "pattern": r"\S", "maxLength": 100},
                },
            },
            description="What is masked before a text is analysed.",
        ),
        "embedding": _object(
            {
                "backend": _one_of("auto", "minilm-int8", "lsa", "endpoint", default="auto"),
                "base_url": {"type": "string", "maxLength": 500},
                "model": {"type": "string", "pattern": r"\S", "maxLength": 200},
                "api_key_env": {"type": "string", "description": "The operator's, or none."},
            },
            description="`endpoint` needs `base_url` and `model`, and they need it.",
        ),
        "llm": _object(
            {
                "base_url": {"type": "string", "maxLength": 500},
                "model": {"type": "string", "pattern": r"\S", "maxLength": 200},
                "api_key_env": {"type": "string", "description": "The operator's, or none."},
                "temperature": _number(0, 2, 0),
                "seed": {"type": ["integer", "null"], "minimum": 0, "maximum": _MOST, "default": 0},
                "max_output_tokens": _whole(64, 32_768, 2_048),
                "concurrency": _whole(1, 64, 4),
                "timeout_seconds": _number(0.1, 3_600, 120),
                "max_retries": _whole(0, 20, 5),
                "structured": _one_of("auto", "json_schema", "json_object", "text", default="auto"),
                "max_calls": _whole(0, _MOST),
                "max_tokens_total": _whole(0, _MOST),
                "max_cost": _number(0, _MOST),
                "prompt_price": _number(0, _MOST, 0),
                "completion_price": _number(0, _MOST, 0),
                "client": _one_of("httpx", "openai", default="httpx"),
            },
            description="Within what the operator allows; without an LLM themes are named by "
            "keywords.",
        ),
    },
    oneOf=[{"required": ["answers"]}, {"required": ["dataset"]}],
    **{"$schema": DIALECT},
)

BUILT_IN: Final[Mapping[str, Declaration]] = MappingProxyType(
    {
        "app.pipelines.thematic.pipeline:ThematicAnalysis": Declaration(
            "Thousands of free-text answers in, themes with counts, quotes and insights out.",
            _THEMATIC,
        ),
        "app.pipelines.demo:Sleep": Declaration(
            "Sleeps `seconds` in `steps` steps and reports each as progress.",
            {
                "$schema": DIALECT,
                "type": "object",
                "properties": {
                    "seconds": {"type": "number", "minimum": 0, "default": 3},
                    "steps": {"type": "integer", "default": 10},
                },
            },
        ),
        "app.pipelines.demo:Echo": Declaration(
            "Returns its payload, with the number of the attempt that did so.",
            {"$schema": DIALECT, "type": "object"},
        ),
        "app.pipelines.demo:Fail": Declaration(
            "Raises.",
            {
                "$schema": DIALECT,
                "type": "object",
                "properties": {"message": {"default": "failed on request"}},
            },
        ),
        "app.pipelines.demo:Crash": Declaration(
            "Ends its own process without a word.",
            {
                "$schema": DIALECT,
                "type": "object",
                "properties": {
                    "how": _one_of("kill", "exit", "abort", default="kill"),
                    "exit_code": _whole(0, 255, 3),
                },
            },
        ),
    }
)
"""By import path."""
