"""The payload of a thematic analysis: its keys, their bounds, and errors that say what to do.

Everything is refused that is not known by name, so that a misspelt parameter is never silently
ignored and a path or an address in the payload is never opened.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from app.pipelines.llm.interface import EmbeddingsSettings, LLMSettings
from app.pipelines.thematic.checking import (
    MAX_COLUMN,
    ParameterError,
    choice,
    columns,
    flag,
    integer,
    kind,
    line,
    mapping,
    refuse_unknown,
    text,
)
from app.pipelines.thematic.codes import Code, given_codes
from app.pipelines.thematic.reaching import (
    EMBEDDING_KEYS,
    Operator,
    address,
    embedding_settings,
    llm_settings,
)

__all__ = [
    "MAX_ANSWERS",
    "Code",
    "ParameterError",
    "Parameters",
    "Redact",
    "Request",
    "StartFrom",
    "parse_request",
]

MAX_ANSWERS: Final = 50_000
"""The nearest neighbours are searched exactly: work grows with the square of the answers."""

MAX_QUESTIONS: Final = 20
MAX_QUESTION: Final = 2_000
MAX_PHRASES: Final = 500
MAX_PHRASE: Final = 100


@dataclass(frozen=True, slots=True)
class Redact:
    """Which personal data are masked before a text is analysed.

    Attributes:
        custom: words and phrases, in any case; never patterns, so that none can run away.
    """

    emails: bool = True
    phones: bool = True
    custom: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartFrom:
    """The job whose finished stages, up to and including `stage`, are taken over."""

    job: str
    stage: str


@dataclass(frozen=True, slots=True)
class Parameters:
    """How to analyse. Field names are the payload's keys.

    Attributes:
        mode: "auto", "keywords", "name" or "full".
        context: one paragraph about the survey, shown to the LLM.
        stance: whether it is to be told how each answer stands to its themes.
        double_coding: whose verdicts are asked for twice, "doubtful" or "all" (see doubling.py).
        embedding: how to reach the server of the backend "endpoint", None for the others.
        codebook: themes to assign to; empty where they are to be discovered.
        llm: None where none is configured, or the mode needs none.
    """

    mode: str = "auto"
    max_themes: int = 15
    min_theme_size: int = 5
    granularity: str = "medium"
    quotes_per_theme: int = 5
    seed: int = 0
    redact: Redact = field(default_factory=Redact)
    embedding_backend: str = "auto"
    embedding_base_url: str | None = None
    embedding_model: str | None = None
    embedding: EmbeddingsSettings | None = None
    context: str | None = None
    stance: bool = False
    double_coding: str = "doubtful"
    codebook: tuple[Code, ...] = ()
    llm: LLMSettings | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A checked payload.

    Attributes:
        answers: as given: strings, or mappings of column to value; empty with a dataset.
        dataset_id: the stored dataset whose rows are the answers.
        text_columns: hold the answers; empty where the input is to tell.
        question: what people were asked, where it is one question.
        questions: column of answers -> its question, where there are several.
        input_hash: sha256 over the answers and where in them the texts are.
        fingerprint: sha256 over everything that the outcome depends on.
        params_hash: sha256 over the parameters alone.
    """

    answers: tuple[Any, ...]
    dataset_id: str | None
    text_columns: tuple[str, ...]
    id_column: str | None
    group_by: tuple[str, ...]
    question: str | None
    questions: Mapping[str, str]
    start_from: StartFrom | None
    parameters: Parameters
    input_hash: str
    fingerprint: str
    params_hash: str


