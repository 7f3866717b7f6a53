"""Insights: computed tables in sentences, and no sentence of a model that says more than that."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from thematic.coder import Coder, asker, good, lying

from app.pipelines.llm import LLMUnavailableError
from app.pipelines.thematic.assigned import Assigned
from app.pipelines.thematic.counting import Tables, theme_id
from app.pipelines.thematic.figures import wrong_figures
from app.pipelines.thematic.insights import Insights, Sentence, insights, sizes
from app.pipelines.thematic.label import Labels
from app.pipelines.thematic.load import Answers
from app.pipelines.thematic.prompts import Survey
from app.pipelines.thematic.quotes import Quotes, Slice
from app.pipelines.thematic.wording import word
from app.results.facts import Recount
from app.results.groups import group_sizes
from app.results.themes import Assignment, GroupCount, Insight, Theme, ThemesResult
from app.results.verifying import unexplained_figures

NAMES = ["Parking fees", "Friendly staff", "Cold food", "Long waits"]
LABELS = Labels(
    names=NAMES,
    keywords=[[]] * 4,
    subnames=[],
    subkeywords=[],
    descriptions=[None] * 4,
    sources=["llm"] * 4,
    subdescriptions=[],
    subsources=[],
)
# Rows: themes, ward, stance; parking and waits come together, the north speaks of food.
ROWS = [
    *[([0, 3], "south", ["negative", "negative"])] * 40,
    *[([1], "south", ["positive"])] * 60,
    *[([2], "north", ["negative"])] * 50,
    *[([1], "north", ["positive"])] * 20,
    *[([0], "south", ["mixed"])] * 10,
]


def counted(*, with_stance: bool = False) -> Tables:
    of_row: list[Assigned | None] = [
        Assigned("assigned", themes, 0.5, "llm", None, stance if with_stance else [])
        for themes, _, stance in ROWS
    ]
    of_row += [Assigned("other", [], None, "llm")] * 5
    of_row += [Assigned("failed", [], None, "llm", "no answer")] * 3
    of_row += [Assigned("non_answer", [], None, "llm")] * 4 + [None] * 6
    listed = [sum(theme in themes for themes, _, _ in ROWS) for theme in range(4)]
    return Tables(of_row, list(range(len(of_row))), len(ROWS) + 8, listed, 5, 3)


def given() -> tuple[Answers, Quotes]:
    wards = [ward for _, ward, _ in ROWS] + ["south"] * 18
    ids = [f"r{number}" for number in range(len(wards))]
    answers = Answers(
        ids=ids,
        texts=["x"] * len(ids),
        groups={"ward": wards},
        columns=["text"],
        questions=[None],
        column_of=[0] * len(ids),
        source={},
    )
    quoted = [[Slice(response_id=f"r{at}", text="x", start=0, end=1)] for at in (0, 45, 110, 1)]
    return answers, Quotes(themes=quoted, subthemes=[], other=[], suggested=[])


def by_template(*, with_stance: bool = False) -> Insights:
    answers, chosen = given()
    return insights(answers, counted(with_stance=with_stance), LABELS, chosen)


def test_the_templates_tell_sizes_groups_pairs_and_what_is_left() -> None:
    texts = [sentence["text"] for sentence in by_template().insights]
    assert texts[0] == "The largest theme is “Friendly staff”: 80 of 188 answers (43 %)."
    assert any("3 largest of 4 themes" in text for text in texts)
    assert any("“Cold food” comes up more often where “ward” is “north”" in text for text in texts)
    assert any(
        text.startswith("“Parking fees” and “Long waits” come up together in 40 answers: 80 %")
        for text in texts
    )
    assert "16 of 204 rows" not in str(texts)
    assert any("10 of 198 rows (5 %) say nothing" in text for text in texts)
    assert any("5 of 188 answers (3 %) belong to no theme" in text for text in texts)
    assert any("3 of 188 answers (2 %) could not be judged" in text for text in texts)


def test_an_answer_with_two_themes_is_counted_once_in_the_largest() -> None:
    numbers = by_template().insights[1]["numbers"]
    assert numbers["responses"] == sum(not {0, 1, 2}.isdisjoint(row[0]) for row in ROWS)


def test_stances_are_told_by_their_shares() -> None:
    texts = [sentence["text"] for sentence in by_template(with_stance=True).insights]
    among = "Of themes with at least 30 judged answers, answers are most often"
    assert f"{among} positive on “Friendly staff”: 80 of 80 (100 %)." in texts
    assert f"{among} negative on “Cold food”: 50 of 50 (100 %)." in texts
    assert not any("most often" in sentence["text"] for sentence in by_template().insights)


async def worded(coder: Coder) -> Insights:
    template = by_template()
    answers, chosen = given()
    more = sizes(answers, counted(), LABELS, chosen)
    return await word(asker(coder), template, more, Survey(None, None))


def said(text: str, *facts: str) -> Coder:
    sentences = [{"text": text, "facts": list(facts or ("F1",))}]
    return Coder(lying("insights", lambda _answer, _shown: {"sentences": sentences}))


async def test_sentences_that_hold_come_first_and_templates_fill_the_rest() -> None:
    coder = Coder(good)
    outcome = await worded(coder)
    sources = [sentence["source"] for sentence in outcome.insights]
    assert sources == sorted(sources)
    assert sources.count("llm") == 3
    assert len(outcome.insights) == len(by_template().insights)
    assert outcome.insights[0]["text"].startswith(
        "More answers than on any other theme are on “Friendly"
    )
    assert outcome.insights[0]["theme_ids"] == ["T02"]
    assert outcome.insights[0]["evidence"] == ["r45"]
    assert coder.calls["insights"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "Of 188 answers 43 % speak of “Friendly staff”.",
        "“Friendly staff” was named by 80 people, which is 42.6 per cent of them.",
        "“Friendly staff” is what people speak of more than of anything else.",
        '"Friendly staff" comes up in 80 answers.',
        "The largest theme is “Friendly staff” (80 answers, 43 %).",
        "The most common theme is “Friendly staff”, mentioned in 43 % of answers (80 of 188).",
        "“Friendly staff” is the largest theme, accounting for 80 of 188 answers (43 %).",
        "A total of 80 respondents (43 %) mentioned “Friendly staff”.",
    ],
)
async def test_what_the_facts_say_may_be_said_in_other_words(text: str) -> None:
    outcome = await worded(said(text))
    assert outcome.dropped == 0
    assert outcome.insights[0]["source"] == "llm"
    assert "80 of 188 answers" not in outcome.insights[1]["text"]


LIES = {
    "another count": "“Friendly staff” comes up in 81 answers.",
    "another share": "“Friendly staff” comes up in 44 % of the answers.",
    "a count as a share": "“Friendly staff” comes up in 80 % of the answers.",
    "a share as a count": "“Friendly staff” comes up in 43 answers.",
    "a number of another fact": "“Friendly staff” comes up in 50 answers.",
    "a number in words": "“Friendly staff” comes up in eighty answers.",
    "half": "Nearly half of the answers speak of “Friendly staff”.",
    "a majority": "The majority speaks of “Friendly staff”.",
    "nearly all": "Most answers, indeed nearly every one, complain about “Friendly staff”.",
    "zero": "Zero answers speak of “Friendly staff”, 80 do.",
    "a sixth": "A sixth of the answers speak of “Friendly staff”.",
    "an eighth": "An eighth of the answers speak of “Friendly staff”.",
    "one of all": "Exactly one answer in 188 speaks of “Friendly staff”.",
    "several dozen": "Several dozen answers speak of “Friendly staff”.",
    "no other": "No answer but 80 speaks of “Friendly staff”.",
    "a denial": "Of 188 answers 43 % do not speak of “Friendly staff”.",
    "more than that": "More than 80 answers speak of “Friendly staff”.",
    "thousands": "“Friendly staff” was raised by 80k people.",
    "billions": "“Friendly staff” was raised by 80 billion people.",
    "a decimal comma": "“Friendly staff” was raised by 8,0 people.",
    "a minus": "“Friendly staff” stands at -43 % in this survey.",
    "a minus apart": "“Friendly staff” stands at \u2212 43 % in this survey.",
    "a change": "“Friendly staff” has risen to 43 % in this survey.",
    "points": "“Friendly staff” is 43 % points ahead of the others.",
    "a unit": "“Friendly staff” takes 80 minutes of each visit.",
    "times": "“Friendly staff” was raised 188 times, 80 in sum.",
    "the whole as a part": "“Friendly staff” comes up in 188 answers.",
    "a share of a part": "“Friendly staff” comes up in 43 % of 80 answers.",
    "part and whole in exchange": "“Friendly staff” comes up in 188 of 80 answers.",
    "a fraction sign": "About ½ of the answers speak of “Friendly staff”.",
    "other digits": "“Friendly staff” comes up in ٨٠ answers.",
    "a name that is none": "“Rude staff” comes up in 80 answers.",
    "a figure in quotation marks": "“Friendly staff” has “99 %” of all answers, 80.",
    "a theme of another fact": "“Cold food” comes up in 80 answers.",
    "no theme": "Something comes up in 80 of 188 answers.",
    "an id": "“Friendly staff” comes up in 80 answers, says F1.",
    "markup": "“Friendly staff” <b>comes up</b> in 80 answers.",
    "an address": "“Friendly staff” has 80 answers, see https://example.org",
    "an open quotation mark": "“Friendly staff” comes up “ in 80 answers.",
    "rare": "“Friendly staff” is rare and hardly mentioned in this survey.",
    "frequent": "“Friendly staff” is widespread among people and comes up frequently.",
    "praise": "“Friendly staff” was praised in 80 of 188 answers (43 %).",
    "complaint": "People complain about “Friendly staff” in 80 of 188 answers (43 %).",
    "a reason": "“Friendly staff” comes up in 80 answers since people were bribed.",
    "a wish": "“Friendly staff” should come up in 80 answers.",
    "roman numerals": "“Friendly staff” comes up in LXXX of the answers.",
    "German words": "“Friendly staff” kommt in achtzig Antworten vor.",
    "German majority": "Die meisten Befragten sprechen von “Friendly staff”.",
    "French majority": "La plupart des gens parlent de “Friendly staff”.",
    "Spanish half": "La mitad de las respuestas mencionan “Friendly staff”.",
    "Italian number": "“Friendly staff” compare in ottanta risposte.",
    "Dutch few": "Weinig mensen noemen “Friendly staff” in hun antwoorden.",
    "signs of comparison": "“Friendly staff” ≫ 80 answers.",
    "a question": "Has “Friendly staff” come up in 80 answers?",
    "another largest": "“Friendly staff” is the smallest theme: 80 of 188 answers (43 %).",
    "too short": "“Friendly staff”",
    "too long": "“Friendly staff” is liked. " * 20,
}


@pytest.mark.parametrize("text", LIES.values(), ids=LIES.keys())
async def test_a_sentence_that_says_more_is_dropped_for_the_template(text: str) -> None:
    outcome = await worded(said(text))
    assert outcome.insights == by_template().insights
    assert outcome.dropped == 1


async def test_figures_on_several_themes_stand_in_brackets_behind_their_names() -> None:
    facts = ("F1", sizes_of("Cold food"))
    outcome = await worded(
        said(
            "People speak of “Friendly staff” (80 of 188, 43 %) and mention “Cold food” (50).",
            *facts,
        )
    )
    assert outcome.insights[0]["source"] == "llm"


@pytest.mark.parametrize(
    "text",
    [
        "People praise “Friendly staff” (50 of 188) and dislike “Cold food” (80 of 188).",
        "People praise “Friendly staff”, and 80 of 188 dislike “Cold food”.",
        "“Friendly staff” has 80 and “Cold food” 50 of 188 answers.",
        "“Friendly staff” (43 %) is the largest theme, “Cold food” (27 %) comes next.",
    ],
)
async def test_figures_of_one_theme_are_not_given_to_another(text: str) -> None:
    outcome = await worded(said(text, "F1", sizes_of("Cold food")))
    assert outcome.insights == by_template().insights


def sizes_of(name: str) -> str:
    answers, chosen = given()
    facts = [*by_template().insights, *sizes(answers, counted(), LABELS, chosen)]
    at = next(at for at, fact in enumerate(facts) if fact["text"].startswith(f"Theme “{name}”"))
    return f"F{at + 1}"


def fact_with(number: str, *, with_stance: bool = False) -> str:
    facts = by_template(with_stance=with_stance).insights
    return f"F{next(at for at, fact in enumerate(facts, 1) if number in fact['numbers'])}"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("largest", "“Friendly staff” holds 96 % of the answers."),
        ("largest", "“Friendly staff” is ahead of “Parking fees” and “Cold food” in 3 answers."),
        ("together", "“Long waits” and “Parking fees” come up in 40 answers."),
        ("together", "100 % of those on “Parking fees” speak of “Long waits” together with it."),
        ("size_elsewhere", "“Cold food” comes up at 0 % where “ward” is “north”."),
        ("non_answers", "Of 198 rows 10 (5 %) are full of praise."),
        ("non_answers", "Of 198 rows 10 (5 %) are comments on the survey."),
        ("other", "Of 188 answers 5 (3 %) are full of praise."),
        ("failed", "Of 188 answers 3 (2 %) are full of praise."),
    ],
)
async def test_a_figure_keeps_its_meaning(number: str, text: str) -> None:
    outcome = await worded(said(text, fact_with(number)))
    assert outcome.insights == by_template().insights


async def test_every_template_can_be_said_again() -> None:
    for fact in by_template().insights:
        identity = f"F{by_template().insights.index(fact) + 1}"
        outcome = await worded(said(fact["text"], identity))
        assert outcome.dropped == 0, fact["text"]


@pytest.mark.parametrize(
    "text",
    [
        "“Cold food” (50) comes up more often than “Friendly staff” (80).",
        "“Cold food” is a larger theme than “Friendly staff” in this survey.",
        "The largest theme is “Cold food” and “Friendly staff” comes up as well.",
        "“Cold food” comes up less often in answers on “Friendly staff”.",
        "“Cold food” is mentioned by people with “Friendly staff”.",
        "“Cold food” (50) ahead of “Friendly staff” (80), say people.",
    ],
)
async def test_themes_are_not_compared_but_by_a_fact(text: str) -> None:
    outcome = await worded(said(text, "F1", sizes_of("Cold food")))
    assert outcome.insights == by_template().insights


NORTH = "where “ward” is “north”: 71 % (50 of 70) against 0 % (0 of 118) elsewhere"


@pytest.mark.parametrize(
    "text",
    [
        f"“Cold food” comes up less often {NORTH}.",
        f"“Cold food” comes up more often elsewhere, {NORTH}.",
        "“Cold food” comes up more often where “ward” is “north” than elsewhere.",
        "“Cold food” comes up more often elsewhere and where “ward” is “north”.",
        "“Cold food” comes up elsewhere: 71 % (50 of 70) against 0 % (0 of 118) in “ward” “north”.",
        "“Cold food” comes up more often where “ward” is “north”: 0 % (0 of 118) of all.",
        "“Cold food” comes up in “north”, the answers of the “ward”.",
        "In “ward” “north” people speak of “Cold food”.",
        "“Cold food” comes up more often where “ward” is “north”: “north” speaks of “Cold food”.",
    ],
)
async def test_a_difference_has_its_direction_from_the_template(text: str) -> None:
    outcome = await worded(said(text, fact_with("size_elsewhere")))
    assert outcome.insights == by_template().insights


@pytest.mark.parametrize(
    "text",
    [
        f"In this survey “Cold food” comes up more often {NORTH}.",
        "“Cold food” comes up more often where “ward” is “north”, answers show.",
    ],
)
async def test_a_difference_may_be_told_in_its_own_words(text: str) -> None:
    outcome = await worded(said(text, fact_with("size_elsewhere")))
    assert [each["source"] for each in outcome.insights].count("llm") == 1


async def test_the_claim_of_one_fact_is_not_made_of_another_theme() -> None:
    text = "“Friendly staff” comes up more often where “ward” is “north”."
    outcome = await worded(said(text, "F1", fact_with("size_elsewhere")))
    assert outcome.insights == by_template().insights


STANCE_LIES = [
    "Answers are most often negative on “Cold food”: 50 of 50 (100 %).",
    "Of themes with at least 30 judged answers, answers are most often positive on “Cold food”.",
    "Of themes with at least 50 judged answers, answers are most often negative on “Cold food”.",
    "“Cold food” is negative: 50 of 50 answers (100 %).",
    "“Cold food” comes up in 50 of 50 answers (100 %).",
]
STANCE_TRUTH = "Of themes with at least 30 judged answers, answers are most often negative on"


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        *((text, False) for text in STANCE_LIES),
        (f"{STANCE_TRUTH} “Cold food”: 50 of 50 answers, 100 %.", True),
        (f"{STANCE_TRUTH} “Cold food”: 49 of 50.", False),
    ],
)
async def test_a_stance_is_told_among_the_themes_that_were_compared(
    text: str, *, holds: bool
) -> None:
    template = by_template(with_stance=True)
    fact = fact_with("negative", with_stance=True)
    outcome = await word(asker(said(text, fact)), template, [], Survey(None, None))
    assert (outcome.insights == template.insights) != holds


@pytest.mark.parametrize("text", ["0 % of 1,000 answers", "0 %", "0.5 %"])
def test_a_small_share_is_not_nothing(text: str) -> None:
    fact = Sentence(
        text="Theme “Taxis”: 4 of 1,000 answers (0.4 %).",
        source="template",
        theme_ids=["T01"],
        evidence=[],
        numbers={"responses": 4, "analysed": 1000, "share": 0.004},
    )
    assert list(wrong_figures(f"“Taxis” {text}", [fact]))
    assert not list(wrong_figures("“Taxis” come up in 0.4 % of 1,000 answers.", [fact]))


@pytest.mark.parametrize("facts", [["F99"], ["F1", "F2", "F3", "F4"], ["f1"]], ids=str)
async def test_a_sentence_rests_on_known_facts(facts: list[str]) -> None:
    outcome = await worded(said("“Friendly staff” comes up in 80 answers.", *facts))
    assert outcome.insights == by_template().insights


async def test_a_sentence_without_facts_is_dropped() -> None:
    sentences = [{"text": "“Friendly staff” comes up in 80 answers.", "facts": []}]
    coder = Coder(lying("insights", lambda _answer, _shown: {"sentences": sentences}))
    assert (await worded(coder)).insights == by_template().insights


async def test_what_holds_is_kept_beside_what_does_not() -> None:
    def half(answer: Any, _: dict[str, Any]) -> Any:
        lie = {"text": "“Friendly staff” has 999 answers by now.", "facts": ["F1"]}
        again = answer["sentences"][0]
        return {"sentences": [lie, *answer["sentences"], again]}

    outcome = await worded(Coder(lying("insights", half)))
    assert [sentence["source"] for sentence in outcome.insights].count("llm") == 3
    assert outcome.dropped == 2


async def test_all_figures_of_a_model_are_computed_ones() -> None:
    outcome = await worded(Coder(good))
    for sentence in outcome.insights:
        assert unexplained_figures(sentence["text"], sentence["numbers"]) == []


async def test_the_model_sees_tables_and_no_answers() -> None:
    coder = Coder(good)
    await worded(coder)
    shown = str(coder.shown)
    assert "r45" not in shown
    assert re.search(r"'z'", shown) is None
    assert "43 %" in shown


@pytest.mark.parametrize("answer", ["not JSON", "{}", '{"sentences": [7]}'])
async def test_an_answer_of_no_use_leaves_the_templates(answer: str) -> None:
    useless: Callable[[Any], Any] = lambda request: (  # noqa: E731
        answer if "facts" in str(request) else good(request)
    )
    outcome = await worded(Coder(useless))
    assert outcome.insights == by_template().insights


@pytest.mark.parametrize("is_final", [True, False])
async def test_what_held_in_a_first_answer_is_kept_where_the_repair_fails(
    *, is_final: bool
) -> None:
    def failing(request: Any) -> Any:
        if coder.calls["insights"] > 1:
            raise LLMUnavailableError("gone", 500, is_final=is_final)
        lie = {"text": "“Friendly staff” has 999 answers by now.", "facts": ["F1"]}
        answer = good(request)
        return {"sentences": [lie, *answer["sentences"]]} if "sentences" in answer else answer

    coder = Coder(failing)
    outcome = await worded(coder)
    assert [sentence["source"] for sentence in outcome.insights].count("llm") == 3
    assert (outcome.lost is not None) == is_final


async def test_a_single_failed_call_does_not_give_the_model_up() -> None:
    def failing(request: Any) -> Any:
        if coder.calls["insights"]:
            raise LLMUnavailableError("no answer within 120 s")
        return good(request)

    coder = Coder(failing)
    outcome = await worded(coder)
    assert outcome.lost is None
    assert outcome.insights == by_template().insights


async def test_a_repair_that_is_worse_loses_nothing() -> None:
    def worse(answer: Any, _: dict[str, Any]) -> Any:
        lie = {"text": "“Friendly staff” has 999 answers by now.", "facts": ["F1"]}
        again = coder.calls["insights"] > 1
        return {"sentences": [lie] if again else [lie, *answer["sentences"]]}

    coder = Coder(lying("insights", worse))
    outcome = await worded(coder)
    assert [sentence["source"] for sentence in outcome.insights].count("llm") == 3


async def test_a_lost_model_leaves_the_templates() -> None:
    def gone(_: Any) -> Any:
        raise LLMUnavailableError("gone", 401, is_final=True)

    outcome = await worded(Coder(gone))
    assert outcome.lost is not None
    assert outcome.insights == by_template().insights


# -- counted again ----------------------------------------------------------------------------


def recount() -> Recount:
    """Of a result with these rows; what it does not look at is left out."""
    answers, _ = given()
    assignments = [
        Assignment.model_construct(
            response_id=response_id,
            status=each.status if each else "non_answer",
            theme_ids=[theme_id(theme) for theme in each.themes] if each else [],
            stance=dict(zip(map(theme_id, each.themes), each.stance, strict=True))
            if each and each.stance
            else None,
        )
        for response_id, each in zip(answers.ids, counted(with_stance=True).of_row, strict=True)
    ]
    wards = answers.groups["ward"]
    themes = [
        Theme.model_construct(
            id=theme_id(theme),
            name=name,
            parent=None,
            responses=sum(theme in row[0] for row in ROWS),
            by_group={
                "ward": {
                    ward: GroupCount(
                        responses=sum(theme in row[0] and row[1] == ward for row in ROWS), share=0
                    )
                    for ward in ("north", "south")
                }
            },
        )
        for theme, name in enumerate(NAMES)
    ]
    result = ThemesResult.model_construct(assignments=assignments, themes=themes)
    sizes = group_sizes(result, {"ward": dict(zip(answers.ids, wards, strict=True))})
    return Recount(result, sizes)


def as_insight(sentence: Sentence, **changes: Any) -> Insight:
    return Insight(**{**sentence, "evidence": [], "numbers_checked": True, **changes})


async def test_all_numbers_are_found_again() -> None:
    counts = recount()
    answers, chosen = given()
    sentences = [
        *by_template(with_stance=True).insights,
        *sizes(answers, counted(), LABELS, chosen),
        *(await worded(Coder(good))).insights,
    ]
    for sentence in sentences:
        assert list(counts.problems(as_insight(sentence))) == []


TOLD = by_template(with_stance=True).insights


@pytest.mark.parametrize("source", ["template", "llm"])
@pytest.mark.parametrize(
    ("sentence", "name"),
    [(sentence, name) for sentence in TOLD for name in sentence["numbers"]],
    ids=[f"{at} {name}" for at, sentence in enumerate(TOLD) for name in sentence["numbers"]],
)
def test_every_number_that_was_altered_is_found_out(
    sentence: Sentence, name: str, source: str
) -> None:
    numbers = dict(sentence["numbers"])
    numbers[name] += 1 if isinstance(numbers[name], int) else 0.01
    if source == "llm":
        numbers = {f"F3.{name}": value for name, value in numbers.items()}
    [problem] = recount().problems(as_insight(sentence, source=source, numbers=numbers))
    assert "numbers that are not so" in problem


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"theme_ids": ["T04"]}, "quotes “Cold food”"),
        ({"theme_ids": ["T04"], "text": "The north complains."}, "not so: responses 50"),
        ({"text": "“Cold food” comes up in the “south”."}, "not so: responses 50"),
        ({"text": "“Cold food” comes up in the “west”."}, "quotes “west”"),
    ],
)
def test_numbers_of_another_theme_or_group_are_found_out(
    changes: dict[str, Any], said: str
) -> None:
    difference = next(it for it in TOLD if "group_size" in it["numbers"])
    problems = recount().problems(as_insight(difference, **changes))
    assert any(said in problem for problem in problems)
