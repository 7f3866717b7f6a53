"""The payload of a thematic analysis: its keys, their bounds, and errors that say what to do.

Everything is refused that is not known by name, so that a misspelt parameter is never silently
ignored and a path or an address in the payload is never opened.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from app.domain.errors import HaulageError

MAX_ANSWERS: Final = 50_000
"""The nearest neighbours are searched exactly: work grows with the square of the answers."""


class ParameterError(HaulageError):
    """A value in the payload is unknown, missing or out of bounds.

    Attributes:
        name: the key, with its place ("redact.emails", "answers[3]").
        value: what was found there.
        remedy: what would be accepted.
    """

    def __init__(self, name: str, value: object, remedy: str) -> None:
        shown = repr(value)
        super().__init__(
            f"{name}={shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '…'}: {remedy}"
        )
        self.name = name
        self.value = value
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Redact:
    """Which personal data are masked before a text is analysed."""

    emails: bool = True
    phones: bool = True


@dataclass(frozen=True, slots=True)
class Parameters:
    """How to analyse. Field names are the payload's keys."""

    mode: str = "auto"
    max_themes: int = 15
    min_theme_size: int = 5
    granularity: str = "medium"
    quotes_per_theme: int = 5
    seed: int = 0
    redact: Redact = field(default_factory=Redact)
    embedding_backend: str = "auto"


@dataclass(frozen=True, slots=True)
class Request:
    """A checked payload.

    Attributes:
        answers: as given: strings, or mappings of column to value.
        fingerprint: sha256 over everything that the outcome depends on.
        params_hash: sha256 over the parameters alone.
    """

    answers: tuple[Any, ...]
    text_column: str
    id_column: str | None
    group_by: tuple[str, ...]
    question: str | None
    parameters: Parameters
    fingerprint: str
    params_hash: str


def parse_request(payload: Mapping[str, Any], *, max_answers: int = MAX_ANSWERS) -> Request:
    """Check a payload and fill in the defaults.

    Raises:
        ParameterError: naming key, value and remedy of the first thing that is wrong.
    """
    _refuse_unknown(payload, _KEYS, "")
    answers = payload.get("answers")
    if not isinstance(answers, list | tuple):
        raise ParameterError("answers", answers, "give a list of texts or of objects")
    if len(answers) > max_answers:
        raise ParameterError(
            "answers", f"{len(answers)} answers", f"at most {max_answers}; split or sample them"
        )
    redact = _mapping(payload, "redact", _REDACT_KEYS)
    embedding = _mapping(payload, "embedding", _EMBEDDING_KEYS)
    parameters = Parameters(
        mode=_mode(payload),
        max_themes=_integer(payload, "max_themes", 15, 1, 100),
        min_theme_size=_integer(payload, "min_theme_size", 5, 1, 10_000),
        granularity=_choice(payload, "granularity", "medium", GRANULARITIES),
        quotes_per_theme=_integer(payload, "quotes_per_theme", 5, 0, 20),
        seed=_integer(payload, "seed", 0, 0, 1_000_000),
        redact=Redact(_flag(redact, "emails", "redact."), _flag(redact, "phones", "redact.")),
        embedding_backend=_choice(embedding, "backend", "auto", BACKENDS, "embedding."),
    )
    text_column = _text(payload, "text_column") or "text"
    id_column = _text(payload, "id_column")
    group_by = _columns(payload, "group_by")
    question = _text(payload, "question")
    settings = {
        **{name: getattr(parameters, name) for name in parameters.__slots__ if name != "redact"},
        "redact": [parameters.redact.emails, parameters.redact.phones],
        "columns": [text_column, id_column, group_by],
        "question": question,
    }
    return Request(
        answers=tuple(answers),
        text_column=text_column,
        id_column=id_column,
        group_by=group_by,
        question=question,
        parameters=parameters,
        fingerprint=_digest([settings, answers]),
        params_hash=_digest(settings),
    )


GRANULARITIES: Final = ("coarse", "medium", "fine")
BACKENDS: Final = ("auto", "minilm-int8", "lsa")
_SHOWN: Final = 80
_REDACT_KEYS: Final = ("emails", "phones")
_EMBEDDING_KEYS: Final = ("backend",)
_KEYS: Final = (
    "answers",
    "embedding",
    "granularity",
    "group_by",
    "id_column",
    "max_themes",
    "min_theme_size",
    "mode",
    "question",
    "quotes_per_theme",
    "redact",
    "seed",
    "text_column",
)


def _mode(payload: Mapping[str, Any]) -> str:
    mode = payload.get("mode", "auto")
    if mode in ("name", "full"):
        raise ParameterError(
            "mode", mode, "this mode needs an LLM and none is configured; use 'auto' or 'keywords'"
        )
    return _choice(payload, "mode", "auto", ("auto", "keywords"))


def _refuse_unknown(given: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
    for key in given:
        if key not in known:
            raise ParameterError(
                f"{prefix}{key}", given[key], f"unknown key; known: {', '.join(known)}"
            )


def _mapping(payload: Mapping[str, Any], name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    value = payload.get(name, {})
    if not isinstance(value, Mapping):
        raise ParameterError(name, value, f"give an object with the keys {', '.join(known)}")
    _refuse_unknown(value, known, f"{name}.")
    return value


def _integer(payload: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = payload.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ParameterError(name, value, f"give a whole number from {low} to {high}")
    return value


def _choice(
    payload: Mapping[str, Any], name: str, default: str, allowed: tuple[str, ...], prefix: str = ""
) -> str:
    value = payload.get(name, default)
    if not isinstance(value, str) or value not in allowed:
        raise ParameterError(f"{prefix}{name}", value, f"give one of {', '.join(allowed)}")
    return value


def _flag(payload: Mapping[str, Any], name: str, prefix: str) -> bool:
    value = payload.get(name, True)
    if not isinstance(value, bool):
        raise ParameterError(f"{prefix}{name}", value, "give true or false")
    return value


def _text(payload: Mapping[str, Any], name: str) -> str | None:
    value = payload.get(name)
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise ParameterError(name, value, "give a text that is not blank, or leave the key out")
    return value


def _columns(payload: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = payload.get(name, [])
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ParameterError(name, value, "give a list of column names")
    if len(set(value)) != len(value):
        raise ParameterError(name, value, "name each column once")
    return tuple(value)


def _digest(value: object) -> str:
    try:
        canonical = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ParameterError(
            "answers", type(value).__name__, f"give JSON values: {error}"
        ) from error
    return hashlib.sha256(canonical.encode()).hexdigest()
