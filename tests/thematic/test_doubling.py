"""Double coding: no order of one person makes what two batches say that share nobody else."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given as generated
from hypothesis import strategies
from thematic.coder import SETTINGS, Coder, good, lying, stage
from thematic.test_assign import FULL, PLAIN, assigned, labelled
from thematic.test_controls import NAME, ORDER, but_mine
from thematic.test_name import Material
from thematic.test_stance import stances

from app.pipelines.llm import AnswerRejectedError, LLMUnavailableError
from app.pipelines.thematic.doubling import apart, doubled, fewest

ALL = replace(FULL, double_coding="all")
_OPPOSITE = {"positive": "negative", "negative": "positive"}

Change = Callable[[Any, dict[str, Any]], Any]


class Sly:
    """Obeys an order that moves a few answers beside it, and no sentence of the program's."""

    def __init__(self, change: Change, count: int, *, from_the_end: bool = False) -> None:
        self._change = change
        self._count = count
        self._from_the_end = from_the_end
        self.moved = 0

    def __call__(self, answer: Any, shown: dict[str, Any]) -> Any:
        texts = {key: str(item) for key, item in shown["answers"].items()}
        if not any(ORDER in text for text in texts.values()):
            return answer
        beside = [key for key, text in texts.items() if not _is_ours(text) and ORDER not in text]
        chosen = beside[-self._count :] if self._from_the_end else beside[: self._count]
        self.moved += len(chosen)
        return answer | {key: self._change(answer[key], shown) for key in chosen}


def _is_ours(text: str) -> bool:
    return any(form in text for form in ("This is about: ", "pleased with this: ", "displeased: "))


def far_theme(_item: Any, shown: dict[str, Any]) -> Any:
    return {"themes": [shown["themes"][-1]["name"]]}


def one_more_theme(item: Any, shown: dict[str, Any]) -> Any:
    return {"themes": list(dict.fromkeys([*item["themes"], shown["themes"][0]["name"]]))}


def no_answer(_item: Any, _shown: dict[str, Any]) -> Any:
    return {"themes": ["non-answer"]}


def turned(item: Any, _shown: dict[str, Any]) -> Any:
    return {"themes": [{**each, "stance": _OPPOSITE[each["stance"]]} for each in item["themes"]]}


CHANGES: dict[str, Change] = {
    "a far theme": far_theme,
    "one more theme": one_more_theme,
    "no answer": no_answer,
    "the other stance": turned,
}


