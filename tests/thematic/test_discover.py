import asyncio
import itertools
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.metrics import adjusted_rand_score
from sknetwork.clustering import get_modularity

from app.pipelines.thematic import graph
from app.pipelines.thematic.discover import Discovered, discover, neighbours
from app.pipelines.thematic.embed import Embedded
from app.pipelines.thematic.parameters import Parameters

NOWHERE = np.zeros((12, 1), dtype=np.float32)


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
    assert set(outcome.theme_of) == {-1}
    assert outcome.separation == []


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


def test_neighbours_keep_no_more_memory_than_they_fill() -> None:
    found, cosine = graph.nearest(blobs(300, 300).vectors.astype(np.float32), 0, 5)
    assert found.base is None
    assert cosine.base is None
    assert found.shape == cosine.shape == (512, 5)


def test_small_surveys_have_fewer_neighbours() -> None:
    assert [neighbours(size) for size in (2, 6, 20, 100, 225, 5000)] == [1, 3, 4, 10, 15, 15]


def test_communities_join_while_modularity_rises_and_no_further() -> None:
    # Two pairs of communities, each strongly linked, the pairs only just; the fifth by nothing.
    weights = np.zeros((5, 5))
    weights[0, 1] = weights[2, 3] = 1.0
    weights[1, 2] = 0.1
    links = sparse.csr_matrix(weights + weights.T + np.diag([1.0, 1.0, 1.0, 1.0, 0.0]))
    alone = np.arange(5)
    assert graph.join(links, alone, NOWHERE[:5], 1.0, 5).tolist() == [0, 0, 1, 1, -1]
    assert graph.join(links, alone, NOWHERE[:5], 1.0, 1).tolist() == [0, 0, 0, 0, -1]
    assert graph.join(links, alone, NOWHERE[:5], 9.0, 5).tolist() == [0, 1, 2, 3, -1]
    assert graph.join(links, alone, NOWHERE[:5], 9.0, 3).tolist() in (
        [0, 0, 1, 2, -1],
        [0, 1, 2, 2, -1],
    )


def test_labels_kept_apart_never_come_into_one_group() -> None:
    links = sparse.csr_matrix(np.ones((4, 4)))
    assert graph.join(links, np.arange(4), NOWHERE[:4], 0.1, 1).tolist() == [0, 0, 0, 0]
    joined = graph.join(links, np.arange(4), NOWHERE[:4], 0.1, 1, apart=[1, 3])
    assert joined[1] != joined[3]
    assert len(set(joined.tolist())) == 2


def test_joining_agrees_with_the_modularity_it_claims_to_raise() -> None:
    rng = np.random.default_rng(2)
    weights = np.triu(rng.random((12, 12)), 1)
    links = sparse.csr_matrix(weights + weights.T)
    alone = np.arange(12)
    joined = graph.join(links, alone, NOWHERE, 1.0, 12)
    assert get_modularity(links, joined) > get_modularity(links, alone)
    for first, second in itertools.combinations(set(joined.tolist()), 2):
        together = np.where(joined == second, first, joined)
        assert get_modularity(links, together) <= get_modularity(links, joined)


def test_what_no_link_joins_is_joined_by_nearness_where_it_must_be() -> None:
    links = sparse.csr_matrix(np.kron(np.eye(4), np.ones((2, 2))))
    labels = np.repeat(np.arange(4), 2)
    vectors = np.repeat(np.array([[0.0], [5.0], [1.0], [5.5]], dtype=np.float32), 2, axis=0)
    assert graph.join(links, labels, vectors, 1.0, 4).tolist() == [0, 1, 2, 3]
    assert graph.join(links, labels, vectors, 1.0, 2).tolist() == [0, 1, 0, 1]


