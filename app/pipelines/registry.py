"""Which pipelines exist: ours, installed plugins' and the settings', by name; none is imported.

A later source replaces an earlier one of the same name, so that a setting can override a plugin.
What ours are constructed with stays where the settings name one of ours again, to set its limits.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, Final

from app.domain.errors import ConfigurationError
from app.domain.jobs import (
    LEAST_MEMORY_LIMIT_BYTES,
    LEAST_STALL_SECONDS,
    MAX_ATTEMPTS,
    MAX_MEMORY_LIMIT_BYTES,
    MAX_START_TIMEOUT_SECONDS,
    MAX_TIMEOUT_SECONDS,
    Limits,
    Registration,
)
from app.pipelines.payloads import BUILT_IN, Declaration

ENTRY_POINT_GROUP: Final = "haulage.pipelines"

_BUILT_IN: Final = MappingProxyType(
    {
        "thematic": "app.pipelines.thematic.pipeline:ThematicAnalysis",
        "demo-sleep": "app.pipelines.demo:Sleep",
        "demo-echo": "app.pipelines.demo:Echo",
        "demo-fail": "app.pipelines.demo:Fail",
        "demo-crash": "app.pipelines.demo:Crash",
    }
)
_LIMIT_SECONDS: Final = ("timeout_seconds", "start_timeout_seconds", "stall_seconds")
_BOUNDS: Final = MappingProxyType(
    {
        "max_attempts": (1, MAX_ATTEMPTS),
        "timeout_seconds": (0.001, MAX_TIMEOUT_SECONDS),
        "start_timeout_seconds": (0.001, MAX_START_TIMEOUT_SECONDS),
        "stall_seconds": (LEAST_STALL_SECONDS, MAX_TIMEOUT_SECONDS),
        "memory_limit_bytes": (LEAST_MEMORY_LIMIT_BYTES, MAX_MEMORY_LIMIT_BYTES),
    }
)
DEFAULTS: Final = tuple(_BOUNDS)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TARGET: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_SETTING: Final = "HAULAGE_PIPELINES"


def load_registrations(
    configured: Mapping[str, Any], arguments: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Registration]:
    """Every registered pipeline by name.

    Args:
        configured: of the settings: name -> "package.module:Class", or name ->
            {"target": ..., "arguments": {...}} with job defaults (DEFAULTS) beside them.
        arguments: what ours are constructed with, by name; those of `configured` are added.

    Raises:
        ConfigurationError: an entry is not of that form.
    """
    given = arguments or {}
    registrations = {
        name: Registration(name, target, dict(given.get(name, {})))
        for name, target in _BUILT_IN.items()
    }
    for point in entry_points(group=ENTRY_POINT_GROUP):
        registrations[point.name] = Registration(point.name, point.value)
    for name, entry in configured.items():
        registration = _registration(name, entry)
        if registration.target == _BUILT_IN.get(name):
            merged = _merged(given.get(name, {}), registration.arguments)
            registration = replace(registration, arguments=merged)
        registrations[name] = registration
    return {
        name: with_declaration(each, BUILT_IN[each.target]) if is_built_in(each) else each
        for name, each in registrations.items()
    }


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both; where both have a value `above` wins, and objects are merged in turn."""
    merged = {**below, **above}
    for name in below.keys() & above.keys():
        if isinstance(below[name], Mapping) and isinstance(above[name], Mapping):
            merged[name] = _merged(below[name], above[name])
    return merged


def is_built_in(registration: Registration) -> bool:
    """Whether it is one of ours, whose declarations stand in `payloads`."""
    return registration.target in BUILT_IN


def with_declaration(registration: Registration, declared: Declaration) -> Registration:
    """The registration with what its class says.

    Raises:
        ValueError: its defaults are none that a job could have.
    """
    return replace(
        with_defaults(registration, declared.defaults),
        description=declared.description,
        payload_schema=declared.payload_schema,
    )


def _registration(name: str, entry: Any) -> Registration:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            _SETTING, name, "name a pipeline with letters, digits, '.', '_' and '-'"
        )
    arguments: Any = {}
    defaults: dict[str, Any] = {}
    match entry:
        case str() as target:
            pass
        case {"target": str() as target, **rest} if set(rest) <= {"arguments", *DEFAULTS}:
            arguments = rest.pop("arguments", arguments)
            defaults = {str(key): value for key, value in rest.items()}
        case _:
            raise ConfigurationError(
                _SETTING,
                f"{name}=***",
                'write "package.module:Class" or {"target": ..., "arguments": {}}',
            )
    if not _TARGET.fullmatch(target):
        raise ConfigurationError(_SETTING, target, "write the target as package.module:Class")
    if not isinstance(arguments, dict):
        raise ConfigurationError(_SETTING, f"{name}=***", "arguments are a JSON object")
    try:
        return with_defaults(Registration(name, target, arguments), defaults)
    except ValueError as error:
        raise ConfigurationError(_SETTING, f"{name}=***", str(error)) from None


def with_defaults(registration: Registration, defaults: Mapping[str, Any]) -> Registration:
    """The registration with job defaults of its class or of the settings where it has none yet.

    Raises:
        ValueError: an unknown name, or a value that a job could not have either.
    """
    for name, value in defaults.items():
        if name not in DEFAULTS:
            raise ValueError(f"{name!r} is none of {', '.join(DEFAULTS)}")
        least, most = _BOUNDS[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:
            raise ValueError(f"{name} has to be a number from {least:g} to {most:g}, not {value!r}")
    limits = {name: float(value) for name, value in defaults.items() if name in _LIMIT_SECONDS}
    memory = defaults.get("memory_limit_bytes")
    attempts = defaults.get("max_attempts")
    return replace(
        registration,
        max_attempts=registration.max_attempts or (None if attempts is None else int(attempts)),
        limits=registration.limits.or_else(
            Limits(**limits, memory_limit_bytes=None if memory is None else int(memory))
        ),
    )
