"""Scores of one labelled set over several seeds, as the JSON that the command writes."""

import statistics
from dataclasses import asdict
from typing import Any

from benchmarks.themes import measured
from benchmarks.themes.labelled import Labelled
from benchmarks.themes.scoring import score


def evaluate(rows: Labelled, *, max_themes: int, seeds: list[int]) -> dict[str, Any]:
    """Analyse the answers (one label each) once per seed and score both levels: means.

    With several seeds each level also has the standard deviations under "deviation".
    """
    outcome = measured.run(rows.texts, rows.questions, seeds, max_themes=max_themes)
    gold = [labels[0] for labels in rows.labels]
    return {
        **{
            level: _over_seeds([asdict(score(gold, groups[level])) for groups in outcome.groups])
            for level in ("themes", "subthemes")
        },
        "cpu_seconds": round(outcome.cpu_seconds, 2),
        "peak_mib": round(outcome.peak_mib, 1),
        "rows": len(gold),
        "labels": len(set(gold)),
        "seeds": seeds,
    }


def _over_seeds(scores: list[dict[str, float]]) -> dict[str, Any]:
    means = {name: statistics.mean(each[name] for each in scores) for name in scores[0]}
    level: dict[str, Any] = {name: round(mean, 4) for name, mean in means.items()}
    if len(scores) > 1:
        level["deviation"] = {
            name: round(statistics.stdev(each[name] for each in scores), 4) for name in means
        }
    return level
