"""Which pipelines exist: ours, installed plugins' and the settings', by name; none is imported.

A later source replaces an earlier one of the same name, so that a setting can override a plugin.
"""

import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, Final

from app.domain.errors import ConfigurationError
from app.domain.jobs import Registration

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
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TARGET: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_SETTING: Final = "HAULAGE_PIPELINES"


def load_registrations(configured: Mapping[str, Any]) -> dict[str, Registration]:
    """Every registered pipeline by name.

    Args:
        configured: of the settings: name -> "package.module:Class", or name ->
            {"target": ..., "arguments": {...}}.

    Raises:
        ConfigurationError: an entry is not of that form.
    """
    registrations = {name: Registration(name, target) for name, target in _BUILT_IN.items()}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        registrations[point.name] = Registration(point.name, point.value)
    for name, entry in configured.items():
        registrations[name] = _registration(name, entry)
    return registrations


def _registration(name: str, entry: Any) -> Registration:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            _SETTING, name, "name a pipeline with letters, digits, '.', '_' and '-'"
        )
    arguments: Any = {}
    match entry:
        case str() as target:
            pass
        case {"target": str() as target, **rest} if set(rest) <= {"arguments"}:
            arguments = rest.get("arguments", arguments)
        case _:
            raise ConfigurationError(
                _SETTING, entry, 'write "package.module:Class" or {"target": ..., "arguments": {}}'
            )
    if not _TARGET.fullmatch(target):
        raise ConfigurationError(_SETTING, target, "write the target as package.module:Class")
    if not isinstance(arguments, dict):
        raise ConfigurationError(_SETTING, arguments, "arguments are a JSON object")
    return Registration(name, target, arguments)
