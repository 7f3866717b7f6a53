"""A model that is away for now: tried again later where there is a later, else done without it."""

from typing import Any, NoReturn

import pytest
from support.fake_llm import FakeLLM, Lie, Status
from thematic.coder import good
from thematic.recording import RecordingContext
from thematic.surveys import topics

from app.pipelines.thematic.pipeline import ThematicAnalysis


class RetriedError(Exception):
    """The attempt ended, and another one is to follow."""


class Retrying(RecordingContext):
    """A job with attempts left."""

    is_last_attempt = False

    def retry_later(self, delay_seconds: float, reason: str) -> NoReturn:
        raise RetriedError(delay_seconds, reason)


async def run(llm: FakeLLM, context: RecordingContext, base_url: str | None = None) -> Any:
    own = {"base_url": llm.url, "model": "m", "max_retries": 0, "concurrency": 1}
    pipeline = ThematicAnalysis(defaults={"llm": own}, llm_origins=[llm.url])
    payload: dict[str, Any] = {"answers": topics(20), "id_column": "id", "mode": "full"}
    if base_url is not None:
        pipeline = ThematicAnalysis(llm_origins=[llm.url])
        payload["llm"] = {**own, "base_url": base_url}
    return await pipeline.run(payload, context)


@pytest.mark.parametrize(
    ("away", "seconds"), [(Status(429, {"retry-after": "300"}), 300.0), (Status(503), 60.0)]
)
async def test_a_job_with_attempts_left_comes_again_and_repeats_no_finished_call(
    away: Status, seconds: float
) -> None:
    with FakeLLM(good) as llm:
        undisturbed = await run(llm, RecordingContext())
    calls: dict[str, str] = {}
    checkpoints: dict[str, str] = {}
    with FakeLLM(good) as llm:
        for allowed in (0, 3, 10):
            context = Retrying(checkpoints, calls=calls)
            _away_after(llm, allowed, away)
            with pytest.raises(RetriedError) as ended:
                await run(llm, context)
            assert ended.value.args[0] == seconds
            assert ended.value.args[1].startswith("the LLM is away: ")
        llm.always = None
        llm.answer = good
        last = Retrying(checkpoints, calls=calls)
        result = await run(llm, last)
        assert not llm.repeated
    for each in (result, undisturbed):
        del each["usage"]
    assert result == undisturbed


async def test_the_last_attempt_is_done_without_a_model_that_is_away() -> None:
    context = RecordingContext()
    with FakeLLM(good) as llm:
        llm.script(Lie(lambda answer, _: answer))  # the probe
        llm.always = Status(503)
        result = await run(llm, context)
    assert result["labelling"]["method"] == "keywords"
    assert result["usage"]["llm_calls"] == len(llm.calls) == 3  # failed ones too


async def test_a_model_that_is_lost_for_good_is_not_waited_for() -> None:
    with FakeLLM(good) as llm:
        llm.always = Status(401)
        result = await run(llm, Retrying())
    assert result["labelling"]["method"] == "keywords"


async def test_a_server_that_is_spelt_otherwise_is_not_paid_again() -> None:
    calls: dict[str, str] = {}
    with FakeLLM(good) as llm:
        spellings = (llm.url, llm.url.replace("http:", "HTTP:") + "/")
        made = []
        for base_url in spellings:
            await run(llm, RecordingContext(calls=calls), base_url)
            made.append(len(llm.calls))
    assert made[1] == made[0] + 1  # the probe of the second job's spelling


def _away_after(llm: FakeLLM, calls: int, away: Status) -> None:
    """`calls` more are answered, none after them."""
    before = len(llm.calls)
    llm.always = None

    class Counting:
        def __call__(self, request: Any) -> Any:
            if len(llm.calls) >= before + calls:
                llm.always = away
            return good(request)

    llm.answer = Counting()
