"""Where a test has a worker wait in the middle of a write, to kill it there."""

import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

from support.proxy import Proxy
from support.service import wait_until
from support.sql import holding, rows

# A session that waits here has done its write and not committed it.
GATE: Final = (
    "create table gate (place text, stage text)",
    """
    create function wait_at_gate() returns trigger language plpgsql as $$
    begin
        if exists (
            select from gate
            where place = tg_table_name
              and stage = coalesce(to_jsonb(new) ->> 'stage', 'result')
        ) then
            perform pg_advisory_xact_lock(4711);
        end if;
        return null;
    end $$
    """,
    *(
        f"create trigger gate after insert or update on haulage.{table}"
        " for each row execute function wait_at_gate()"
        for table in ("job_checkpoints", "job_events", "job_results")
    ),
)
AT_GATE: Final = """
select pid from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock' and wait_event = 'advisory'
"""


class Gate(Protocol):
    """What services that reach their store by way of `url` have to pass."""

    @property
    def url(self) -> str:
        """The store's URL."""

    def closed(self, place: str, at: str) -> AbstractContextManager[Callable[[], bool]]:
        """Whoever writes about this stage waits, and has not done it in the end.

        Args:
            place: "job_events", "job_checkpoints" or "job_results".
            at: the stage, "result" for results.

        Gives what tells whether somebody waits.
        """


class SqlGate:
    """Triggers, which wait before the commit."""

    def __init__(self, url: str) -> None:
        self.url = url
        for statement in GATE:
            rows(url, statement)

    @contextmanager
    def closed(self, place: str, at: str) -> Iterator[Callable[[], bool]]:
        with holding(self.url, "select pg_advisory_xact_lock(4711)"):
            rows(self.url, "insert into gate values ($1, $2)", place, at)
            try:
                yield lambda: bool(rows(self.url, AT_GATE))
            finally:
                rows(self.url, "delete from gate")
                for [pid] in rows(self.url, AT_GATE):
                    rows(self.url, "select pg_terminate_backend($1)", pid)
                wait_until(lambda: not rows(self.url, AT_GATE), "end of the sessions at the gate")


class ProxyGate:
    """A proxy before MongoDB, which keeps the commit, or the update where that is all there is."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    @property
    def url(self) -> str:
        return self._proxy.url

    @contextmanager
    def closed(self, place: str, at: str) -> Iterator[Callable[[], bool]]:
        parts = {
            "job_events": (b"findAndModify\0", b"milestone\0", _text("$literal", at)),
            "job_checkpoints": (b"commitTransaction\0", b"job_checkpoints\0", _text("stage", at)),
            "job_results": (b"commitTransaction\0", b"job_results\0"),
        }
        self._proxy.held_back = parts[place]
        try:
            yield lambda: self._proxy.is_holding
        finally:
            self._proxy.held_back = None
            wait_until(lambda: not self._proxy.is_holding, "end of the connections at the gate")


def _text(name: str, value: str) -> bytes:
    """A field of a document as it travels."""
    length = struct.pack("<i", len(value) + 1)
    return b"\x02" + name.encode() + b"\0" + length + value.encode() + b"\0"