def parse_request(
    payload: Mapping[str, Any],
    *,
    max_answers: int = MAX_ANSWERS,
    llm: Mapping[str, Any] | None = None,
    llm_origins: Sequence[str] = (),
    embedding: Mapping[str, Any] | None = None,
) -> Request:
    """Check a payload and fill in the defaults.

    Args:
        payload: the job's.
        max_answers: more are refused.
        llm: the operator's keys of LLMSettings, and `models` (see Operator).
        llm_origins: addresses that a payload may name beside the operator's own.
        embedding: the operator's word on embeddings (see Operator).

    Raises:
        ParameterError: naming key, value and remedy of the first thing that is wrong.
    """
    refuse_unknown(payload, _KEYS)
    dataset_id = _dataset(payload)
    answers = () if dataset_id is not None else _answers(payload, max_answers)
    parameters = _parameters(payload, Operator(llm or {}, llm_origins, embedding or {}))
    text_columns = _text_columns(payload)
    id_column = text(payload, "id_column", longest=MAX_COLUMN)
    group_by = columns(payload, "group_by")
    question, questions = _questions(payload, text_columns)
    settings = {
        **{
            name: getattr(parameters, name)
            for name in parameters.__slots__
            if name not in ("redact", "codebook", "llm", "embedding")
        },
        "redact": asdict(parameters.redact),
        "codebook": [[code.name, code.definition] for code in parameters.codebook],
        "llm": outcome_settings(parameters.llm),
        "columns": [text_columns or list(questions), id_column, group_by],
        "question": question or questions,
    }
    source = {"dataset": dataset_id} if dataset_id is not None else answers
    return Request(
        answers=tuple(answers),
        dataset_id=dataset_id,
        text_columns=text_columns or tuple(questions),
        id_column=id_column,
        group_by=group_by,
        question=question,
        questions=questions,
        start_from=_start_from(payload),
        parameters=parameters,
        input_hash=digest([source, settings["columns"], settings["question"]]),
        fingerprint=digest([settings, source]),
        params_hash=digest(settings),
    )


def outcome_settings(llm: LLMSettings | None) -> dict[str, Any] | None:
    """What of the LLM's settings an outcome depends on; never where it is or how it is reached."""
    if llm is None:
        return None
    return {name: value for name, value in asdict(llm).items() if name not in _REACHING}


GRANULARITIES: Final = ("coarse", "medium", "fine")
BACKENDS: Final = ("auto", "minilm-int8", "lsa", "endpoint")
DOUBLE_CODING: Final = ("doubtful", "all")
MODES: Final = ("auto", "keywords", "name", "full")
SOURCES: Final = (
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
)
"""Stages whose outcome another job may start from."""

_REACHING: Final = (
    "base_url",
    "api_key_env",
    "concurrency",
    "timeout_seconds",
    "max_retries",
    "client",
)
_REDACT_KEYS: Final = ("custom", "emails", "phones")
_KEYS: Final = (
    "answers",
    "codebook",
    "context",
    "dataset",
    "double_coding",
    "embedding",
    "granularity",
    "group_by",
    "id_column",
    "llm",
    "max_themes",
    "min_theme_size",
    "mode",
    "question",
    "quotes_per_theme",
    "redact",
    "seed",
    "stance",
    "start_from",
    "text_column",
)
_ID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def _parameters(payload: Mapping[str, Any], operator: Operator) -> Parameters:
    redact = mapping(payload, "redact", _REDACT_KEYS)
    embedding = mapping(payload, "embedding", EMBEDDING_KEYS)
    backend = choice(embedding, "backend", "auto", BACKENDS, "embedding.")
    base_url = address(embedding, "embedding.", operator)
    model = line(embedding, "model", "embedding.", longest=200)
    if (backend == "endpoint") != (base_url is not None) or (base_url is None) != (model is None):
        remedy = "backend 'endpoint' needs base_url and model, and they need it"
        raise ParameterError("embedding", dict(embedding), remedy)
    mode = choice(payload, "mode", "auto", MODES)
    llm = llm_settings(payload, operator)
    if mode in ("name", "full") and llm is None:
        raise ParameterError(
            "mode", mode, "this mode needs an LLM and none is configured; use 'auto' or 'keywords'"
        )
    return Parameters(
        mode=mode,
        max_themes=integer(payload, "max_themes", 15, 1, 100),
        min_theme_size=integer(payload, "min_theme_size", 5, 1, 10_000),
        granularity=choice(payload, "granularity", "medium", GRANULARITIES),
        quotes_per_theme=integer(payload, "quotes_per_theme", 5, 0, 20),
        seed=integer(payload, "seed", 0, 0, 1_000_000),
        redact=Redact(
            emails=flag(redact, "emails", "redact."),
            phones=flag(redact, "phones", "redact."),
            custom=_phrases(redact),
        ),
        embedding_backend=backend,
        embedding_base_url=base_url,
        embedding_model=model,
        embedding=embedding_settings(embedding, base_url, model, operator),
        context=text(payload, "context", longest=4_000),
        stance=flag(payload, "stance", default=False),
        double_coding=choice(payload, "double_coding", "doubtful", DOUBLE_CODING),
        codebook=given_codes(payload),
        llm=None if mode == "keywords" else llm,
    )