def test_more_communities_than_are_weighed_in_pairs_take_little_memory() -> None:
    texts = np.arange(9_000)
    links = sparse.csr_matrix((np.ones(9_000), (texts, texts ^ 1)))
    vectors = np.random.default_rng(0).standard_normal((9_000, 8)).astype(np.float32)
    tracemalloc.start()
    joined = graph.join(links, texts // 2, vectors, 1.0, 15)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert set(joined.tolist()) == set(range(15))
    assert peak < 300 * 1024**2


def test_small_communities_go_with_what_they_are_nearest_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(5)
    block = rng.integers(0, 4, 60)  # that a community of five texts is in, by its links
    labels = np.repeat(np.arange(60), 5)
    of_text = block[labels]
    weights = np.where(of_text[:, None] == of_text, rng.random((300, 300)), 0.0)
    # The last ten have links within themselves alone, and only their vectors tell the block.
    weights = (weights + weights.T) * (labels[:, None] < 50) * (labels < 50)
    weights += 3.0 * (labels[:, None] == labels)
    links = sparse.csr_matrix(weights)
    vectors = np.eye(4, dtype=np.float32)[of_text]
    vectors += 0.01 * rng.standard_normal((300, 4)).astype(np.float32)
    whole = graph.join(links, labels, vectors, 1.0, 4)
    assert adjusted_rand_score(whole, block) == 1.0
    for most in (59, 45):
        monkeypatch.setattr(graph, "MOST_COMMUNITIES", most)
        bounded = graph.join(links, labels, vectors, 1.0, 4)
        assert adjusted_rand_score(bounded, block) == 1.0
        apart = graph.join(links, labels, vectors, 1.0, 4, apart=[7, 51])
        assert apart[7] != apart[51]


def test_communities_without_links_stay_in_no_group_when_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graph, "MOST_COMMUNITIES", 3)
    links = sparse.csr_matrix(np.diag([1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0]))
    vectors = np.array([[0.0], [9.0], [5.0], [0.1], [9.1], [5.0], [0.2]], dtype=np.float32)
    joined = graph.join(links, np.arange(7), vectors, 1.0, 2)
    assert joined.tolist() == [0, 1, -1, 0, 1, -1, 0]


class Counted(np.ndarray[Any, Any]):
    """Vectors that count how often they are gone through."""

    uses = 0

    def __getitem__(self, chosen: Any) -> Any:
        Counted.uses += 1
        return np.asarray(self)[chosen]


def test_what_no_link_joins_is_joined_as_ward_would_and_reads_the_vectors_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Counted, "uses", 0)
    rng = np.random.default_rng(4)
    labels = np.repeat(np.arange(40), rng.integers(2, 9, 40))
    # Texts of a label have one vector, which a plain Ward clustering therefore joins first.
    vectors = rng.standard_normal((40, 3)).astype(np.float32)[labels]
    links = sparse.csr_matrix((labels[:, None] == labels).astype(float))
    by_ward = fcluster(linkage(vectors, "ward"), 7, "maxclust")
    joined = graph.join(links, labels, vectors.view(Counted), 1.0, 7)
    assert adjusted_rand_score(joined[labels], by_ward) == 1.0
    assert Counted.uses <= 1


def test_texts_like_no_other_go_to_other() -> None:
    embedded = blobs(30, 30)
    vectors = np.concatenate([embedded.vectors, np.zeros((6, 16), dtype=np.float16)])
    outcome = found(replace(embedded, vectors=vectors))
    assert set(outcome.theme_of[:60]) == {0, 1}
    assert outcome.theme_of[60:] == [-1] * 6


def test_verdicts_of_a_kind_are_one_group_however_they_are_worded() -> None:
    embedded = blobs(10, 10, 10, 40)
    texts = ["No complaints"] * 10 + ["Terrible"] * 10 + ["Perfect"] * 10 + ["Parking"] * 40
    outcome = asyncio.run(discover(embedded, [1] * 70, Parameters(), unheard, texts))
    assert outcome.theme_of == [1] * 10 + [2] * 10 + [1] * 10 + [0] * 40


def test_praise_and_criticism_in_like_words_are_no_one_theme() -> None:
    embedded = blobs(40, 20)
    texts = ["Service was good", "Service was terrible"] * 20 + ["Parking"] * 20
    outcome = asyncio.run(discover(embedded, [1] * 60, Parameters(), unheard, texts))
    assert outcome.theme_of == [0, 1] * 20 + [2] * 20


def test_the_rand_index_is_the_known_one() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.integers(0, 5, 200), rng.integers(0, 4, 200)
    assert graph.adjusted_rand(first, second) == pytest.approx(adjusted_rand_score(first, second))
    assert graph.adjusted_rand(first, first) == 1.0
    alone = np.zeros(5, dtype=np.int64)
    assert graph.adjusted_rand(alone, alone) == 1.0
