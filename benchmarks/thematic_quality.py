"""How well the themes of the thematic analysis agree with people's codes, and what they cost.

Runs the whole pipeline without an LLM on labelled answers and prints, per data set and level,
the adjusted mutual information and the adjusted Rand index (scikit-learn's), the number of
clusters ("other" and the non-answers are one each), and the CPU-seconds of the run::

    python -m benchmarks.thematic_quality [--seeds 3]
"""

import argparse
import asyncio
import csv
import time
from collections import Counter
from pathlib import Path
from typing import Any

from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

from app.pipelines.thematic.pipeline import ThematicAnalysis
from app.results.themes import ThemesResult

ROOT = Path(__file__).resolve().parent.parent
UNCODED = "("  # codes in parentheses are the coders' notes, not codes


class Uninterested:
    """A context that keeps nothing and listens to nobody."""

    def check_cancelled(self) -> None:
        """Never cancelled."""

    async def progress(
        self, fraction: float, stage: str | None = None, message: str | None = None
    ) -> None:
        """Drop it."""

    async def save_checkpoint(self, stage: str, data: Any) -> None:
        """Drop it."""

    async def load_checkpoint(self, stage: str) -> Any:
        """Find nothing."""


def nhs_fft() -> list[dict[str, str]]:
    """Answers of patients with exactly one code, one that occurs at least 20 times."""
    rows = _rows(ROOT / "examples" / "nhs-fft" / "nhs-fft.csv")
    coded = [row for row in rows if row["label"] and not row["label"].startswith(UNCODED)]
    times = Counter(row["label"] for row in coded)
    return [row for row in coded if times[row["label"]] >= 20]


def banking77() -> list[dict[str, str]]:
    """Questions to a bank, 40 for each of 77 intents."""
    return _rows(ROOT / "tests" / "data" / "banking77" / "banking77.csv")


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def analyse(rows: list[dict[str, str]], seed: int) -> tuple[ThemesResult, float]:
    """The result of one run and its CPU-seconds."""
    began = time.process_time()
    payload = {"answers": rows, "id_column": "id", "seed": seed}
    result = asyncio.run(ThematicAnalysis().run(payload, Uninterested()))  # type: ignore[arg-type]
    return ThemesResult.model_validate(result), time.process_time() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Quality of the themes against people's codes.")
    parser.add_argument("--seeds", type=int, default=1, help="runs per data set (default 1)")
    seeds = parser.parse_args().seeds
    print(f"{'data set':<10} {'rows':>5} {'seed':>4}  {'level':<10} {'clusters':>8} "
          f"{'AMI':>5} {'ARI':>5} {'stability':>9} {'CPU-s':>6}")  # fmt: skip
    for name, rows in (("nhs-fft", nhs_fft()), ("banking77", banking77())):
        gold = [row["label"] for row in rows]
        for seed in range(seeds):
            result, seconds = analyse(rows, seed)
            themes = [(entry.theme_ids or [entry.status])[0] for entry in result.assignments]
            subthemes = [entry.subtheme_id for entry in result.assignments]
            levels = {
                "themes": themes,
                "sub-themes": [sub or theme for sub, theme in zip(subthemes, themes, strict=True)],
            }
            for level, ours in levels.items():
                ami = adjusted_mutual_info_score(gold, ours)
                ari = adjusted_rand_score(gold, ours)
                print(f"{name:<10} {len(rows):>5} {seed:>4}  {level:<10} {len(set(ours)):>8} "
                      f"{ami:>5.3f} {ari:>5.3f} {result.metrics.stability or 0:>9.2f} "
                      f"{seconds:>6.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
