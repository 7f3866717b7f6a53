"""The vocabulary of events and what subscribes to them; code says once what happened.

An event is a noun with a past participle and plain fields. `emit` hands it to every subscriber;
`log_events` turns events into log lines. A subscriber that raises is reported and kept out of the
way of the code that emitted. What fails again and again for one reason is logged once in a while,
with the number of times.
"""

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from app.domain.masking import mask_secrets

logger: Final = logging.getLogger("haulage")

# Every event that Haulage emits, with the level at which it is logged.
EVENTS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "node.registered": logging.INFO,
        "node.lost": logging.WARNING,
        "node.lease_lost": logging.ERROR,
        "manager.started": logging.INFO,
        "manager.draining": logging.INFO,
        "manager.stopped": logging.INFO,
        "listener.connected": logging.INFO,
        "listener.disconnected": logging.WARNING,
        "loop.failed": logging.ERROR,
        "loop.recovered": logging.INFO,
        "job.claimed": logging.INFO,
        "job.finished": logging.INFO,
        "job.overdue": logging.WARNING,
        "claim.lost": logging.WARNING,
        "finish.delayed": logging.WARNING,
        "worker.started": logging.DEBUG,
        "worker.start_failed": logging.ERROR,
        "worker.ended": logging.INFO,
        "worker.killed": logging.WARNING,
        "pipeline.unknown_defaults": logging.WARNING,
        "pipelines.announced": logging.INFO,
        "pipelines.unannounced": logging.WARNING,
        "retention.pruned": logging.INFO,
        "preload.incomplete": logging.WARNING,
        "connections.overcommitted": logging.WARNING,
        "schema.upgraded": logging.INFO,
        "webhook.delivered": logging.DEBUG,
        "webhook.given_up": logging.WARNING,
        "webhook.disabled": logging.WARNING,
    }
)


# While one thing is broken these come at every try, from every loop and for every job.
REPEATING: Final = frozenset({"loop.failed", "finish.delayed", "listener.disconnected"})
REPEAT_SECONDS: Final = 10.0
MAX_REMEMBERED_FAILURES: Final = 1_000
# Put into a record's `extra` by those who log what may come in floods.
MAY_REPEAT: Final[Mapping[str, bool]] = MappingProxyType({"may_repeat": True})

# Ids and numbers, of jobs, of ports, of failures so far.
_VARYING: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, with its facts."""

    name: str
    fields: Mapping[str, Any]


Subscriber = Callable[[Event], None]


@dataclass(slots=True)
class Telemetry:
    """Hands events to subscribers; one per process part, passed in, never global."""

    subscribers: list[Subscriber] = field(default_factory=list)

    def emit(self, name: str, /, **fields: Any) -> None:
        """Tell every subscriber; an unknown name is a programming error (KeyError)."""
        level = EVENTS[name]
        event = Event(name, fields)
        for subscriber in self.subscribers:
            try:
                subscriber(event)
            except Exception:
                logger.log(
                    max(level, logging.ERROR), "subscriber failed on %s", name, exc_info=True
                )


def log_events(event: Event) -> None:
    """Subscriber that writes one log line per event: its name, then key=value."""
    level = EVENTS[event.name]
    if not logger.isEnabledFor(level):
        return
    pairs = " ".join(f"{key}={value}" for key, value in event.fields.items() if value is not None)
    logger.log(
        level,
        "%s %s",
        event.name,
        pairs,
        extra={
            "event": event.name,
            "fields": dict(event.fields),
            "may_repeat": event.name in REPEATING,
        },
    )


def default_telemetry() -> Telemetry:
    """Telemetry whose events become log lines."""
    return Telemetry([log_events])


class RepeatFilter(logging.Filter):
    """Lets one of many equal failures through per interval, with the number of those kept back.

    Only records that may repeat are looked at. Equal are those that differ in ids and numbers only.
    """

    def __init__(self, interval_seconds: float = REPEAT_SECONDS) -> None:
        super().__init__()
        self._interval_seconds = interval_seconds
        # By what is equal: when it was last let through, and how many were kept back since.
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is to be written; one that stands for others says so."""
        if not record.__dict__.get("may_repeat"):
            return True
        message = record.getMessage()
        key = _VARYING.sub("#", message)
        now = time.monotonic()
        last, kept_back = self._seen.get(key, (None, 0))
        if last is not None and now - last < self._interval_seconds:
            self._seen[key] = (last, kept_back + 1)
            return False
        if len(self._seen) >= MAX_REMEMBERED_FAILURES:
            self._seen.clear()
        self._seen[key] = (now, 0)
        if kept_back:
            record.msg, record.args = f"{message} (and {kept_back} more like it)", ()
        return True


class Masking(logging.Formatter):
    """Writes what another formatter makes, tracebacks included, without the secrets in it."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self._formatter = formatter

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        return mask_secrets(self._formatter.format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: at, level, logger, message and an event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON; values that JSON lacks become text."""
        entry: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("event", "fields"):
            if name in record.__dict__:
                entry[name] = record.__dict__[name]
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


def configure_logging(log_format: str, level: str = "INFO") -> None:
    """Log to stderr as lines for people ("console") or JSON ("json"); replaces root handlers."""
    handler = logging.StreamHandler()
    handler.addFilter(RepeatFilter())
    formatter: logging.Formatter = JsonFormatter()
    if log_format != "json":
        formatter = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S")
    handler.setFormatter(Masking(formatter))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("alembic", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # What is wrong with a form is told to its sender.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
