"""Answers to analyse: real ones from the bundled data, and made-up ones with known topics."""

import asyncio
import csv
import random
from pathlib import Path
from typing import Any

from thematic.recording import RecordingContext

from app.pipelines.thematic.pipeline import ThematicAnalysis
from app.results.themes import ThemesResult
from app.results.verifying import verify

ROOT = Path(__file__).resolve().parents[2]

_PARTS = {
    "parking": (["parking", "car park", "parking space"], ["was full", "costs too much", "is far"]),
    "food": (["lunch", "the meal", "hospital food"], ["was cold", "tasted bland", "came late"]),
    "nurse": (["the nurse", "our nurse", "every nurse"], ["was kind", "listened", "cared for me"]),
}


def nhs_rows(rows: int | None = None) -> list[dict[str, str]]:
    return _rows(ROOT / "examples" / "nhs-fft" / "nhs-fft.csv")[:rows]


def banking_rows() -> list[dict[str, str]]:
    return _rows(ROOT / "tests" / "data" / "banking77" / "banking77.csv")


def topics(each: int) -> list[dict[str, str]]:
    """`each` different answers on parking, food and nurses, shuffled, topic and id beside them."""
    rows = []
    for topic, (things, faults) in _PARTS.items():
        for number in range(each):
            thing, fault = things[number % 3], faults[number // 3 % 3]
            rows.append({"topic": topic, "text": f"{thing} {fault} ({number + 2})".capitalize()})
    random.Random(0).shuffle(rows)  # noqa: S311 - an order, not a secret
    return [{"id": f"r{number}", **row} for number, row in enumerate(rows)]


def analyse(payload: dict[str, Any], context: RecordingContext | None = None) -> dict[str, Any]:
    return asyncio.run(ThematicAnalysis().run(payload, context or RecordingContext()))


def problems(result: dict[str, Any], answers: dict[str, str]) -> list[str]:
    return verify(ThemesResult.model_validate(result), answers)


def primary_themes(result: dict[str, Any]) -> list[str]:
    """Each row's first theme, or what became of it instead."""
    return [(entry["theme_ids"] or [entry["status"]])[0] for entry in result["assignments"]]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
