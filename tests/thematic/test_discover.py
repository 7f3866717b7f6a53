import asyncio

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from app.pipelines.thematic import graph
from app.pipelines.thematic.discover import Discovered, discover, neighbours
from app.pipelines.thematic.embed import Embedded
from app.pipelines.thematic.parameters import Parameters


async def unheard(done: float, message: str) -> None:
    pass


def blobs(*sizes: int, spread: float = 0.05) -> Embedded:
    rng = np.random.default_rng(0)
    parts = []
    for at, size in enumerate(sizes):
        centre = np.zeros(16)
        centre[at] = 1.0
        parts.append(centre + spread * rng.standard_normal((size, 16)))
    vectors = np.concatenate(parts)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Embedded(backend="lsa", vectors=vectors.astype(np.float16), too_long=0, missing=[])


def found(
    embedded: Embedded, parameters: Parameters | None = None, people: list[int] | None = None
) -> Discovered:
    everyone = people or [1] * len(embedded.vectors)
    return asyncio.run(discover(embedded, everyone, parameters or Parameters(), unheard))


def test_clear_groups_become_themes_by_size() -> None:
    outcome = found(blobs(30, 60, 40), Parameters(max_themes=3))
    assert outcome.theme_of == [2] * 30 + [0] * 60 + [1] * 40
    assert min(outcome.cohesion) > 0.9
    assert min(outcome.separation) > 0.8
    assert outcome.stability is not None
    assert outcome.stability > 0.95


def test_subthemes_lie_within_their_theme() -> None:
    outcome = found(blobs(80, 80, 80, spread=0.3), Parameters(max_themes=3))
    for theme, subtheme in zip(outcome.theme_of, outcome.subtheme_of, strict=True):
        assert subtheme == -1 or outcome.parent_of[subtheme] == theme
    assert len(outcome.parent_of) > 3


def test_a_group_of_too_few_people_goes_to_other() -> None:
    outcome = found(blobs(30, 30, 4), Parameters(max_themes=3, min_theme_size=5))
    assert outcome.theme_of[-4:] == [-1] * 4
    assert outcome.score[-4:] == [0.0] * 4


def test_people_count_and_not_texts() -> None:
    people = [1] * 60 + [10] * 4
    outcome = found(blobs(30, 30, 4), Parameters(max_themes=3, min_theme_size=5), people)
    assert set(outcome.theme_of[-4:]) == {0}


@pytest.mark.parametrize("granularity", ["coarse", "medium", "fine"])
def test_max_themes_is_an_upper_bound(granularity: str) -> None:
    outcome = found(
        blobs(*[20] * 10, spread=0.2), Parameters(max_themes=4, granularity=granularity)
    )
    assert 2 <= len(outcome.cohesion) <= 4


def test_finer_granularity_gives_more_subthemes() -> None:
    embedded = blobs(80, 80, 80, spread=0.3)
    coarse = found(embedded, Parameters(granularity="coarse", max_themes=3))
    fine = found(embedded, Parameters(granularity="fine", max_themes=3))
    assert len(coarse.parent_of) < len(fine.parent_of)


@pytest.mark.parametrize("texts", [1, 2, 5])
def test_few_texts_are_one_theme(texts: int) -> None:
    outcome = found(blobs(texts))
    assert outcome.theme_of == [0] * texts
    assert outcome.separation == []
    assert outcome.stability is None


def test_texts_without_any_likeness_do_not_break_it() -> None:
    nothing = Embedded(
        backend="lsa", vectors=np.zeros((40, 8), dtype=np.float16), too_long=0, missing=[]
    )
    outcome = found(nothing)
    assert set(outcome.theme_of) <= {-1, 0, 1, 2, 3, 4, 5, 6, 7}


def test_the_seed_repeats_everything() -> None:
    embedded = blobs(50, 50, 50, spread=0.4)
    assert found(embedded, Parameters(seed=3)) == found(embedded, Parameters(seed=3))


def test_blocks_of_neighbours_give_the_graph_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = blobs(20, 20).vectors.astype(np.float32)

    def links() -> NDArray[np.float64]:
        parts = [graph.nearest(vectors, start, 5) for start in range(0, 40, graph.BLOCK)]
        whole: NDArray[np.float64] = graph.neighbour_graph(parts).toarray()
        return whole

    whole = links()
    monkeypatch.setattr(graph, "BLOCK", 7)
    assert np.allclose(links(), whole, atol=1e-6)
    assert np.array_equal(whole, whole.T)
    assert not whole.diagonal().any()
    assert ((whole > 0).sum(axis=1) >= 5).all()


def test_small_surveys_have_fewer_neighbours() -> None:
    assert [neighbours(size) for size in (2, 6, 20, 100, 225, 5000)] == [1, 3, 4, 10, 15, 15]


def test_ward_joins_the_nearest_and_minds_weights() -> None:
    centres = np.array([[0.0], [1.0], [10.0], [11.5]])
    assert graph.merge(centres, np.array([1.0, 1.0, 1.0, 1.0]), 2).tolist() == [0, 0, 1, 1]
    assert graph.merge(centres, np.array([9.0, 9.0, 1.0, 1.0]), 3).tolist() == [0, 1, 2, 2]
    assert graph.merge(centres, np.array([1.0, 1.0, 1.0, 1.0]), 4).tolist() == [0, 1, 2, 3]


def test_the_rand_index_is_the_known_one() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.integers(0, 5, 200), rng.integers(0, 4, 200)
    assert graph.adjusted_rand(first, second) == pytest.approx(adjusted_rand_score(first, second))
    assert graph.adjusted_rand(first, first) == 1.0
    alone = np.zeros(5, dtype=np.int64)
    assert graph.adjusted_rand(alone, alone) == 1.0
