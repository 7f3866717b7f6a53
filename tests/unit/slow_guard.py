"""A worker's entry whose guard never ends what the job has left; importable by its process."""

import time
from typing import Any

from app.worker import entry, guard


def worker_entry(*arguments: Any, **keywords: Any) -> None:
    # Busy with a look at what the job has left.
    setattr(guard, "kill_descendants", lambda _: time.sleep(600))  # noqa: B010  its own process
    entry.worker_entry(*arguments, **keywords)
