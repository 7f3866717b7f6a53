"""Which servers a job may reach, and with whose key.

A payload comes from anybody who may submit, so it never widens what the operator allows: an
address must be one of the operator's, path included, the key is the operator's or none, and bounds
can only be lowered.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from app.pipelines.llm.interface import EmbeddingsSettings, LLMSettings
from app.pipelines.thematic.checking import (
    ParameterError,
    choice,
    integer,
    kind,
    line,
    number,
    refuse_unknown,
)

LLM_KEYS: Final = tuple(each.name for each in fields(LLMSettings))
EMBEDDING_KEYS: Final = ("backend", "base_url", "model", "api_key_env")
"""What a payload may say of embeddings."""

_OPERATORS_EMBEDDING_KEYS: Final = (
    *EMBEDDING_KEYS,
    "models",
    "prompt_price",
    "max_tokens_total",
    "max_cost",
    "concurrency",
    "timeout_seconds",
    "max_retries",
)
_BOUNDS: Final = ("max_calls", "max_tokens_total", "max_cost")
_EFFORT: Final = ("concurrency", "max_retries", "timeout_seconds", "max_output_tokens")
_PRICES: Final = ("prompt_price", "completion_price")
_PORTS: Final = {"http": 80, "https": 443}
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MOST: Final = 1_000_000_000
_LAST_PORT: Final = 65_535
_DEFAULTS: Final = {each.name: each.default for each in fields(LLMSettings)}
# Written plainly or not at all: what a client, a proxy and a server could read differently (user,
# query, fragment, percent signs, dots, empty steps, other alphabets) has no place in it.
_ADDRESS: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?P<port>:[0-9]{1,5})?"
    r"(?P<path>(/(?!\.{1,2}(/|\Z))[a-z0-9._~:@-]+)*)/?",
    re.ASCII | re.IGNORECASE,
)
_USUAL_PATH: Final = "/v1"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an address leads; two of the same place may be written differently."""

    scheme: str
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}{self.path}"

    @property
    def origin(self) -> tuple[str, str, int]:
        """The server."""
        return self.scheme, self.host, self.port

    def allows(self, other: "Place") -> bool:
        """Whether `other` is this place; where this one has no path, `/v1` there or below."""
        if self.path:
            return self == other
        is_below = f"{other.path}/".startswith(f"{_USUAL_PATH}/")
        return self.origin == other.origin and is_below


@dataclass(frozen=True, slots=True)
class Operator:
    """What the operator allows.

    Attributes:
        llm: keys of LLMSettings that jobs need not give; `models` beside them lists further ones
            that jobs may choose at the operator's prices.
        addresses: further base URLs that a payload may name; one without a path stands for `/v1`
            of that server and what is below.
        embedding: the same of embeddings: server, key, model and `models`, price and bounds. Its
            `base_url` serves embeddings alone; without one it speaks of the LLM's server.
    """

    llm: Mapping[str, Any]
    addresses: Sequence[str] = ()
    embedding: Mapping[str, Any] = field(default_factory=dict)

    def allows(self, given: Place, *, for_embedding: bool) -> bool:
        """Whether a payload may name this address."""
        if given == place(self.llm.get("base_url")):
            return True
        if for_embedding and given == place(self.embedding.get("base_url")):
            return True
        return any(each.allows(given) for each in map(place, self.addresses) if each is not None)


def place(url: str | None) -> Place | None:
    """Where an HTTP address leads; None where it is none, or is not written plainly."""
    parts = _ADDRESS.fullmatch(url) if isinstance(url, str) else None
    if parts is None:
        return None
    scheme = parts["scheme"].lower()
    port = int(parts["port"][1:]) if parts["port"] else _PORTS[scheme]
    if not 0 < port <= _LAST_PORT:
        return None
    return Place(scheme, parts["host"].lower(), port, parts["path"])


def address(payload: Mapping[str, Any], prefix: str, operator: Operator) -> str | None:
    """The payload's `base_url`, None where it is absent.

    Raises:
        ParameterError: it is no address, or of a server that the operator does not allow.
    """
    url = line(payload, "base_url", prefix, longest=500)
    if url is None:
        return None
    given = place(url)
    if given is None:
        raise ParameterError(f"{prefix}base_url", url, _PLAINLY)
    if not operator.allows(given, for_embedding=prefix == "embedding."):
        remedy = "the operator allows no such address; HAULAGE_LLM_ORIGINS lists those allowed"
        raise ParameterError(f"{prefix}base_url", url, remedy)
    return url


