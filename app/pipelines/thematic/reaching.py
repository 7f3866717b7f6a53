"""Which servers a job may reach, and with whose key.

A payload comes from anybody who may submit, so it never widens what the operator allows: an
address must have one of the operator's origins, the key is the operator's or none, and bounds of
calls, tokens and cost can only be lowered.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final
from urllib.parse import urlsplit

from app.pipelines.llm.interface import LLMSettings
from app.pipelines.thematic.checking import (
    ParameterError,
    choice,
    integer,
    line,
    number,
    refuse_unknown,
)

LLM_KEYS: Final = tuple(field.name for field in fields(LLMSettings))
_BOUNDS: Final = ("max_calls", "max_tokens_total", "max_cost")
_PRICES: Final = ("prompt_price", "completion_price")
_PORTS: Final = {"http": 80, "https": 443}
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MOST: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Operator:
    """What the operator allows.

    Attributes:
        llm: keys of LLMSettings that jobs need not give.
        origins: further servers that a payload may name.
    """

    llm: Mapping[str, Any]
    origins: Sequence[str] = ()

    def allows(self, url: str) -> bool:
        """Whether a payload may name this address."""
        own = self.llm.get("base_url")
        allowed = {origin(each) for each in (*self.origins, *([own] if own else ()))}
        return origin(url) in allowed - {None}


def origin(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of an HTTP address; None where it has none or hides another."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not parts.hostname:
        return None
    if "@" in parts.netloc or "\\" in url or parts.query or parts.fragment:
        return None
    return parts.scheme, parts.hostname.lower(), port or _PORTS[parts.scheme]


def address(payload: Mapping[str, Any], prefix: str, operator: Operator) -> str | None:
    """The payload's `base_url`, None where it is absent.

    Raises:
        ParameterError: it is no address, or of a server that the operator does not allow.
    """
    url = line(payload, "base_url", prefix, longest=500)
    if url is None:
        return None
    if origin(url) is None:
        remedy = "give an http:// or https:// address without user, query and fragment"
        raise ParameterError(f"{prefix}base_url", "(an address)", remedy)
    if not operator.allows(url):
        remedy = "the operator allows no such server; HAULAGE_LLM_ORIGINS lists those allowed"
        raise ParameterError(f"{prefix}base_url", url, remedy)
    return url


def llm_settings(payload: Mapping[str, Any], operator: Operator) -> LLMSettings | None:
    """The model that a job uses, None where neither payload nor operator names a server.

    Raises:
        ParameterError: naming the first key that is wrong or goes beyond what is allowed.
    """
    given = payload.get("llm", {})
    if not isinstance(given, Mapping):
        raise ParameterError("llm", given, f"give an object with the keys {', '.join(LLM_KEYS)}")
    refuse_unknown(given, LLM_KEYS, "llm.")
    refuse_unknown(operator.llm, LLM_KEYS, "llm.")
    address(given, "llm.", operator)
    _refuse_another_key(given, operator, "llm.")
    _refuse_other_prices(given, operator)
    merged = {**operator.llm, **given, **_lower(given, operator)}
    if merged.get("base_url") is None:
        if given:
            raise ParameterError("llm.base_url", None, "name the server of the model")
        return None
    return _checked(merged)


def embedding_key(given: Mapping[str, Any], base_url: str | None, operator: Operator) -> str | None:
    """Which variable holds the key for an embeddings server: the operator's, for theirs alone.

    Raises:
        ParameterError: the payload names another variable.
    """
    _refuse_another_key(given, operator, "embedding.")
    own = operator.llm.get("base_url")
    if base_url is None or own is None or origin(base_url) != origin(own):
        return None
    variable: str | None = operator.llm.get("api_key_env")
    return variable


def _refuse_another_key(given: Mapping[str, Any], operator: Operator, prefix: str) -> None:
    variable = given.get("api_key_env")
    if variable is not None and variable != operator.llm.get("api_key_env"):
        remedy = "leave it out; only the operator says which variable holds the key"
        raise ParameterError(f"{prefix}api_key_env", "(a name)", remedy)


def _refuse_other_prices(given: Mapping[str, Any], operator: Operator) -> None:
    """A job with prices of its own would have a `max_cost` of its own."""
    for name in _PRICES:
        if name in given and name in operator.llm and given[name] != operator.llm[name]:
            raise ParameterError(f"llm.{name}", given[name], "the operator has set the prices")


def _lower(given: Mapping[str, Any], operator: Operator) -> dict[str, Any]:
    """The operator's bounds where the payload would exceed them."""
    lower = {}
    for name in _BOUNDS:
        mine, theirs = operator.llm.get(name), given.get(name)
        is_number = isinstance(theirs, int | float) and not isinstance(theirs, bool)
        if mine is not None and (theirs is None or (is_number and theirs > mine)):
            lower[name] = mine
    return lower


def _checked(merged: Mapping[str, Any]) -> LLMSettings:
    prefix = "llm."
    given = {name: value for name, value in merged.items() if value is not None}
    base_url = line(given, "base_url", prefix, longest=500) or ""
    if origin(base_url) is None:
        raise ParameterError("llm.base_url", "(an address)", "give an http:// or https:// address")
    model = line(given, "model", prefix, longest=200)
    if model is None:
        raise ParameterError("llm.model", None, "name the model")
    variable = line(given, "api_key_env", prefix, longest=128)
    if variable is not None and not _VARIABLE.fullmatch(variable):
        # Not shown: whoever mistakes it for the key itself puts the key here.
        remedy = "give the name of an environment variable, never the key"
        raise ParameterError("llm.api_key_env", "(a text)", remedy)
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
        max_calls=_bound(given, "max_calls"),
        max_tokens_total=_bound(given, "max_tokens_total"),
        max_cost=_most_cost(given),
        prompt_price=number(given, "prompt_price", 0.0, 0.0, _MOST, prefix),
        completion_price=number(given, "completion_price", 0.0, 0.0, _MOST, prefix),
        client=choice(given, "client", "httpx", CLIENTS, prefix),
    )


def _bound(given: Mapping[str, Any], name: str) -> int | None:
    return integer(given, name, 0, 0, _MOST, "llm.") if name in given else None


def _most_cost(given: Mapping[str, Any]) -> float | None:
    return number(given, "max_cost", 0.0, 0.0, _MOST, "llm.") if "max_cost" in given else None


STRUCTURED: Final = ("auto", "json_schema", "json_object", "text")
CLIENTS: Final = ("httpx", "openai")
