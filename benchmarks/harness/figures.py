"""Figures as the benchmarks print them.

Every script compares within one run on one machine; absolute figures mean little elsewhere.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence


def milliseconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1_000


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def show(title: str, values: Sequence[float], unit: str = "ms") -> None:
    """One line with median and 99th percentile."""
    print(
        f"{title:<44} p50 {statistics.median(values):8.2f}   "
        f"p99 {percentile(values, 0.99):8.2f} {unit}   ({len(values)} samples)"
    )


def show_machine() -> None:
    """The load under which the figures were taken."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{os.cpu_count()} CPUs, load average {load}")
