"""How large the tables and indexes are, and who keeps them from being cleaned up."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class TableSize:
    """One table; rows are the server's estimates.

    Attributes:
        toast_bytes: values too long for their row, with the index over them.
        vacuumed_at: None where the statistics know of no vacuum, by hand or by itself.
    """

    name: str
    rows: int
    dead_rows: int
    table_bytes: int
    index_bytes: int
    toast_bytes: int
    vacuumed_at: datetime | None
    analyzed_at: datetime | None


@dataclass(frozen=True, slots=True)
class IndexSize:
    """One index.

    Attributes:
        is_valid: searches use it; otherwise its build was broken off or is under way.
        expected_bytes: what it would take newly built, estimated; None before the first
            analyze, and for what is no B-tree.
        bloat_bytes: by how much it is larger than that.
    """

    table_name: str
    name: str
    is_valid: bool
    bytes: int
    expected_bytes: int | None
    bloat_bytes: int | None


@dataclass(frozen=True, slots=True)
class SnapshotHolder:
    """A session, prepared transaction or replication slot that still sees old rows.

    Attributes:
        name: of the session's application, the transaction or the slot.
        since: when its transaction began; None for slots, and for sessions of others where the
            role of this connection may not look at them.
        age_transactions: how many transactions have begun since the oldest that it sees.
    """

    kind: str
    name: str
    pid: int | None
    owner: str | None
    state: str | None
    since: datetime | None
    query_started_at: datetime | None
    age_seconds: float | None
    age_transactions: int
    query: str | None

    def is_old(self, bound_seconds: float) -> bool:
        """Whether it holds on for longer than that; a slot that nobody reads always does."""
        if self.kind == "replication slot":
            return self.state == "inactive"
        return self.age_seconds is not None and self.age_seconds > bound_seconds


@dataclass(frozen=True, slots=True)
class DatabaseSize:
    """Everything of one look."""

    tables: tuple[TableSize, ...]
    indexes: tuple[IndexSize, ...]
    snapshots: tuple[SnapshotHolder, ...]
