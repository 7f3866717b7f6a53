"""The pipeline: clean -> by month -> by customer, one checkpoint for each stage."""

from collections.abc import Callable, Mapping
from typing import Any

from orders_etl.stages import Row, clean, total_by_customer, total_by_month


class OrdersReport:
    """Cleans orders and sums them.

    Payload: {"rows": [{"id": "...", "date": "2025-03-31", "customer": "...", "amount": "12.50"}]};
    amounts may be numbers or text. Rows that cannot be used are counted by reason.

    Result: {"kept": 7, "refused": {reason: count}, "months": [...], "customers": [...]}.
    """

    async def run(self, payload: Mapping[str, Any], context: Any) -> dict[str, Any]:
        """Do what is not done yet and return the report."""
        rows: list[Any] = payload["rows"]
        cleaned = await _stage(
            context, 0.0, "clean", f"{len(rows)} rows", lambda: _clean_in_parts(rows, context)
        )
        kept: list[Row] = cleaned["kept"]
        message = f"{len(kept)} usable orders"
        months = await _stage(context, 0.6, "by month", message, lambda: total_by_month(kept))
        customers = await _stage(
            context, 0.8, "by customer", message, lambda: total_by_customer(kept)
        )
        return {
            "kept": len(kept),
            "refused": cleaned["refused"],
            "months": months,
            "customers": customers,
        }


async def _stage(
    context: Any, fraction: float, name: str, message: str, work: Callable[[], Any]
) -> Any:
    """The outcome of a stage: of an earlier attempt, or of `work`, kept for a later one."""
    await context.progress(fraction, name, message)
    found = await context.load_checkpoint(name)
    if found is None:
        found = work()
        await context.save_checkpoint(name, found)
    return found


def _clean_in_parts(rows: list[Any], context: Any) -> dict[str, Any]:
    return clean(rows, on_part=context.check_cancelled)
