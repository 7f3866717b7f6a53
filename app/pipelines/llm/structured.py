"""Answers in a given form: asked for as strictly as the server allows, then read with suspicion.

A server obeys one of four rungs: it forces a JSON schema with bounds of lengths and numbers, one
without, some JSON, or nothing. On the last two the schema is told in words. Whatever comes is cut
out of the text around it, cleaned of what no database can hold, and validated; what is wrong is
said in words that a repair call can hand back.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from app.pipelines.llm.interface import Chat, Completion, Message
from app.pipelines.llm.quoting import without_marks

RUNGS: Final = ("bounded_schema", "json_schema", "json_object", "text")

MAX_PROBLEMS: Final = 20
_MAX_PROBLEM_CHARACTERS: Final = 300
_MAX_ECHOED_CHARACTERS: Final = 6_000
# Notes for people: they cost tokens in every call, and some strict servers refuse "default".
_NOTES: Final = frozenset({"title", "default", "examples"})
# Hosted models refuse a schema that has one. Where they are obeyed they end the rambling of small
# models, which otherwise fill a text until they run out of tokens.
_BOUNDS: Final = frozenset(
    """
    minLength maxLength pattern format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf
    minItems maxItems uniqueItems
    """.split()  # noqa: SIM905  a paragraph is read more easily than a list
)
_THINKING: Final = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT: Final = "\ufffd"
# No form that is asked for has more than ten levels; what walks a value has a bounded stack.
_MAX_DEPTH: Final = 64

T = TypeVar("T", bound=BaseModel)


def strict_schema(answer: type[BaseModel], *, has_bounds: bool = True) -> dict[str, Any]:
    """The JSON schema of `answer` as strict servers want it: all keys required, no others allowed.

    A field with a default is required too: what may be left out must be nullable.
    """
    left_out = _NOTES if has_bounds else _NOTES | _BOUNDS
    schema: dict[str, Any] = _strict(answer.model_json_schema(), left_out)
    return schema


def _strict(schema: Any, left_out: AbstractSet[str]) -> Any:
    if isinstance(schema, list):
        return [_strict(item, left_out) for item in schema]
    if not isinstance(schema, dict):
        return schema
    strict: dict[str, Any] = {}
    for key, value in schema.items():
        if key in {"properties", "$defs"}:
            # The keys here are names of fields and of models, whatever they look like.
            strict[key] = {name: _strict(part, left_out) for name, part in value.items()}
        elif key not in left_out:
            strict[key] = value if key in {"enum", "const"} else _strict(value, left_out)
    if isinstance(schema.get("properties"), dict):
        strict["required"] = list(schema["properties"])
        strict["additionalProperties"] = False
    return strict


def chat_for(
    rung: str, messages: Sequence[Message], answer: type[BaseModel], max_output_tokens: int
) -> Chat:
    """The call that asks for an `answer` on this rung."""
    schema = strict_schema(answer, has_bounds=rung != "json_schema")
    if rung in {"bounded_schema", "json_schema"}:
        form: Mapping[str, Any] | None = {
            "type": "json_schema",
            "json_schema": {"name": answer.__name__[:64], "strict": True, "schema": schema},
        }
        return Chat(tuple(messages), form, max_output_tokens)
    told = Message(
        "system",
        "Answer with one JSON object and nothing else. It must match this JSON schema:\n"
        + json.dumps(schema, ensure_ascii=False, separators=(",", ":")),
    )
    # Some servers take one system message, and only as the first.
    first, *others = messages
    if first.role == "system":
        told = Message("system", f"{first.content}\n\n{told.content}")
    else:
        others = list(messages)
    form = {"type": "json_object"} if rung == "json_object" else None
    return Chat((told, *others), form, max_output_tokens)


def repair_of(chat: Chat, completion: Completion, problems: Sequence[str]) -> Chat:
    """The call that shows the model its answer and what is wrong with it.

    Both may hold what a respondent wrote and the model repeated: data here as well.
    """
    listed = "\n".join(
        f"- {without_marks(problem[:_MAX_PROBLEM_CHARACTERS])}" for problem in problems
    )
    echoed = without_marks(completion.text[:_MAX_ECHOED_CHARACTERS])
    messages = (
        *chat.messages,
        Message("assistant", echoed or "{}"),
        Message(
            "user",
            f"This answer was not accepted:\n{listed}\n"
            "Answer the whole question again, in the same form, without these mistakes.",
        ),
    )
    return Chat(messages, chat.response_format, chat.max_output_tokens)


def read(text: str, answer: type[T]) -> tuple[T | None, list[str]]:
    """The answer in `text`, or what keeps it from being one."""
    try:
        value = cut_json(text)
    except ValueError as error:
        return None, [str(error)]
    try:
        return answer.model_validate(cleaned(value)), []
    except ValidationError as error:
        return None, list(_problems(error))


def _problems(error: ValidationError) -> Iterator[str]:
    for found in error.errors(include_url=False, include_context=False)[:MAX_PROBLEMS]:
        place = ".".join(map(str, found["loc"])) or "the object"
        given = json.dumps(cleaned(found["input"]), ensure_ascii=False, default=str)
        yield f"{place}: {found['msg']}, not {given[:100]}"


def cut_json(text: str) -> dict[str, Any]:
    """The first JSON object in `text`, whatever stands around it.

    Raises:
        ValueError: there is none, or it breaks off.
    """
    text = _THINKING.sub("", text)
    decoder = json.JSONDecoder()
    is_broken = False
    start = text.find("{")
    # Each try costs up to the length of the text, so brackets in prose are not tried forever.
    for _ in range(50):
        if start < 0:
            break
        try:
            value, _ = decoder.raw_decode(text, start)
        except RecursionError:
            raise ValueError("the JSON is nested too deeply") from None
        except ValueError:
            is_broken = True
            start = text.find("{", start + 1)
            continue
        if is_broken and "}" not in text[:start]:
            # An object inside of one that never ended is a part, not the answer.
            raise ValueError("the JSON object breaks off or is malformed")
        if _is_too_deep(value):
            raise ValueError("the JSON is nested too deeply")
        return dict(value)
    raise ValueError(
        "the JSON object breaks off or is malformed" if is_broken else "there is no JSON object"
    )


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def cleaned(value: Any) -> Any:
    """`value` with each NUL and lone surrogate in its texts replaced by U+FFFD."""
    if isinstance(value, str):
        return _UNSTORABLE.sub(_REPLACEMENT, value)
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, dict):
        return {cleaned(key): cleaned(item) for key, item in value.items()}
    return value
