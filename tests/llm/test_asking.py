"""A question is asked once, its answer is checked, and what cannot be had is said."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from llm.doubles import MODEL, QUESTION, Memory, Name, llm_for, settings_for
from pydantic import BaseModel, Field
from support.fake_llm import (
    EMPTY_CHOICES,
    FakeLLM,
    Held,
    Lie,
    Raw,
    Said,
    Status,
    Truncated,
    lie_about,
)

from app.pipelines.llm import (
    AnswerRejectedError,
    BudgetExceededError,
    LLMUnavailableError,
    Message,
    open_llm,
    transport,
)

READY = Said('{"reply": "ready", "letters": "ab", "digit": 3, "words": []}')


class Short(BaseModel):
    name: str = Field(max_length=60)


@pytest.fixture
def memory() -> Memory:
    return Memory()


def _question(number: int) -> tuple[Message, ...]:
    return (Message("user", f"Name theme number {number}."),)


def _refuses_river(answer: Name) -> list[str]:
    return ["name: there is no river in the answers"] if "river" in answer.name else []


def _refusals(fake: FakeLLM) -> int:
    return len([call for call in fake.calls if not call.is_finished])


# -- asked once -----------------------------------------------------------------------------------


async def test_an_answer_is_kept_with_what_it_cost(fake: FakeLLM, memory: Memory) -> None:
    llm = llm_for(fake, memory, prompt_price=1.0, completion_price=1.0)
    answer = await llm.ask("name", QUESTION, Name)
    await llm.close()
    assert answer.name
    assert memory.stages == ["probe", "name"]
    usage = llm.usage("name")
    facts = memory.facts[1]
    assert facts["model"] == MODEL
    assert facts["prompt_tokens"] == usage.prompt_tokens > 0
    assert facts["completion_tokens"] == usage.completion_tokens > 0
    assert facts["cost"] == usage.cost > 0


async def test_another_attempt_repeats_no_finished_call(fake: FakeLLM, memory: Memory) -> None:
    fake.script(READY, lie_about("name", 7))
    first = llm_for(fake, memory)
    answer = await first.ask("name", QUESTION, Name)
    await first.close()
    calls = len(fake.calls)
    assert calls == 3  # the probe, the answer, its repair

    second = llm_for(fake, memory)
    assert await second.ask("name", QUESTION, Name) == answer
    await second.close()
    assert len(fake.calls) == calls
    assert not fake.repeated
    assert second.usage("name").cached_calls == 2
    assert second.usage("name").calls == 0
    assert memory.cached == [("probe", MODEL, 1), ("name", MODEL, 2)]


async def test_a_kept_answer_is_used_while_the_server_is_away(memory: Memory) -> None:
    with FakeLLM() as fake:
        first = llm_for(fake, memory)
        answer = await first.ask("name", QUESTION, Name)
        await first.close()
    second = llm_for(fake, memory, max_retries=0)
    assert await second.ask("name", QUESTION, Name) == answer
    with pytest.raises(LLMUnavailableError):
        await second.ask("name", _question(2), Name)
    await second.close()


async def test_cached_calls_are_counted_once(fake: FakeLLM, memory: Memory) -> None:
    llm = llm_for(fake, memory)
    for _ in range(3):
        await llm.ask("name", QUESTION, Name)
    await llm.flush_usage("name")
    await llm.flush_usage("name")
    await llm.close()
    assert memory.cached == [("name", MODEL, 2)]


@pytest.mark.parametrize(
    "other",
    [{"model": "other"}, {"temperature": 0.7}, {"seed": 1}, {"max_output_tokens": 99}],
    ids=str,
)
async def test_another_model_or_sampling_is_another_question(
    fake: FakeLLM, memory: Memory, other: dict[str, Any]
) -> None:
    settings = settings_for(fake)
    for changed in ({}, other):
        values = {name: getattr(settings, name) for name in settings.__slots__} | changed
        llm = open_llm(type(settings)(**values), memory)
        await llm.ask("name", QUESTION, Name)
        await llm.close()
    assert memory.stages.count("name") == 2


async def test_the_same_model_elsewhere_is_not_asked_again(fake: FakeLLM, memory: Memory) -> None:
    with FakeLLM() as elsewhere:
        for server in (fake, elsewhere):
            llm = llm_for(server, memory)
            await llm.ask("name", QUESTION, Name)
            await llm.close()
        assert [call.prompt for call in elsewhere.calls] == [fake.calls[0].prompt]  # the probe


async def test_another_job_probes_for_itself(fake: FakeLLM, memory: Memory) -> None:
    for job_id in ("a", "b"):
        memory.job_id = job_id
        llm = llm_for(fake, memory)
        await llm.ask("name", QUESTION, Name)
        await llm.close()
    assert memory.stages == ["probe", "name", "probe"]


async def test_equal_questions_at_once_are_asked_once(fake: FakeLLM, memory: Memory) -> None:
    llm = llm_for(fake, memory)
    await llm.probe()
    fake.script(Held())
    asking = [asyncio.ensure_future(llm.ask("name", QUESTION, Name)) for _ in range(5)]
    await fake.until(lambda: fake.under_way == 1)
    asking[0].cancel()
    await asyncio.wait([asking[0]])
    fake.release()
    answers = await asyncio.gather(*asking[1:])
    await llm.close()
    assert answers == answers[:1] * 4
    assert len(fake.calls) == 2
    assert llm.usage("name").calls == 1


async def test_a_question_asked_again_while_it_is_being_cancelled_is_answered(
    fake: FakeLLM, memory: Memory
) -> None:
    llm = llm_for(fake, memory)
    await llm.probe()
    fake.script(Held())
    first = asyncio.ensure_future(llm.ask("name", QUESTION, Name))
    await fake.until(lambda: fake.under_way == 1)
    first.cancel()
    await asyncio.sleep(0)
    assert (await llm.ask("name", QUESTION, Name)).name
    assert first.cancelled()
    await llm.close()


async def test_what_is_kept_holds_no_nul_and_no_half_characters(
    fake: FakeLLM, memory: Memory
) -> None:
    fake.script(READY, Said('{"name": "a\\u0000\\ud800"} \x00\ud800'))
    llm = llm_for(fake, memory)
    answer = await llm.ask("name", QUESTION, Name)
    await llm.close()
    assert answer.name == "a\ufffd\ufffd"
    for kept in memory.kept.values():
        assert "\\ud800" not in kept.replace("\\\\ud800", "")
        assert "\\u0000" not in kept.replace("\\\\u0000", "")


# -- checked --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [Said("Parking, I think."), lie_about("name", 7), Said('{"name": "river"}')],
    ids=["no JSON", "not valid", "not true"],
)
async def test_a_wrong_answer_is_repaired_once(fake: FakeLLM, memory: Memory, wrong: Any) -> None:
    fake.script(READY, wrong)
    llm = llm_for(fake, memory)
    answer = await llm.ask("name", QUESTION, Name, _refuses_river)
    await llm.close()
    assert isinstance(answer.name, str)
    assert "river" not in answer.name
    told = fake.calls[2].request["messages"]
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    assert "not accepted:\n- " in told[3]["content"]
    assert llm.usage("name").rejected == 1
    assert llm.first_right("name") == 0.0


async def test_an_answer_that_stays_wrong_is_rejected_with_its_problems(
    fake: FakeLLM, memory: Memory
) -> None:
    fake.answer = lambda _: {"name": "river", "description": None}
    llm = llm_for(fake, memory)
    with pytest.raises(AnswerRejectedError) as caught:
        await llm.ask("name", QUESTION, Name, _refuses_river)
    await llm.close()
    assert caught.value.problems == ["name: there is no river in the answers"]
    assert len(fake.calls) == 3


@pytest.mark.parametrize(
    ("useless", "problem"),
    [
        (Truncated(), "cut off"),
        (Said("", "content_filter"), "content filter"),
        (Said(None, refusal="I won't."), "refused: I won't."),
        (Said("x" * 2_000_000), "longer than can be kept"),
    ],
    ids=["cut off", "filtered", "refused", "oversized"],
)
async def test_what_would_end_the_same_way_is_not_asked_again(
    fake: FakeLLM, memory: Memory, useless: Any, problem: str
) -> None:
    fake.script(READY, useless)
    llm = llm_for(fake, memory)
    for _ in range(2):
        with pytest.raises(AnswerRejectedError, match=problem):
            await llm.ask("name", QUESTION, Name)
    await llm.close()
    assert len(fake.calls) == 2
    assert llm.usage("name").cached_calls == 1


@pytest.mark.parametrize(
    "passing",
    [Said("", "content_filter"), Said(None, refusal="I won't.")],
    ids=["filtered", "refused"],
)
async def test_a_refusal_is_kept_for_its_own_job_alone(
    fake: FakeLLM, memory: Memory, passing: Said
) -> None:
    fake.script(READY, passing)
    first = llm_for(fake, memory)
    with pytest.raises(AnswerRejectedError):
        await first.ask("name", QUESTION, Name)
    await first.close()
    memory.job_id = "another"
    second = llm_for(fake, memory)
    assert (await second.ask("name", QUESTION, Name)).name
    await second.close()


async def test_no_answer_at_all_is_paid_for_and_not_kept(fake: FakeLLM, memory: Memory) -> None:
    fake.script(READY, EMPTY_CHOICES)
    llm = llm_for(fake, memory)
    with pytest.raises(AnswerRejectedError, match="no answer"):
        await llm.ask("name", QUESTION, Name)
    assert (await llm.ask("name", QUESTION, Name)).name
    await llm.close()
    assert memory.stages == ["probe", "name", "name"]
    assert len(fake.calls) == 3


@pytest.mark.parametrize("blank", [Said(""), Said(None), Said(" ", None)], ids=str)
async def test_a_blank_answer_is_kept_for_nobody(
    fake: FakeLLM, memory: Memory, blank: Said
) -> None:
    fake.script(READY, blank)
    first = llm_for(fake, memory)
    with pytest.raises(AnswerRejectedError, match="no answer"):
        await first.ask("name", QUESTION, Name)
    await first.close()
    memory.job_id = "another"
    second = llm_for(fake, memory)
    assert (await second.ask("name", QUESTION, Name)).name
    await second.close()
    assert memory.stages == ["probe", "name", "probe", "name"]  # paid for all the same


@pytest.mark.parametrize(
    "wrong",
    [Said("Upstream error."), lie_about("name", 7), Said('{"name": "river"}')],
    ids=["no JSON", "not valid", "not true"],
)
async def test_what_failed_with_its_repair_is_asked_again_by_another_job_alone(
    fake: FakeLLM, memory: Memory, wrong: Any
) -> None:
    fake.script(READY, wrong, wrong)
    for _ in range(2):  # also by a second attempt
        first = llm_for(fake, memory)
        with pytest.raises(AnswerRejectedError):
            await first.ask("name", QUESTION, Name, _refuses_river)
        await first.close()
    calls = len(fake.calls)
    assert calls == 3
    memory.job_id = "another"
    second = llm_for(fake, memory)
    assert (await second.ask("name", QUESTION, Name, _refuses_river)).name
    await second.close()
    assert len(fake.calls) == calls + 2  # the probe, and the question or its repair


async def test_an_answer_that_was_repaired_serves_every_job(fake: FakeLLM, memory: Memory) -> None:
    fake.script(READY, Said('{"name": "river"}'))
    first = llm_for(fake, memory)
    answer = await first.ask("name", QUESTION, Name, _refuses_river)
    await first.close()
    memory.job_id = "another"
    second = llm_for(fake, memory)
    assert await second.ask("name", QUESTION, Name, _refuses_river) == answer
    await second.close()
    assert memory.stages == ["probe", "name", "name", "probe"]


async def test_an_answer_nested_beyond_reason_is_a_wrong_answer(
    fake: FakeLLM, memory: Memory
) -> None:
    fake.script(READY, Said('{"name": ' + "[" * 900 + "]" * 900 + "}"))
    llm = llm_for(fake, memory)
    assert (await llm.ask("name", QUESTION, Name)).name
    assert (await llm.ask("name", QUESTION, Name)).name
    await llm.close()
    assert len(fake.calls) == 3


async def test_the_share_of_answers_right_at_first_is_known(fake: FakeLLM, memory: Memory) -> None:
    llm = llm_for(fake, memory)
    assert llm.first_right("name") is None
    await llm.probe()
    fake.script(lie_about("name", 7))
    for number in range(4):
        await llm.ask("name", _question(number), Name)
    await llm.close()
    assert llm.first_right("name") == 0.75


# -- the ladder -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forms", "sent"),
    [
        (("bounded_schema", "json_schema", "json_object"), "json_schema"),
        (("json_schema", "json_object"), "json_schema"),
        (("json_object",), "json_object"),
        ((), "text"),
    ],
)
async def test_the_strictest_form_that_the_server_knows_is_found_once(
    memory: Memory, forms: tuple[str, ...], sent: str
) -> None:
    with FakeLLM(forms=forms) as fake:
        llm = llm_for(fake, memory)
        for number in range(3):
            assert (await llm.ask("name", _question(number), Name)).name
        await llm.close()
        assert _refusals(fake) == 3 - len(forms)
        used = [(call.request.get("response_format") or {"type": "text"}) for call in fake.calls]
        assert [form["type"] for form in used[-3:]] == [sent] * 3
        again = llm_for(fake, memory)
        await again.ask("name", _question(1), Name)
        await again.close()
        assert not fake.repeated


@pytest.mark.parametrize("hiccup", [EMPTY_CHOICES, Status(400), Status(422), Said("?")], ids=str)
async def test_an_attempt_goes_on_with_the_form_that_an_earlier_one_found(
    fake: FakeLLM, memory: Memory, hiccup: Any
) -> None:
    fake.script(hiccup)  # the strictest form fails once, and would do
    for _ in range(2):
        llm = llm_for(fake, memory)
        for number in range(3):
            await llm.ask("name", _question(number), Short)
        await llm.close()
    assert len(fake.calls) == 2 + 3
    assert not fake.repeated


async def test_questions_at_once_do_without_what_the_model_refuses(
    fake: FakeLLM, memory: Memory
) -> None:
    first = llm_for(fake, memory)
    await first.probe()
    await first.close()
    refused = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    fake.script(*[Status(400, {}, {"error": {"message": refused}})] * 4)
    second = llm_for(fake, memory)  # its probe is kept: nothing is learnt before all ask at once
    await asyncio.gather(*(second.ask("name", _question(number), Name) for number in range(4)))
    await second.close()
    third = llm_for(fake, memory)
    await asyncio.gather(*(third.ask("name", _question(number), Name) for number in range(4)))
    await third.close()
    assert len(fake.calls) == 1 + 4 + 4


async def test_the_probe_keeps_to_what_may_be_answered(fake: FakeLLM, memory: Memory) -> None:
    llm = llm_for(fake, memory, max_output_tokens=64)
    await llm.probe()
    await llm.close()
    assert fake.calls[0].request["max_tokens"] == 64


@pytest.mark.parametrize("are_obeyed", [True, False])
async def test_bounds_are_sent_where_they_are_obeyed(
    fake: FakeLLM, memory: Memory, *, are_obeyed: bool
) -> None:
    if not are_obeyed:
        letters = "far more letters than were allowed"
        fake.script(Lie(lambda answer, _: answer | {"letters": letters}))
    llm = llm_for(fake, memory)
    await llm.ask("name", QUESTION, Short)
    await llm.close()
    assert ("maxLength" in json.dumps(fake.calls[-1].request)) is are_obeyed


async def test_a_server_that_ignores_the_form_is_told_in_words(
    fake: FakeLLM, memory: Memory
) -> None:
    fake.script(Said("I am ready."), Said("I am ready."))
    llm = llm_for(fake, memory)
    await llm.ask("name", QUESTION, Name)
    await llm.close()
    assert fake.calls[-1].request["response_format"] == {"type": "json_object"}


async def test_a_form_that_the_settings_name_is_used_as_it_is(
    fake: FakeLLM, memory: Memory
) -> None:
    llm = llm_for(fake, memory, structured="text")
    await llm.ask("name", QUESTION, Name)
    await llm.close()
    assert not [call for call in fake.calls if "response_format" in call.request]


async def test_a_schema_that_the_server_refuses_is_told_in_words_each_time(
    fake: FakeLLM, memory: Memory
) -> None:
    llm = llm_for(fake, memory)
    await llm.probe()
    fake.script(Status(400, {}, {"error": {"message": "the grammar is too large"}}))
    await llm.ask("name", _question(1), Name)
    await llm.ask("name", _question(2), Name)
    await llm.close()
    forms = [call.request["response_format"]["type"] for call in fake.calls]
    assert forms == ["json_schema", "json_schema", "json_schema", "json_schema"]
    # The refused schema is asked for without bounds first.
    assert len(fake.calls) == 4


async def test_a_question_that_the_server_refuses_in_every_form_is_rejected(
    fake: FakeLLM, memory: Memory
) -> None:
    llm = llm_for(fake, memory)
    await llm.probe()
    too_long = Status(400, {}, {"error": {"message": "the prompt is too long"}})
    fake.script(*[too_long] * 4)
    with pytest.raises(AnswerRejectedError, match="the prompt is too long"):
        await llm.ask("name", _question(1), Name)
    assert (await llm.ask("name", _question(2), Name)).name
    await llm.close()


async def test_a_repair_that_the_server_refuses_is_a_rejection(
    fake: FakeLLM, memory: Memory
) -> None:
    fake.script(READY, Said("no JSON"), Status(413))
    llm = llm_for(fake, memory)
    with pytest.raises(AnswerRejectedError, match="no JSON object"):
        await llm.ask("name", QUESTION, Name)
    await llm.close()


async def test_a_model_that_gives_no_json_at_all_is_of_no_use(
    fake: FakeLLM, memory: Memory
) -> None:
    fake.always = Said("Lorem ipsum.")
    llm = llm_for(fake, memory)
    with pytest.raises(LLMUnavailableError, match="does not answer in JSON") as caught:
        await llm.probe()
    await llm.close()
    assert caught.value.is_final


async def test_a_probe_of_a_server_that_is_not_there_fails(memory: Memory) -> None:
    with FakeLLM() as fake:
        llm = llm_for(fake, memory, max_retries=1)
    with pytest.raises(LLMUnavailableError):
        await llm.probe()
    await llm.close()


# -- lost servers and spent budgets ---------------------------------------------------------------


@pytest.mark.parametrize(("code", "calls"), [(401, 1), (404, 1), (503, 2)])
async def test_a_lost_server_is_not_asked_for_the_rest(
    fake: FakeLLM, memory: Memory, code: int, calls: int
) -> None:
    llm = llm_for(fake, memory, max_retries=0)
    await llm.probe()
    fake.always = Status(code)
    for number in range(5):
        with pytest.raises(LLMUnavailableError):
            await llm.ask("name", _question(number), Name)
    await llm.close()
    assert len(fake.calls) == 1 + calls


@pytest.mark.parametrize(("code", "calls"), [(401, 2), (503, 3)])
async def test_questions_that_wait_when_the_server_is_lost_are_not_asked(
    fake: FakeLLM, memory: Memory, code: int, calls: int
) -> None:
    llm = llm_for(fake, memory, max_retries=0, concurrency=1)
    await llm.probe()
    fake.always = Status(code)
    asking = [llm.ask("name", _question(number), Name) for number in range(30)]
    results = await asyncio.gather(*asking, return_exceptions=True)
    await llm.close()
    assert all(isinstance(result, LLMUnavailableError) for result in results)
    assert len(fake.calls) == calls


async def test_a_failure_is_final_once_the_server_is_given_up(
    fake: FakeLLM, memory: Memory
) -> None:
    llm = llm_for(fake, memory, max_retries=0)
    await llm.probe()
    fake.always = Status(503)
    final = []
    for number in range(3):
        with pytest.raises(LLMUnavailableError) as caught:
            await llm.ask("name", _question(number), Name)
        final.append(caught.value.is_final)
    await llm.close()
    assert final == [False, True, True]


async def test_a_server_that_refuses_every_question_is_given_up(
    fake: FakeLLM, memory: Memory
) -> None:
    llm = llm_for(fake, memory)
    await llm.probe()
    fake.always = Status(400, {}, {"error": {"message": "content policy"}})
    for number in range(7):
        with pytest.raises(AnswerRejectedError, match="content policy"):
            await llm.ask("name", _question(number), Name)
    for number in (7, 8, 9):
        with pytest.raises(LLMUnavailableError, match="8 questions in a row") as caught:
            await llm.ask("name", _question(number), Name)
        assert caught.value.is_final
    await llm.close()
    assert len(fake.calls) == 1 + 8 * 4


async def test_a_server_that_recovers_is_not_given_up(fake: FakeLLM, memory: Memory) -> None:
    llm = llm_for(fake, memory, max_retries=0)
    await llm.probe()
    for number in range(3):
        fake.script(Status(503))
        with pytest.raises(LLMUnavailableError):
            await llm.ask("name", _question(number), Name)
        assert (await llm.ask("name", _question(number), Name)).name
    await llm.close()


async def test_a_loss_that_may_pass_tells_when_to_come_again(fake: FakeLLM, memory: Memory) -> None:
    llm = llm_for(fake, memory, max_retries=0)
    await llm.probe()
    fake.always = Status(429, {"retry-after": "300"})
    for number in range(3):
        with pytest.raises(LLMUnavailableError) as caught:
            await llm.ask("name", _question(number), Name)
    await llm.close()
    assert caught.value.later_seconds == 300


@pytest.mark.parametrize(("code", "later"), [(503, 60), (401, None)])
async def test_a_loss_for_good_tells_no_time(
    fake: FakeLLM, memory: Memory, code: int, later: float | None
) -> None:
    llm = llm_for(fake, memory, max_retries=0)
    await llm.probe()
    fake.always = Status(code)
    for number in range(3):
        with pytest.raises(LLMUnavailableError) as caught:
            await llm.ask("name", _question(number), Name)
    await llm.close()
    assert caught.value.later_seconds == later


async def test_an_endless_answer_ends_its_own_question_alone(
    fake: FakeLLM, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = llm_for(fake, memory)
    await llm.probe()
    monkeypatch.setattr(transport, "MAX_RESPONSE_BYTES", 5_000)
    fake.script(Said("x" * 6_000))
    for _ in range(2):
        with pytest.raises(AnswerRejectedError, match="longer than can be kept"):
            await llm.ask("name", QUESTION, Name)
    assert (await llm.ask("name", _question(2), Name)).name
    await llm.close()
    assert len(fake.calls) == 3
    assert memory.facts[1]["completion_tokens"] == llm.settings.max_output_tokens


async def test_the_budget_counts_every_call_but_kept_ones(fake: FakeLLM, memory: Memory) -> None:
    llm = llm_for(fake, memory, max_calls=3)  # the probe is one
    for number in (1, 2, 1, 2):
        await llm.ask("name", _question(number), Name)
    with pytest.raises(BudgetExceededError, match="3 calls"):
        await llm.ask("name", _question(3), Name)
    await llm.close()
    assert len(fake.calls) == 3


async def test_every_request_counts_also_one_that_failed(fake: FakeLLM, memory: Memory) -> None:
    llm = llm_for(fake, memory, max_calls=4)
    await llm.probe()
    fake.script(Status(500), Status(500))
    assert (await llm.ask("name", _question(1), Name)).name
    with pytest.raises(BudgetExceededError, match="4 calls") as caught:
        await llm.ask("name", _question(2), Name)
    await llm.close()
    assert caught.value.is_final
    assert len(fake.calls) == 4


async def test_no_try_is_made_again_beyond_the_budget(fake: FakeLLM, memory: Memory) -> None:
    llm = llm_for(fake, memory, max_calls=3)
    await llm.probe()
    fake.always = Status(500)
    with pytest.raises(BudgetExceededError, match="3 calls"):
        await llm.ask("name", _question(1), Name)
    await llm.close()
    assert len(fake.calls) == 3


async def test_refusals_count_as_requests(fake: FakeLLM, memory: Memory) -> None:
    llm = llm_for(fake, memory, max_calls=10)
    await llm.probe()
    fake.always = Status(400)
    for number in range(5):
        with pytest.raises((AnswerRejectedError, BudgetExceededError)):
            await llm.ask("name", _question(number), Name)
    await llm.close()
    assert len(fake.calls) == 10


async def test_a_prompt_without_an_answer_in_time_is_counted(fake: FakeLLM, memory: Memory) -> None:
    llm = llm_for(fake, memory, max_retries=0, timeout_seconds=0.2)
    await llm.probe()
    before = llm.budget.spent
    fake.script(Held())
    with pytest.raises(LLMUnavailableError):
        await llm.ask("name", QUESTION, Name)
    await llm.close()
    spent = llm.budget.spent - before
    assert spent.calls == 1
    assert spent.prompt_tokens > 0
    # It may have been written in full, and nobody tells.
    assert spent.completion_tokens == llm.settings.max_output_tokens


async def test_embeddings_are_no_calls_of_the_model(fake: FakeLLM, memory: Memory) -> None:
    facts = {"stage": "embed", "model": "e", "prompt_tokens": 9, "completion_tokens": 0}
    memory.facts += [{**facts, "cost": 0.0}] * 5
    llm = llm_for(fake, memory, max_calls=2)
    assert (await llm.ask("name", _question(1), Name)).name
    await llm.close()


async def test_the_budget_is_the_jobs_and_not_an_attempts(fake: FakeLLM, memory: Memory) -> None:
    first = llm_for(fake, memory, max_calls=3)
    await first.ask("name", _question(1), Name)
    await first.close()
    second = llm_for(fake, memory, max_calls=3)
    await second.ask("name", _question(1), Name)
    await second.ask("name", _question(2), Name)
    with pytest.raises(BudgetExceededError, match="3 calls"):
        await second.ask("name", _question(3), Name)
    await second.close()


async def test_requests_that_fail_count_over_all_attempts(fake: FakeLLM, memory: Memory) -> None:
    fake.script(READY)
    fake.always = Status(503)
    for _ in range(4):
        llm = llm_for(fake, memory, max_calls=10)
        with pytest.raises((LLMUnavailableError, BudgetExceededError)):
            await llm.ask("name", QUESTION, Name)
        # Before anything is settled: it may be killed here.
        assert sum(usage.calls for usage in await memory.load_usage()) == len(fake.calls)
        await llm.close()
    assert len(fake.calls) == 10


async def test_a_call_under_way_when_the_job_ends_counts_at_its_worst(
    fake: FakeLLM, memory: Memory
) -> None:
    llm = llm_for(fake, memory, concurrency=2, completion_price=1.0)
    await llm.probe()
    fake.script(*[Held()] * 2)
    asking = asyncio.gather(*(llm.ask("name", _question(number), Name) for number in range(5)))
    await fake.until(lambda: fake.under_way == 2)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await llm.close()
    assert [each["calls"] for each in memory.failed] == [1, 1]  # not of those that waited
    for each in memory.failed:
        assert each["prompt_tokens"] > 0
        assert each["completion_tokens"] == llm.settings.max_output_tokens
        assert each["cost"] > 0


async def test_a_failed_request_is_counted_before_the_next(fake: FakeLLM, memory: Memory) -> None:
    llm = llm_for(fake, memory, max_retries=3)
    await llm.probe()
    fake.script(Status(500), Status(500))
    await llm.ask("name", QUESTION, Name)
    await llm.close()
    assert [each["calls"] for each in memory.failed] == [1, 1]


async def test_what_was_spent_before_is_counted_once(fake: FakeLLM, memory: Memory) -> None:
    facts = {"stage": "name", "model": "old", "prompt_tokens": 1, "completion_tokens": 1}
    memory.facts += [{**facts, "cost": 0.0}] * 6
    llm = llm_for(fake, memory, max_calls=12, max_retries=0)
    fake.script(Status(503))
    with pytest.raises(LLMUnavailableError):
        await llm.ask("name", QUESTION, Name)
    assert (await llm.ask("name", QUESTION, Name)).name
    await llm.close()
    assert llm.budget.spent.calls == 6 + 3


async def test_answers_that_broke_off_count_at_their_worst(fake: FakeLLM, memory: Memory) -> None:
    llm = llm_for(fake, memory, max_cost=0.006, prompt_price=1.0, completion_price=1.0)
    await llm.probe()
    fake.always = Raw(b'{"choices": [{"message": {"content": "aaaa')
    question = (Message("user", "q" * 3_000),)
    with pytest.raises(BudgetExceededError):
        await llm.ask("name", question, Name, max_output_tokens=1_000)
    await llm.close()
    assert len(fake.calls) == 1 + 2  # at 2,000 tokens and more


async def test_no_script_overruns_a_budget_of_tokens(fake: FakeLLM, memory: Memory) -> None:
    llm = llm_for(fake, memory, max_tokens_total=4_500)
    await llm.probe()
    size = 3_000
    usage = {"prompt_tokens": size, "completion_tokens": 10}
    said = {"choices": [{"message": {"content": '{"name": "n", "description": null}'}}]}
    fake.always = Raw({**said, "usage": usage})
    asking = [
        llm.ask("name", (Message("user", str(n) + "\u505c" * size),), Name, max_output_tokens=100)
        for n in range(5)
    ]
    results = await asyncio.gather(*asking, return_exceptions=True)
    await llm.close()
    assert [type(result) for result in results].count(Name) == 1
    assert llm.budget.spent.prompt_tokens + llm.budget.spent.completion_tokens <= 4_500


async def test_calls_at_once_do_not_overrun_the_budget(fake: FakeLLM, memory: Memory) -> None:
    llm = llm_for(fake, memory, max_calls=3)
    await llm.probe()
    asking = [llm.ask("name", _question(number), Name) for number in range(6)]
    results = await asyncio.gather(*asking, return_exceptions=True)
    await llm.close()
    assert [type(result) for result in results].count(BudgetExceededError) == 4
    assert len(fake.calls) == 3


# -- cancelled ------------------------------------------------------------------------------------


async def test_cancelling_ends_the_calls_in_flight_and_keeps_the_finished(
    fake: FakeLLM, memory: Memory
) -> None:
    llm = llm_for(fake, memory)
    await llm.ask("name", _question(0), Name)
    fake.script(Held(), Held())
    asking = asyncio.gather(*(llm.ask("name", _question(number), Name) for number in (0, 1, 2)))
    await fake.until(lambda: fake.under_way == 2)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await fake.until(lambda: fake.under_way == 0)
    await llm.close()
    assert [call.is_abandoned for call in fake.calls] == [False, False, True, True]
    assert memory.stages == ["probe", "name"]


async def test_an_answer_that_arrived_is_kept_although_the_job_is_cancelled(
    fake: FakeLLM,
) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Memory):
        async def save_call(self, key: str, answer: Any, **facts: Any) -> None:
            if facts["stage"] == "name":
                arrived.set()
                await go_on.wait()
            await super().save_call(key, answer, **facts)

    memory = Slow()
    llm = llm_for(fake, memory)
    asking = asyncio.ensure_future(llm.ask("name", QUESTION, Name))
    await arrived.wait()
    asking.cancel()
    asyncio.get_running_loop().call_soon(go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await asking
    await llm.close()
    assert memory.stages == ["probe", "name"]


async def test_closing_ends_what_is_under_way(fake: FakeLLM, memory: Memory) -> None:
    llm = llm_for(fake, memory)
    await llm.probe()
    fake.script(Held())
    asking = asyncio.ensure_future(llm.ask("name", QUESTION, Name))
    await fake.until(lambda: fake.under_way == 1)
    await llm.close()
    await llm.close()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await fake.until(lambda: fake.under_way == 0)


# -- opened ---------------------------------------------------------------------------------------


async def test_an_open_model_says_why_it_waits(fake: FakeLLM, memory: Memory) -> None:
    told = []

    async def tell(message: str) -> None:
        told.append(message)

    fake.script(Status(429, {"retry-after-ms": "1"}))
    llm = open_llm(settings_for(fake), memory, on_wait=tell)
    await llm.ask("name", QUESTION, Name)
    await llm.close()
    assert told[0].startswith("waiting for the LLM's rate limit")
    assert llm.usage("probe").retries == 1


def test_no_http_library_is_loaded_before_a_model_is_opened() -> None:
    script = (
        "import sys, app.pipelines.llm;"
        "sys.exit(sorted({'httpx2', 'openai', 'numpy'} & sys.modules.keys()) or 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
