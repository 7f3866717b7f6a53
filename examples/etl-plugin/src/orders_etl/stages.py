"""What happens to the rows; plain functions, no Haulage anywhere."""

from collections import Counter
from collections.abc import Callable
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any, TypedDict

PART_ROWS = 1_000


class Row(TypedDict):
    """A usable order; the amount is decimal text, since floats cannot hold money."""

    id: str
    month: str
    customer: str
    amount: str


class UnusableRowError(Exception):
    """A row cannot be used; its text is the reason that the report counts."""


def clean(rows: list[Any], on_part: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Usable orders, each id once, and how many rows were refused for which reason.

    Args:
        on_part: called every thousand rows; may raise to end the work.
    """
    kept: dict[str, Row] = {}
    refused: Counter[str] = Counter()
    for number, raw in enumerate(rows):
        if number % PART_ROWS == 0:
            on_part()
        try:
            row = _cleaned(raw)
        except UnusableRowError as reason:
            refused[str(reason)] += 1
            continue
        if row["id"] in kept:
            refused["seen before"] += 1
        else:
            kept[row["id"]] = row
    return {"kept": list(kept.values()), "refused": dict(sorted(refused.items()))}


def total_by_month(rows: list[Row]) -> list[dict[str, Any]]:
    """Number of orders and turnover of each month, the oldest first."""
    return sorted(_totals(rows, "month", lambda row: row["month"]), key=lambda t: str(t["month"]))


def total_by_customer(rows: list[Row]) -> list[dict[str, Any]]:
    """Number of orders and turnover of each customer, the largest first."""
    totals = _totals(rows, "customer", lambda row: row["customer"])
    return sorted(totals, key=lambda t: (-Decimal(t["turnover"]), t["customer"]))


def _cleaned(raw: Any) -> Row:
    if not isinstance(raw, dict):
        raise UnusableRowError("not an object")
    order_id = str(raw.get("id") or "").strip()
    if not order_id:
        raise UnusableRowError("no id")
    customer = " ".join(str(raw.get("customer") or "").split()).title()
    if not customer:
        raise UnusableRowError("no customer")
    try:
        day = date.fromisoformat(str(raw.get("date", "")).strip())
    except ValueError:
        raise UnusableRowError("no date") from None
    try:
        amount = Decimal(str(raw.get("amount", "")).strip()).quantize(Decimal("0.01"))
    except InvalidOperation:
        raise UnusableRowError("no amount") from None
    return Row(id=order_id, month=f"{day:%Y-%m}", customer=customer, amount=str(amount))


def _totals(rows: list[Row], name: str, key: Callable[[Row], str]) -> list[dict[str, Any]]:
    counts: Counter[str] = Counter()
    sums: dict[str, Decimal] = {}
    for row in rows:
        counts[key(row)] += 1
        sums[key(row)] = sums.get(key(row), Decimal(0)) + Decimal(row["amount"])
    return [
        {name: value, "orders": counts[value], "turnover": str(total)}
        for value, total in sums.items()
    ]
