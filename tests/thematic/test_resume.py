"""A job that breaks off after any stage goes on after it, and ends with the same result."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from thematic.recording import BrokenOffError, RecordingContext
from thematic.surveys import analyse, topics

from app.domain.errors import JobCancelledError
from app.pipelines.thematic import (
    assign,
    discover,
    embed,
    insights,
    label,
    load,
    package,
    pipeline,
    prepare,
    quotes,
    review,
    stance,
)
from app.pipelines.thematic.minilm import MiniLM
from app.pipelines.thematic.pipeline import STAGES, ThematicAnalysis

WORK = {
    "load": (load, "load"),
    "prepare": (prepare, "prepare"),
    "embed": (embed, "embed"),
    "discover": (discover, "discover"),
    "name": (label, "label"),
    "review": (review, "unreviewed"),
    "assign": (assign, "assign"),
    "quotes": (quotes, "quotes"),
    "stance": (stance, "untold"),
    "insights": (insights, "insights"),
    "check": (package, "package"),
}
ORDER = list(STAGES)


@pytest.fixture(name="worked")
def _worked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts how often each stage's work is done."""
    worked: Counter[str] = Counter()

    def counting(stage: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            worked[stage] += 1
            return work(*args, **kwargs)

        return counted

    for stage, (module, name) in WORK.items():
        monkeypatch.setattr(module, name, counting(stage, getattr(module, name)))
    return worked


def payload() -> dict[str, Any]:
    return {"answers": topics(20), "group_by": ["topic"], "embedding": {"backend": "lsa"}}


def without_usage(result: Any) -> str:
    return json.dumps({**result, "usage": None})


@pytest.mark.parametrize("at", ORDER[1:])
def test_finished_stages_are_not_repeated(at: str, worked: Counter[str]) -> None:
    whole = analyse(payload())
    worked.clear()
    kept: dict[str, str] = {}
    with pytest.raises(BrokenOffError):
        analyse(payload(), RecordingContext(kept, break_off_at=at))
    finished = ORDER[: ORDER.index(at)]
    assert list(kept) == finished
    second = analyse(payload(), RecordingContext(kept))
    assert worked == dict.fromkeys(ORDER, 1)
    assert without_usage(second) == without_usage(whole)


def test_no_text_is_embedded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []
    real = MiniLM.embed

    def counted(self: MiniLM, batch: Any) -> Any:
        batches.append(len(batch))
        return real(self, batch)

    monkeypatch.setattr(MiniLM, "embed", counted)
    given = {"answers": topics(10), "embedding": {"backend": "minilm-int8"}}
    kept: dict[str, str] = {}
    with pytest.raises(BrokenOffError):
        analyse(given, RecordingContext(kept, break_off_at="name"))
    assert sum(batches) == 30
    resumed = analyse(given, RecordingContext(kept))
    assert sum(batches) == 30
    assert without_usage(resumed) == without_usage(analyse(given))


@pytest.mark.parametrize(
    ("change", "first"),
    [
        ({"answers": topics(19)}, "load"),
        ({"question": "What was good?"}, "load"),
        ({"redact": {"phones": False}}, "prepare"),
        ({"max_themes": 2}, "discover"),
        ({"seed": 1}, "discover"),
        ({"context": "A survey of visitors."}, "name"),
        ({"quotes_per_theme": 2}, "quotes"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_a_stage_is_done_again_when_what_it_depends_on_has_changed(
    change: dict[str, Any], first: str, worked: Counter[str]
) -> None:
    kept: dict[str, str] = {}
    analyse(payload(), RecordingContext(kept))
    worked.clear()
    analyse({**payload(), **change}, RecordingContext(kept))
    assert worked == dict.fromkeys(ORDER[ORDER.index(first) :], 1)


def test_a_checkpoint_of_another_version_is_not_used(
    monkeypatch: pytest.MonkeyPatch, worked: Counter[str]
) -> None:
    kept: dict[str, str] = {}
    analyse(payload(), RecordingContext(kept))
    worked.clear()
    monkeypatch.setattr(pipeline, "VERSION", "0.9")
    analyse(payload(), RecordingContext(kept))
    assert worked == dict.fromkeys(ORDER, 1)


@pytest.mark.parametrize("rubbish", ["[]", "{}", '"x"', '{"key": null}'])
def test_a_checkpoint_of_another_shape_is_not_used(rubbish: str) -> None:
    kept = dict.fromkeys(ORDER, rubbish)
    assert analyse(payload(), RecordingContext(kept))["themes"]


def test_a_restored_stage_is_a_milestone_too() -> None:
    kept: dict[str, str] = {}
    analyse(payload(), RecordingContext(kept))
    again = RecordingContext(kept)
    result = analyse(payload(), again)
    assert again.milestones == ORDER
    assert (0.03, "embed", "60 texts (done before)") in again.reports
    assert list(result["usage"]["seconds_by_stage"]) == ORDER


async def test_a_cancelled_job_ends_within_a_batch() -> None:
    class Cancelling(RecordingContext):
        async def progress(
            self, fraction: float, stage: str | None = None, message: str | None = None
        ) -> None:
            await super().progress(fraction, stage, message)
            self.cancelled = message == "16 of 60 texts"

    context = Cancelling()
    with pytest.raises(JobCancelledError):
        await ThematicAnalysis().run({"answers": topics(20)}, context)
    assert context.reports[-1][2] == "16 of 60 texts"


async def test_the_loop_goes_on_during_the_work() -> None:
    ticks = 0

    async def ticking() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.005)
            ticks += 1

    ticker = asyncio.create_task(ticking())
    await ThematicAnalysis().run({"answers": topics(20)}, RecordingContext())
    ticker.cancel()
    assert ticks > 3