def _answers(payload: Mapping[str, Any], max_answers: int) -> Sequence[Any]:
    answers = payload.get("answers")
    if not isinstance(answers, list | tuple):
        raise ParameterError("answers", kind(answers), "give a list of texts or of objects")
    if len(answers) > max_answers:
        raise ParameterError(
            "answers", f"{len(answers)} answers", f"at most {max_answers}; split or sample them"
        )
    return answers


def _dataset(payload: Mapping[str, Any]) -> str | None:
    if "dataset" not in payload:
        return None
    if "answers" in payload:
        raise ParameterError(
            "dataset", kind(payload["dataset"]), "give either answers or a dataset"
        )
    return _uuid(mapping(payload, "dataset", ("id",)), "id", "dataset.")


def _start_from(payload: Mapping[str, Any]) -> StartFrom | None:
    if "start_from" not in payload:
        return None
    given = mapping(payload, "start_from", ("job", "stage"))
    return StartFrom(
        job=_uuid(given, "job", "start_from."),
        stage=choice(given, "stage", "", SOURCES, "start_from."),
    )


def _uuid(given: Mapping[str, Any], name: str, prefix: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise ParameterError(f"{prefix}{name}", value, "give the id, a UUID")
    return value.lower()


def _text_columns(payload: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of answers; none where the input is to tell."""
    if not isinstance(payload.get("text_column"), list | tuple):
        column = text(payload, "text_column", longest=MAX_COLUMN)
        return () if column is None else (column,)
    given = columns(payload, "text_column")
    if not 0 < len(given) <= MAX_QUESTIONS:
        raise ParameterError("text_column", given, f"give 1 to {MAX_QUESTIONS} columns")
    return given


def _questions(
    payload: Mapping[str, Any], text_columns: tuple[str, ...]
) -> tuple[str | None, dict[str, str]]:
    """One question for all answers, or one per column of answers."""
    given = payload.get("question")
    if not isinstance(given, Mapping):
        return text(payload, "question", longest=MAX_QUESTION), {}
    are_columns = all(isinstance(key, str) and len(key) <= MAX_COLUMN for key in given)
    if not 0 < len(given) <= MAX_QUESTIONS or not are_columns:
        remedy = f"give a text, or an object of 1 to {MAX_QUESTIONS} columns with their questions"
        raise ParameterError("question", given, remedy)
    questions = {}
    for column in given:
        if text_columns and column not in text_columns:
            remedy = f"no column of answers; text_column names {', '.join(text_columns)}"
            raise ParameterError(f"question.{column}", given[column], remedy)
        question = text(given, column, "question.", longest=MAX_QUESTION)
        if question is None:
            raise ParameterError(f"question.{column}", None, "give the question's text")
        questions[column] = question
    return None, questions


def _phrases(redact: Mapping[str, Any]) -> tuple[str, ...]:
    given = redact.get("custom", [])
    if not isinstance(given, list | tuple) or len(given) > MAX_PHRASES:
        remedy = f"give a list of at most {MAX_PHRASES} words or phrases"
        raise ParameterError("redact.custom", given, remedy)
    for at, phrase in enumerate(given):
        if not isinstance(phrase, str) or not 0 < len(phrase.strip()) <= MAX_PHRASE:
            remedy = f"give a word or phrase of at most {MAX_PHRASE} characters"
            raise ParameterError(f"redact.custom[{at}]", phrase, remedy)
    return tuple(given)


def digest(value: object) -> str:
    """The sha256 of a JSON value in its canonical form.

    Raises:
        ParameterError: it is no JSON.
    """
    try:
        canonical = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ParameterError(
            "answers", type(value).__name__, f"give JSON values: {error}"
        ) from error
    return hashlib.sha256(canonical.encode()).hexdigest()