_PLAINLY: Final = (
    "give a plain http:// or https:// address, such as https://host:port/v1, without user, query "
    "(?), fragment (#) and percent signs"
)


def llm_settings(payload: Mapping[str, Any], operator: Operator) -> LLMSettings | None:
    """The model that a job uses, None where neither payload nor operator names a server.

    Raises:
        ParameterError: naming the first key that is wrong or goes beyond what is allowed.
    """
    given = payload.get("llm", {})
    if not isinstance(given, Mapping):
        remedy = f"give an object with the keys {', '.join(LLM_KEYS)}"
        raise ParameterError("llm", kind(given), remedy)
    refuse_unknown(given, LLM_KEYS, "llm.")
    refuse_unknown(operator.llm, (*LLM_KEYS, "models"), "llm.")
    address(given, "llm.", operator)
    _refuse_another_key(given, operator)
    _refuse_other_prices(given, operator)
    _refuse_another_model(given, operator)
    merged = {**operator.llm, **given}
    if merged.get("base_url") is None:
        if given:
            raise ParameterError("llm.base_url", None, "name the server of the model")
        return None
    _checked(merged)  # first, so that a value that is no bound at all is refused, not lowered
    return _checked({**merged, **_lower(given, operator)})


def embedding_settings(
    given: Mapping[str, Any], base_url: str | None, model: str | None, operator: Operator
) -> EmbeddingsSettings | None:
    """How a job reaches the embeddings server that it names, within the operator's bounds.

    None where it names none.

    Args:
        given: the payload's `embedding`.

    Raises:
        ParameterError: the payload names another key, or a model that this key is not for.
    """
    own, prefix = operator.embedding, "embedding."
    refuse_unknown(own, _OPERATORS_EMBEDDING_KEYS, prefix)
    variable = _embedding_key(base_url, operator)
    wished = given.get("api_key_env")
    if wished is not None and wished != variable:
        remedy = "leave it out; only the operator says which variable holds the key"
        raise ParameterError("embedding.api_key_env", wished, remedy)
    if base_url is None or model is None:
        return None
    is_priced = any(own.get(name) is not None for name in ("prompt_price", "max_cost"))
    allowed = [name for name in (own.get("model"), *(own.get("models") or ())) if name]
    if (variable is not None or is_priced) and model not in allowed:
        remedy = (
            f"with the operator's key and prices: {', '.join(allowed) or 'no model'}; "
            "defaults.embedding.models lists those allowed"
        )
        raise ParameterError("embedding.model", model, remedy)
    effort = {name: own.get(name) for name in ("concurrency", "max_retries", "timeout_seconds")}
    if _is_at_llm(base_url, operator):
        effort = {
            name: operator.llm.get(name) if value is None else value
            for name, value in effort.items()
        }
    bounds = {name: value for name, value in {**own, **effort}.items() if value is not None}
    return EmbeddingsSettings(
        base_url=base_url,
        model=model,
        api_key_env=variable,
        concurrency=integer(bounds, "concurrency", 4, 1, 64, prefix),
        timeout_seconds=number(bounds, "timeout_seconds", 120.0, 0.1, 3_600.0, prefix),
        max_retries=integer(bounds, "max_retries", 5, 0, 20, prefix),
        max_tokens_total=_bound(bounds, "max_tokens_total", prefix),
        max_cost=_most_cost(bounds, prefix),
        prompt_price=number(bounds, "prompt_price", 0.0, 0.0, _MOST, prefix),
    )


def _embedding_key(base_url: str | None, operator: Operator) -> str | None:
    """Which variable holds the key: the operator's for that address, or the LLM's on its server."""
    own = operator.embedding.get("base_url") or operator.llm.get("base_url")
    variable: str | None = operator.embedding.get("api_key_env")
    if variable is not None and place(own) is not None and place(own) == place(base_url):
        return _variable(variable, "embedding.")
    return operator.llm.get("api_key_env") if _is_at_llm(base_url, operator) else None


def _is_at_llm(base_url: str | None, operator: Operator) -> bool:
    own, theirs = place(operator.llm.get("base_url")), place(base_url)
    return own is not None and theirs is not None and theirs.origin == own.origin


