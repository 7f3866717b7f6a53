"""A worker's entry as it is where no guard exists; importable by the worker's process."""

from typing import Any

from app.worker import entry, guard


def worker_entry(*arguments: Any, **keywords: Any) -> None:
    setattr(guard, "HAS_GUARD", False)  # noqa: B010  this process is the job's own
    entry.worker_entry(*arguments, **keywords)
