"""A job's context that writes down what it is told, and can be made to break off."""

import json
import logging
from datetime import datetime
from typing import Any, NoReturn

from app.domain.errors import JobCancelledError


class BrokenOffError(Exception):
    """The process died, as far as the test is concerned."""


class RecordingContext:
    def __init__(
        self, checkpoints: dict[str, str] | None = None, break_off_at: str | None = None
    ) -> None:
        self.reports: list[tuple[float, str | None, str | None]] = []
        self.checkpoints = {} if checkpoints is None else checkpoints
        self.cancelled = False
        self._break_off_at = break_off_at

    job_id = "00000000-0000-7000-8000-000000000000"
    attempt = 1
    deadline: datetime | None = None
    idempotency_key = "key"
    logger = logging.getLogger("test")

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled

    def check_cancelled(self) -> None:
        if self.cancelled:
            raise JobCancelledError

    def retry_later(self, delay_seconds: float, reason: str) -> NoReturn:
        raise AssertionError(reason)

    def give_up(self, reason: str) -> NoReturn:
        raise AssertionError(reason)

    def nothing_to_do(self, reason: str) -> NoReturn:
        raise AssertionError(reason)

    async def progress(
        self, fraction: float, stage: str | None = None, message: str | None = None
    ) -> None:
        if stage == self._break_off_at:
            raise BrokenOffError
        self.reports.append((fraction, stage, message))

    async def save_checkpoint(self, stage: str, data: Any) -> None:
        self.checkpoints[stage] = json.dumps(data)

    async def load_checkpoint(self, stage: str) -> Any:
        return json.loads(self.checkpoints[stage]) if stage in self.checkpoints else None

    @property
    def milestones(self) -> list[str | None]:
        return list(dict.fromkeys(stage for _, stage, _ in self.reports))