def _refuse_another_key(given: Mapping[str, Any], operator: Operator) -> None:
    variable = given.get("api_key_env")
    if variable is not None and variable != operator.llm.get("api_key_env"):
        remedy = "leave it out; only the operator says which variable holds the key"
        raise ParameterError("llm.api_key_env", variable, remedy)


def _refuse_other_prices(given: Mapping[str, Any], operator: Operator) -> None:
    """A job with prices of its own would have a `max_cost` of its own."""
    for name in _PRICES:
        if name in given and name in operator.llm and given[name] != operator.llm[name]:
            raise ParameterError(f"llm.{name}", given[name], "the operator has set the prices")


def _refuse_another_model(given: Mapping[str, Any], operator: Operator) -> None:
    """What the operator's prices and `max_cost` say of one model is wrong of another."""
    more = operator.llm.get("models") or ()
    own = [name for name in (operator.llm.get("model"), *more) if name]
    is_priced = any(operator.llm.get(name) is not None for name in (*_PRICES, "max_cost"))
    if is_priced and given.get("model") not in (None, *own):
        remedy = f"the operator's prices are for {', '.join(own) or 'no model'}"
        raise ParameterError("llm.model", given["model"], remedy)


def _lower(given: Mapping[str, Any], operator: Operator) -> dict[str, Any]:
    """The operator's bounds where the payload would exceed them.

    Of effort the defaults bound as well where the operator names the server.
    """
    most = {name: operator.llm.get(name) for name in (*_BOUNDS, *_EFFORT)}
    if operator.llm.get("base_url") is not None:
        most |= {name: _DEFAULTS[name] for name in _EFFORT if most[name] is None}
    lower = {}
    for name, mine in most.items():
        theirs = given.get(name)
        is_number = isinstance(theirs, int | float) and not isinstance(theirs, bool)
        if mine is not None and (theirs is None or (is_number and theirs > mine)):
            lower[name] = mine
    return lower


def _checked(merged: Mapping[str, Any]) -> LLMSettings:
    prefix = "llm."
    given = {name: value for name, value in merged.items() if value is not None}
    base_url = line(given, "base_url", prefix, longest=500) or ""
    if place(base_url) is None:
        raise ParameterError("llm.base_url", base_url, _PLAINLY)
    model = line(given, "model", prefix, longest=200)
    if model is None:
        raise ParameterError("llm.model", None, "name the model")
    variable = line(given, "api_key_env", prefix, longest=128)
    if variable is not None:
        _variable(variable, prefix)
    return LLMSettings(
        base_url=base_url,
        model=model,
        api_key_env=variable,
        temperature=number(given, "temperature", 0.0, 0.0, 2.0, prefix),
        seed=None if merged.get("seed", 0) is None else integer(given, "seed", 0, 0, _MOST, prefix),
        max_output_tokens=integer(given, "max_output_tokens", 2_048, 64, 32_768, prefix),
        concurrency=integer(given, "concurrency", 4, 1, 64, prefix),
        timeout_seconds=number(given, "timeout_seconds", 120.0, 0.1, 3_600.0, prefix),
        max_retries=integer(given, "max_retries", 5, 0, 20, prefix),
        structured=choice(given, "structured", "auto", STRUCTURED, prefix),
        max_calls=_bound(given, "max_calls", prefix),
        max_tokens_total=_bound(given, "max_tokens_total", prefix),
        max_cost=_most_cost(given, prefix),
        prompt_price=number(given, "prompt_price", 0.0, 0.0, _MOST, prefix),
        completion_price=number(given, "completion_price", 0.0, 0.0, _MOST, prefix),
        client=choice(given, "client", "httpx", CLIENTS, prefix),
    )


def _variable(name: str, prefix: str) -> str:
    if not _VARIABLE.fullmatch(name):
        remedy = "give the name of an environment variable, never the key"
        raise ParameterError(f"{prefix}api_key_env", name, remedy)
    return name


def _bound(given: Mapping[str, Any], name: str, prefix: str) -> int | None:
    return integer(given, name, 0, 0, _MOST, prefix) if name in given else None


def _most_cost(given: Mapping[str, Any], prefix: str) -> float | None:
    return number(given, "max_cost", 0.0, 0.0, _MOST, prefix) if "max_cost" in given else None


STRUCTURED: Final = ("auto", "json_schema", "json_object", "text")
CLIENTS: Final = ("httpx", "openai")
