"""Sizes on a terminal: rows, bytes, bloat, and who keeps dead rows from being cleaned up."""

import dataclasses
import json
from datetime import UTC, datetime
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from app.domain.size import DatabaseSize, IndexSize, SnapshotHolder, TableSize

# Less is not worth a rebuild.
LEAST_BLOAT_BYTES: Final = 1_000_000
SHOWN_SNAPSHOTS: Final = 5


def show(size: DatabaseSize, warn_seconds: float, console: Console) -> None:
    """Tables, indexes that are worth a rebuild, the oldest snapshots, warnings."""
    console.print(_tables(size.tables))
    if bloated := [index for index in size.indexes if _is_bloated(index)]:
        console.print(_indexes(bloated))
    if size.snapshots:
        console.print(_snapshots(size.snapshots[:SHOWN_SNAPSHOTS]))
    for warning in _warnings(size, warn_seconds):
        console.print(f"! {escape(warning)}", style="yellow", highlight=False, soft_wrap=True)


def as_json(size: DatabaseSize, warn_seconds: float) -> str:
    """All of it, also what `show` leaves out."""
    found = {**dataclasses.asdict(size), "warnings": _warnings(size, warn_seconds)}
    return json.dumps(found, indent=2, default=_instant)


def _instant(value: datetime) -> str:
    return value.isoformat()


def _warnings(size: DatabaseSize, bound_seconds: float) -> list[str]:
    found = [
        f"{holder.kind} {_who(holder)} has kept dead rows from being cleaned up for "
        f"{_duration(holder.age_seconds)}, {holder.age_transactions:,} transactions: end it"
        for holder in size.snapshots
        if holder.is_old(bound_seconds)
    ]
    found += [
        f"no search uses the index {index.name}: `haulage db upgrade` mends it"
        for index in size.indexes
        if not index.is_valid
    ]
    return found


def _is_bloated(index: IndexSize) -> bool:
    return index.bloat_bytes is not None and index.bloat_bytes >= LEAST_BLOAT_BYTES


def _grid(*columns: str, left: int = 1) -> Table:
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < left else "right", no_wrap=True)
    return table


def _tables(tables: tuple[TableSize, ...]) -> Table:
    grid = _grid("Table", "Rows", "Dead", "Data", "Indexes", "Vacuumed", "Analyzed")
    for table in tables:
        grid.add_row(
            table.name,
            f"{table.rows:,}",
            f"{table.dead_rows:,}",
            decimal(table.table_bytes + table.toast_bytes),
            decimal(table.index_bytes),
            _ago(table.vacuumed_at),
            _ago(table.analyzed_at),
        )
    return grid


def _indexes(indexes: list[IndexSize]) -> Table:
    grid = _grid("Bloated index", "Size", "Of it bloat, estimated")
    for index in indexes:
        share = (index.bloat_bytes or 0) / index.bytes
        grid.add_row(index.name, decimal(index.bytes), f"{share:.0%}")
    return grid


def _snapshots(holders: tuple[SnapshotHolder, ...]) -> Table:
    grid = _grid("Oldest snapshots", "State", "Query", "Open for", "Transactions", left=3)
    for holder in holders:
        grid.add_row(
            escape(f"{holder.kind} {_who(holder)}"),
            holder.state or "",
            escape(" ".join((holder.query or "").split())[:60]),
            _duration(holder.age_seconds),
            f"{holder.age_transactions:,}",
        )
    return grid


def _who(holder: SnapshotHolder) -> str:
    parts: list[Any] = [
        holder.name or "without a name",
        f"of {holder.owner}" if holder.owner else None,
        f"(pid {holder.pid})" if holder.pid else None,
    ]
    return " ".join(part for part in parts if part)


def _ago(moment: datetime | None) -> str:
    # By this machine's clock: good enough to see whether it was today.
    if moment is None:
        return "never"
    return f"{_duration(max(0.0, (datetime.now(UTC) - moment).total_seconds()))} ago"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "an unknown time"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