@pytest.mark.parametrize("from_the_end", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_where_all_are_coded_twice_an_order_moves_no_neighbour_at_all(
    change: Change, count: int, *, from_the_end: bool
) -> None:
    given = await labelled((ORDER, *PLAIN))
    mine = given.prepared.texts.index(ORDER)
    sly = Sly(change, count, from_the_end=from_the_end)
    parameters = replace(ALL, stance=change is turned)

    outcome = await assigned(Coder(lying("assign", sly)), given, parameters)
    honest = await assigned(Coder(good), given, parameters)

    assert outcome.batch == 20
    assert sly.moved > 0
    assert but_mine(outcome.of, mine) == but_mine(honest.of, mine)
    assert outcome.fallen_back == 0
    assert outcome.doubled == honest.doubled == honest.doubled_same
    assert outcome.doubled_same < outcome.doubled


@pytest.mark.parametrize("change", [far_theme, no_answer], ids=["a far theme", "no answer"])
async def test_else_an_order_that_moves_answers_far_is_found_by_one_of_them(
    change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = await labelled((ORDER, *PLAIN))
    mine = given.prepared.texts.index(ORDER)
    honest = await assigned(Coder(good), given)
    # Fewer than are suspicious by their number.
    found, missed = Sly(change, 3), Sly(change, 3)

    outcome = await assigned(Coder(lying("assign", found)), given)
    monkeypatch.setattr("app.pipelines.thematic.doubts.SHARE", 0.0)
    without = await assigned(Coder(lying("assign", missed)), given)

    assert found.moved
    assert but_mine(outcome.of, mine) == but_mine(honest.of, mine)
    assert outcome.fallen_back == 0
    assert but_mine(without.of, mine) != but_mine(honest.of, mine)


async def _long() -> tuple[Material, set[int]]:
    """An answer that gives the order in each of its parts, more than one batch holds; and these."""
    long = " ".join(f"{ORDER}, Nummer {n}: " + "und das gilt sehr " * 20 + "." for n in range(36))
    given = await labelled((long, *PLAIN))
    parts = {text for text, said in enumerate(given.prepared.texts) if "und das gilt" in said}
    assert len(parts) > 18 * 3 / 2
    return given, parts


async def test_where_all_are_coded_twice_an_order_in_all_parts_of_an_answer_moves_none() -> None:
    given, mine = await _long()
    sly = Sly(one_more_theme, 20)

    outcome = await assigned(Coder(lying("assign", sly)), given, ALL)
    honest = await assigned(Coder(good), given, ALL)

    assert sly.moved > 0
    assert _but(mine, outcome.of) == _but(mine, honest.of)


async def test_where_all_are_coded_twice_it_turns_no_stance_either() -> None:
    given, mine = await _long()
    of = [
        replace(each, status="assigned", themes=[0, 1]) if text in mine else each
        for text, each in enumerate((await assigned(Coder(good), given, NAME)).of)
    ]
    sly = Sly(lambda item, _shown: _OPPOSITE[item], 20)

    told = await stances(Coder(lying("stance", sly)), given, of, "all")
    honest = await stances(Coder(good), given, of, "all")

    assert sly.moved > 0
    assert _but(mine, told.of) == _but(mine, honest.of)


def _but(mine: set[int], of: Sequence[Any]) -> list[Any]:
    return [each for text, each in enumerate(of) if text not in mine]


def _with_a_second(answer: Any, shown: dict[str, Any]) -> Any:
    names = [theme["name"] for theme in shown["themes"]]
    both = {name: [name, names[at - 1]] for at, name in enumerate(names)}
    return {
        key: {"themes": both.get(item["themes"][0], item["themes"])} for key, item in answer.items()
    }


async def test_where_all_are_coded_twice_an_order_makes_no_second_theme_the_first() -> None:
    given = await labelled((ORDER, *PLAIN))
    mine = given.prepared.texts.index(ORDER)
    sly = Sly(lambda item, _shown: {"themes": item["themes"][::-1]}, 5)

    outcome = await assigned(
        Coder(lying("assign", lambda answer, shown: sly(_with_a_second(answer, shown), shown))),
        given,
        ALL,
    )
    honest = await assigned(Coder(lying("assign", _with_a_second)), given, ALL)

    assert sly.moved > 0
    assert but_mine(outcome.of, mine) == but_mine(honest.of, mine)


async def test_what_is_coded_twice_does_not_depend_on_how_many_calls_are_under_way() -> None:
    given = await labelled((ORDER, *PLAIN))
    asked = []
    for concurrency in (1, 8):
        coder = Coder(lying("assign", Sly(far_theme, 3)))
        parameters = replace(ALL, llm=replace(SETTINGS, concurrency=concurrency))
        outcome = await assigned(coder, given, parameters)
        asked.append((sorted(map(str, coder.shown)), outcome))
    assert asked[0] == asked[1]


async def test_all_verdicts_twice_cost_about_twice_the_batches() -> None:
    given = await labelled()
    once, twice = Coder(good), Coder(good)
    outcome = await assigned(once, given)
    both = await assigned(twice, given, ALL)
    rest = len(given.prepared.texts) - 18
    # Three batches of at most 18: no two of one batch are together again.
    assert twice.calls["assign"] == once.calls["assign"] - 1 + 18
    assert both.of == outcome.of
    assert both.doubled == both.doubled_same == rest


@pytest.mark.parametrize("at", ["assign", "stance"])
async def test_progress_goes_on_while_all_are_coded_twice(at: str) -> None:
    given = await labelled()
    of = (await assigned(Coder(good), given, NAME)).of
    told: list[tuple[float, str]] = []

    async def report(done: float, message: str) -> None:
        told.append((done, message))

    if at == "assign":
        await assigned(Coder(good), given, ALL, report)
    else:
        await stances(Coder(good), given, of, "all", report)
    fractions = [done for done, _ in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    # The second time takes 18 calls; whoever watches for a stall hears of each.
    assert sum("again" in message for _, message in told) == 18


async def test_verdicts_that_no_second_batch_confirms_are_left_to_the_clusters() -> None:
    given = await labelled()
    texts = set(given.prepared.texts)
    seen: Counter[str] = Counter()

    def gone(request: Any) -> Any:
        if stage(request) == "assign" and coder.calls["assign"] > 18 + 2 + 1 + 3:
            raise LLMUnavailableError("gone", 401, is_final=True)
        return good(request)

    coder = Coder(gone)
    outcome = await assigned(coder, given, replace(ALL, llm=replace(SETTINGS, concurrency=1)))
    for shown in coder.shown:
        seen.update(texts & set(shown["answers"].values()))
    assert outcome.lost is not None
    assert outcome.doubled == 0
    assert outcome.fallen_back == len(texts) - 18
    assert [each.method for each in outcome.of].count("llm") == 18


@pytest.mark.parametrize("count", [1, 3])
async def test_where_all_are_coded_twice_no_stance_beside_an_order_is_turned(count: int) -> None:
    given = await labelled((ORDER, *PLAIN))
    mine = given.prepared.texts.index(ORDER)
    of = [
        # It belongs somewhere, or nobody asks how it stands to that.
        replace(each, status="assigned", themes=[0]) if text == mine else each
        for text, each in enumerate((await assigned(Coder(good), given, NAME)).of)
    ]
    sly = Sly(lambda item, _shown: _OPPOSITE[item], count)

    told = await stances(Coder(lying("stance", sly)), given, of, "all")
    honest = await stances(Coder(good), given, of, "all")

    assert sly.moved > 0
    assert but_mine(told.of, mine) == but_mine(honest.of, mine)
    assert told.unknown == 0


@generated(strategies.lists(strategies.integers(0, 20), max_size=12), strategies.integers(1, 25))
def test_groups_hold_every_item_once_and_no_two_of_one_batch(sizes: list[int], most: int) -> None:
    batches = [[(batch, at) for at in range(size)] for batch, size in enumerate(sizes)]
    items = [item for batch in batches for item in batch]
    groups = apart(batches, items, most, author=lambda item: item)
    assert sorted(item for group in groups for item in group) == items
    for group in groups:
        assert 0 < len(group) <= most
        assert len({batch for batch, _ in group}) == len(group)
    # No fewer calls can do.
    assert len(groups) == fewest(len(items), max(sizes, default=0), most)


@generated(
    strategies.lists(strategies.lists(strategies.integers(0, 9), max_size=6), max_size=8),
    strategies.integers(1, 25),
    strategies.randoms(use_true_random=False),
)
def test_nobody_meets_in_a_group_whom_a_batch_has_brought_together_before(
    said_by: list[list[int]], most: int, chance: Random
) -> None:
    # Items are (author, number); an author may have several, in one batch or in different ones.
    numbers = Counter[int]()
    batches: list[list[tuple[int, int]]] = []
    for people in said_by:
        batches.append([])
        for author in people:
            numbers[author] += 1
            batches[-1].append((author, numbers[author]))
    chosen = [item for batch in batches for item in batch if chance.random() < 0.7]
    groups = apart(batches, chosen, most, author=lambda item: item[0])
    assert sorted(item for group in groups for item in group) == sorted(chosen)
    for group in groups:
        assert 0 < len(group) <= most
        for item in group:
            before = next(batch for batch in batches if item in batch)
            met = {author for author, _ in before} - {item[0]}
            assert met.isdisjoint(author for author, _ in group)


def test_a_group_keeps_apart_also_from_what_is_not_asked_again() -> None:
    # Author 2 stands in both batches; what he said in the second one is not asked again.
    batches = [[(1, 0), (2, 0)], [(2, 1), (3, 0)]]
    groups = apart(batches, [(2, 0), (3, 0)], 20, author=lambda item: item[0])
    assert groups == [[(2, 0)], [(3, 0)]]


def test_an_answer_that_stands_in_two_batches_meets_neither_again() -> None:
    # Pairs of an answer and a theme: answer 2 stands in both batches.
    batches = [[(1, 0), (2, 0)], [(2, 1), (3, 0)]]
    pairs = [pair for batch in batches for pair in batch]
    groups = apart(batches, pairs, 20, author=lambda pair: pair[0])
    assert sorted(sorted(group) for group in groups) == [[(1, 0), (3, 0)], [(2, 0)], [(2, 1)]]


async def _twice(
    told: dict[int, str], ask: Callable[[Sequence[int]], Any]
) -> tuple[list[int], dict[int, str], list[int]]:
    async def asked(items: Sequence[int]) -> list[str]:
        return [str(verdict) for verdict in ask(items)]

    items = list(told)
    outcome = await doubled([items[:2], items[2:]], items, 20, told, asked, lambda item: item)
    return sorted(outcome.same), outcome.alone, sorted(outcome.open)


async def test_what_two_batches_say_alike_holds_and_else_what_is_said_of_it_alone() -> None:
    def ask(items: Sequence[int]) -> list[str]:
        return ["alone" if len(items) == 1 else "a" for _ in items]

    assert await _twice({1: "a", 2: "b", 3: "a", 4: "c"}, ask) == (
        [1, 3],
        {2: "alone", 4: "alone"},
        [],
    )


async def test_items_that_cannot_be_judged_again_are_open() -> None:
    def ask(items: Sequence[int]) -> list[str]:
        if 2 in items:
            raise AnswerRejectedError(["no"])
        if items == [4]:
            raise LLMUnavailableError("gone")
        return ["a" for _ in items]

    assert await _twice({1: "a", 2: "b", 3: "a", 4: "c"}, ask) == ([1, 3], {}, [2, 4])
