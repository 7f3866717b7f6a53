"""The review of all themes: doubles are joined, mixtures divided, nonsense ignored and counted."""

from typing import Any

import numpy as np
import pytest
from thematic.coder import Coder, asker, good, lying

from app.pipelines.llm import LLMUnavailableError
from app.pipelines.thematic import discover
from app.pipelines.thematic.discover import Discovered
from app.pipelines.thematic.embed import Embedded
from app.pipelines.thematic.label import Labels
from app.pipelines.thematic.parameters import Parameters
from app.pipelines.thematic.prepare import Prepared
from app.pipelines.thematic.prompts import Survey
from app.pipelines.thematic.review import Reviewed, review

# Theme -> angles of its two sub-themes; the first two themes are near, the others are not.
ANGLES = ((0, 6), (25, 31), (120, 126), (240, 246))
EACH = 5


def material() -> tuple[Prepared, Embedded, Discovered, Labels]:
    vectors, coarse, fine = [], [], []
    for theme, pair in enumerate(ANGLES):
        for part, angle in enumerate(pair):
            for offset in range(EACH + (len(ANGLES) - theme)):
                turn = np.radians(angle + 0.1 * offset)
                vectors.append([np.cos(turn), np.sin(turn)])
                coarse.append(theme)
                fine.append(2 * theme + part)
    found = discover.settle(
        np.array(vectors, dtype=np.float32),
        np.array(coarse),
        np.array(fine),
        [1] * len(vectors),
        1,
    )
    texts = [f"thing{theme} part{part}" for theme, part in zip(coarse, fine, strict=True)]
    prepared = Prepared(
        texts=texts,
        text_of=list(range(len(texts))),
        wording_of=list(range(len(texts))),
        parts=[],
        personal=[],
        non_answers={},
        empty=0,
        split=0,
        masked_emails=0,
        masked_phones=0,
        masked_custom=0,
        rule="",
        nothing_answers=[False],
        language_of=["en"] * len(texts),
    )
    embedded = Embedded("lsa", np.array(vectors, dtype=np.float16), 0, [])
    labels = Labels(
        names=[f"Theme {letter}" for letter in "ABCD"],
        keywords=[[letter] for letter in "abcd"],
        subnames=[f"Part {letter}{part}" for letter in "ABCD" for part in (1, 2)],
        subkeywords=[[]] * 8,
        descriptions=["said so"] * 4,
        sources=["llm"] * 4,
        subdescriptions=[None] * 8,
        subsources=["llm"] * 8,
        model="coder",
    )
    return prepared, embedded, found, labels


async def reviewed(coder: Coder, **parameters: Any) -> Reviewed:
    prepared, embedded, found, labels = material()
    return await review(
        asker(coder),
        prepared=prepared,
        people=[1] * len(prepared.texts),
        embedded=embedded,
        found=found,
        labels=labels,
        survey=Survey(None, None),
        parameters=Parameters(**{"min_theme_size": 1, "max_themes": 6, **parameters}),
    )


def suggesting(**said: Any) -> Coder:
    return Coder(lying("review", lambda answer, _: {**answer, **said}))


async def test_nothing_changes_where_nothing_is_wrong() -> None:
    coder = Coder(good)
    outcome = await reviewed(coder)
    _, _, found, labels = material()
    assert (outcome.found, outcome.labels) == (found, labels)
    assert (outcome.applied, outcome.ignored) == (0, 0)
    assert coder.calls["review"] == 1


async def test_near_doubles_are_joined_under_the_larger_ones_name() -> None:
    outcome = await reviewed(suggesting(merge=[["T02", "T01"]]))
    assert outcome.labels.names == ["Theme A", "Theme C", "Theme D"]
    assert outcome.merged_from == [["Theme A", "Theme B"], [], []]
    assert outcome.found.theme_of.count(0) == 2 * (2 * EACH + 7)
    assert (outcome.applied, outcome.ignored) == (1, 0)
    assert sorted(outcome.labels.subnames[:4]) == ["Part A1", "Part A2", "Part B1", "Part B2"]
    assert outcome.found.parent_of[:4] == [0] * 4


@pytest.mark.parametrize(
    "said", [{"merge": [["T01", "T02"]]}, {"split": ["T03"]}, {"vague": ["T01"]}], ids=str
)
async def test_who_gave_the_names_is_known_whatever_the_review_changes(
    said: dict[str, Any],
) -> None:
    assert (await reviewed(suggesting(**said))).labels.model == "coder"


@pytest.mark.parametrize(
    "group",
    [["T01", "T03"], ["T01", "T02", "T03"], ["T01"], ["T01", "T01"], ["T01", "T77"], []],
    ids=str,
)
async def test_what_is_no_double_by_the_vectors_is_ignored_and_counted(group: list[str]) -> None:
    outcome = await reviewed(suggesting(merge=[group]))
    assert len(outcome.labels.names) == 4
    assert (outcome.applied, outcome.ignored) == (0, 1)


async def test_a_mixture_is_divided_into_the_subthemes_that_it_has() -> None:
    outcome = await reviewed(suggesting(split=["T03"]))
    assert set(outcome.labels.names) == {"Theme A", "Theme B", "Theme D", "Part C1", "Part C2"}
    assert sorted(outcome.found.theme_of) != sorted(material()[2].theme_of)
    assert len(outcome.labels.subnames) == 6
    assert -1 not in outcome.found.theme_of


async def test_no_division_goes_beyond_the_bound_of_themes() -> None:
    outcome = await reviewed(suggesting(split=["T03", "T04"]), max_themes=5)
    assert len(outcome.labels.names) == 5
    assert (outcome.applied, outcome.ignored) == (1, 1)


@pytest.mark.parametrize("theme", ["T09", "", "T03.1"])
async def test_an_unknown_theme_is_not_divided(theme: str) -> None:
    outcome = await reviewed(suggesting(split=[theme]))
    assert len(outcome.labels.names) == 4
    assert outcome.ignored == 1


async def test_a_theme_is_not_joined_and_divided_at_once() -> None:
    outcome = await reviewed(suggesting(merge=[["T01", "T02"]], split=["T01", "T01"]))
    assert len(outcome.labels.names) == 3
    assert outcome.ignored == 2


async def test_vague_names_are_flagged_and_unknown_ones_counted() -> None:
    outcome = await reviewed(suggesting(vague=["T04", "T50"], merge=[["T01", "T02"]]))
    assert [outcome.labels.names[theme] for theme in outcome.vague] == ["Theme D"]
    assert outcome.ignored == 1


async def test_the_order_shown_tells_nothing_and_is_the_same_every_time() -> None:
    orders = []
    for seed in (0, 0, 1):
        coder = Coder(good)
        await reviewed(coder, seed=seed)
        orders.append([theme["id"] for theme in coder.shown[0]["themes"]])
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])


async def test_an_answer_of_no_use_leaves_all_as_it_is() -> None:
    outcome = await reviewed(suggesting(merge="all of them"))
    assert outcome.rejected
    assert len(outcome.labels.names) == 4


async def test_a_lost_model_leaves_all_as_it_is() -> None:
    def gone(_: Any) -> Any:
        raise LLMUnavailableError("gone", 401, is_final=True)

    outcome = await reviewed(Coder(gone))
    assert outcome.lost is not None
    assert len(outcome.labels.names) == 4
