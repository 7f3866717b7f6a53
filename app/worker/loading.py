"""From a pipeline's import path to an object of its class, whatever that raises on the way."""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, cast

from app.domain.errors import PipelineLoadError
from app.domain.json_values import summary_of
from app.pipelines.interface import PipeLineInterface


def _load_analysis(
    pipeline: str, constructor_args: Mapping[str, Any] | None = None
) -> PipeLineInterface:
    """Import "package.module:Class", check it and construct it.

    Raises:
        PipelineLoadError: with the reason; an exception of the module itself is its cause.
    """
    found = import_class(pipeline)
    if not inspect.iscoroutinefunction(getattr(found, "run", None)):
        raise PipelineLoadError(
            pipeline, "its class has no `async def run(self, payload, context)`"
        )
    try:
        loaded = cast("PipeLineInterface", found(**(constructor_args or {})))
    except BaseException as error:
        reason = f"constructor raised {summary_of(error)}"
        raise PipelineLoadError(pipeline, reason) from error
    return loaded


def import_class(target: str) -> Any:
    """The class at "package.module:Class"; PipelineLoadError."""
    module_name, _, class_name = target.partition(":")
    if not module_name or not class_name:
        raise PipelineLoadError(target, "write it as package.module:Class")
    try:
        found: Any = importlib.import_module(module_name)
        for part in class_name.split("."):
            found = getattr(found, part)
    except BaseException as error:
        raise PipelineLoadError(target, summary_of(error)) from error
    if not inspect.isclass(found):
        raise PipelineLoadError(target, "not a class")
    return found
