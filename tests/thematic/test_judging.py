"""Metrics: of the themes that a result shows, and of all answers that they are a share of."""

from types import SimpleNamespace
from typing import Any

import pytest
from thematic.coder import SETTINGS

from app.pipelines.thematic import judging
from app.pipelines.thematic.assigned import Assigned, Assignments
from app.pipelines.thematic.counting import Tables
from app.pipelines.thematic.label import Labels


def tables(of_row: list[Assigned | None], responses: list[int]) -> Tables:
    statuses = [each.status for each in of_row if each is not None]
    return Tables(
        of_row=of_row,
        home=list(range(len(of_row))),
        analysed=len(statuses),
        responses=responses,
        others=statuses.count("other"),
        failed=statuses.count("failed"),
    )


def made(theme_of: list[int], names: list[str], **changes: Any) -> Any:
    labels = Labels(
        names=names,
        keywords=changes.get("keywords", [[name] for name in names]),
        subnames=changes.get("subnames", []),
        subkeywords=[],
        descriptions=[None] * len(names),
        sources=changes.get("sources", ["llm"] * len(names)),
        subdescriptions=[],
        subsources=changes.get("subsources", []),
        model="coder",
    )
    found = SimpleNamespace(
        theme_of=theme_of,
        parent_of=changes.get("parent_of", []),
        stability=None,
        redundancy=None,
        separation=[],
    )
    return SimpleNamespace(
        found=found,
        labels=labels,
        reviewed=SimpleNamespace(vague=[]),
        prepared=SimpleNamespace(texts=changes.get("texts", [])),
        assignments=changes.get("assignments", Assignments([])),
        costs={},
        lost=None,
    )


def llm(*themes: int, status: str = "assigned") -> Assigned:
    return Assigned(status if not themes else "assigned", list(themes), None, "llm")


def test_an_answer_that_the_model_finds_no_theme_for_is_no_agreement() -> None:
    rows: list[Assigned | None] = [llm(0), *[llm(status="other")] * 99]
    told = made([0] * 100, ["Parking"])
    assert judging.agreement(told, tables(rows, [1])) == 0.01


def test_agreement_is_of_clustered_answers_that_were_judged() -> None:
    rows = [
        llm(0),
        llm(1, 0),
        llm(status="non_answer"),
        llm(status="failed"),
        llm(1),  # in no cluster
        Assigned("assigned", [0], 0.5, "cluster"),
        None,
    ]
    told = made([0, 0, 0, 0, -1, 0, -1], ["Parking", "Food"])
    assert judging.agreement(told, tables(rows, [3, 2])) == pytest.approx(1 / 3, abs=1e-4)
    assert judging.agreement(told, tables([None], [0, 0])) is None


def test_metrics_are_of_the_themes_that_are_shown() -> None:
    counted = tables([llm(0), llm(1)], [1, 1, 0])
    told = made([0, 1], ["Parking", "Food", "General comments"], keywords=[["a"], ["b"], ["a"]])
    shown = judging.metrics(told, counted, counted.shown(with_empty=False))
    assert (shown.size_entropy, shown.diversity, shown.name_specificity) == (1.0, 1.0, 1.0)
    with_codes = judging.metrics(told, counted, counted.shown(with_empty=True))
    assert with_codes.size_entropy == pytest.approx(0.6309, abs=1e-4)
    assert with_codes.name_specificity == pytest.approx(0.6667, abs=1e-4)


def test_without_a_theme_there_is_nothing_to_judge() -> None:
    counted = tables([llm(status="other")], [])
    told = judging.metrics(made([-1], []), counted, [])
    assert (told.name_specificity, told.diversity, told.size_entropy) == (None, None, None)


@pytest.mark.parametrize(
    ("shown", "method", "reasons"),
    [
        ([0], "llm", []),
        (
            [0, 1],
            "mixed",
            [
                "the LLM had no usable name for 1 theme",
                "the LLM had no usable name for 1 sub-theme",
            ],
        ),
        (
            [1],
            "keywords",
            [
                "the LLM had no usable name for 1 theme",
                "the LLM had no usable name for 1 sub-theme",
            ],
        ),
    ],
)
def test_names_of_hidden_themes_are_not_told_of(
    shown: list[int], method: str, reasons: list[str]
) -> None:
    told = made(
        [0],
        ["Parking", "Food"],
        sources=["llm", "keywords"],
        subsources=["llm", "keywords"],
        parent_of=[0, 1],
    )
    parameters = SimpleNamespace(mode="full", llm=SETTINGS, codebook=())
    labelling = judging.labelled(SimpleNamespace(parameters=parameters), told, shown)  # type: ignore[arg-type]
    assert (labelling.method, labelling.reasons) == (method, reasons)


def test_without_a_theme_nobody_has_named_one() -> None:
    parameters = SimpleNamespace(mode="full", llm=SETTINGS, codebook=())
    request: Any = SimpleNamespace(parameters=parameters)
    assert judging.labelled(request, made([-1], []), []).method == "keywords"


def test_the_words_of_one_keyword_do_not_make_a_theme_coherent() -> None:
    texts = ["friendly staff", "friendly staff", "parking", "food"]
    alone = made([0], ["x"], keywords=[["friendly staff"]], texts=texts)
    assert judging.metrics(alone, tables([llm(0)], [1]), [0]).coherence_npmi is None
    beside = made([0], ["x"], keywords=[["friendly staff", "parking"]], texts=texts)
    assert judging.metrics(beside, tables([llm(0)], [1]), [0]).coherence_npmi == -1.0
    both = made([0], ["x"], keywords=[["friendly", "staff"]], texts=texts)
    assert judging.metrics(both, tables([llm(0)], [1]), [0]).coherence_npmi == 1.0
