"""Groups of vectors: a graph of nearest neighbours, its communities, and their hierarchy.

Pure functions over arrays; the same input and seed give the same output, byte for byte.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sknetwork.clustering import Louvain

Vectors = NDArray[np.float32]
Labels = NDArray[np.int64]

BLOCK: Final = 512
"""Rows compared with all others at a time: 300 MB for 50,000 texts, indices included."""


def nearest(vectors: Vectors, start: int, k: int) -> tuple[NDArray[np.int64], Vectors]:
    """The `k` nearest others of rows `start` to `start + BLOCK`: their indices and cosines."""
    block = vectors[start : start + BLOCK] @ vectors.T
    rows = np.arange(len(block))
    block[rows, rows + start] = -np.inf
    # A copy: a view would keep the whole of the block's indices, and all blocks' are n by n.
    found = np.argpartition(block, block.shape[1] - k, axis=1)[:, -k:].copy()
    return found, np.take_along_axis(block, found, axis=1)


def neighbour_graph(parts: Sequence[tuple[NDArray[np.int64], Vectors]]) -> Any:
    """Symmetric weights (n, n) from blocks of `nearest`: a link counts if either side has it."""
    found = np.concatenate([part[0] for part in parts])
    cosine = np.concatenate([part[1] for part in parts]).clip(min=0.0)
    rows = np.repeat(np.arange(len(found)), found.shape[1])
    links = sparse.csr_matrix(
        (cosine.ravel(), (rows, found.ravel())), shape=(len(found), len(found)), dtype=np.float64
    )
    return links.maximum(links.T).tocsr()


MOST_COMMUNITIES: Final = 2_000
"""That are joined by weighing each two of them: seven matrices of them by them, 220 MB.

Texts of people make hundreds; many texts from templates, linked in pairs, may make any number.
"""


def communities(graph: Any, resolution: float, seeds: Sequence[int]) -> Labels:
    """Consensus of Louvain runs (Blondel et al. 2008), one per seed.

    The consensus weighs each link by the share of runs that keep its ends together and partitions
    the graph once more (after Lancichinetti and Fortunato 2012, on existing links only). Not
    Leiden: scikit-network's gave different partitions with a fixed random state.
    """
    runs = np.array([_louvain(graph, resolution, seed) for seed in seeds])
    if len(seeds) == 1:
        return np.asarray(runs[0])
    links = graph.tocoo()
    together = (runs[:, links.row] == runs[:, links.col]).mean(axis=0)
    agreed = sparse.csr_matrix((links.data * together, (links.row, links.col)), shape=graph.shape)
    agreed.eliminate_zeros()
    return _louvain(agreed, resolution, seeds[0])


def _louvain(graph: Any, resolution: float, seed: int) -> Labels:
    if graph.nnz == 0:
        return np.arange(graph.shape[0], dtype=np.int64)
    model = Louvain(resolution=resolution, random_state=seed, shuffle_nodes=True)
    return np.asarray(model.fit_predict(graph), dtype=np.int64)


def join(
    graph: Any,
    labels: Labels,
    vectors: Vectors,
    resolution: float,
    at_most: int,
    apart: Sequence[int] = (),
) -> Labels:
    """Greedy joining of communities by modularity: label -> group 0 .., -1 where nothing is linked.

    Each step joins the two whose union raises modularity most (Clauset, Newman and Moore 2004). It
    ends where no union raises it further, which is where the number of groups comes from. Where
    these are more than `at_most`, it goes on at the least loss among those that are linked, and
    then by Ward's criterion on the mean vectors. No two labels of `apart` come into one group.

    Of more than `MOST_COMMUNITIES` the smallest first go with the one that each is nearest to.
    """
    between = _between(graph, labels)
    linked = np.flatnonzero(between.sum(axis=1))
    group = np.full(between.shape[0], -1, dtype=np.int64)
    if not len(linked):
        return group
    if len(linked) > MOST_COMMUNITIES:
        into = _into_larger(between, linked, labels, vectors, apart)
        return join(graph, into[labels], vectors, resolution, at_most, apart)[into]
    share = between[linked][:, linked].toarray() / between.sum()
    ends = share.sum(axis=1)
    ties = share > 0
    gain = share - resolution * np.outer(ends, ends)
    np.fill_diagonal(gain, -np.inf)
    kept_apart = np.flatnonzero(np.isin(linked, apart))
    gain[np.ix_(kept_apart, kept_apart)] = -np.inf
    joined = np.arange(len(linked))
    left = len(linked)
    # Two without a link never gain: that they may join is for Ward's criterion to say.
    pairs = _Pairs(np.where(ties, gain, -np.inf))
    while left > 1:
        first, second, best = pairs.best()
        if best == -np.inf or (left <= at_most and best <= 0):
            break
        joined[joined == second] = first
        left -= 1
        # The gain of joining is additive: what both would win with a third, their union wins.
        gain[first] += gain[second]
        gain[:, first] = gain[first]
        gain[second] = gain[:, second] = -np.inf
        ties[first] |= ties[second]
        ties[:, first] = ties[first]
        pairs.join(first, second, np.where(ties[first], gain[first], -np.inf))
    if left > at_most:
        forbidden = gain == -np.inf
        _join_near(joined, left - at_most, forbidden, _members(linked, labels), vectors)
    group[linked] = np.unique(joined, return_inverse=True)[1]
    return group


def _into_larger(
    between: Any, linked: Labels, labels: Labels, vectors: Vectors, apart: Sequence[int]
) -> Labels:
    """Label -> the label that takes it in: fewer of them, and never two of `apart` in one.

    All but the largest each go with the one that they have most links with; where there is none,
    with one of the largest by Ward's criterion.
    """
    weight = np.asarray(between.sum(axis=1)).ravel()
    is_apart = np.isin(linked, apart)
    order = linked[np.lexsort((linked, -weight[linked], ~is_apart))]
    large, small = np.sort(order[:MOST_COMMUNITIES]), np.sort(order[MOST_COMMUNITIES:])
    ties = (between - sparse.diags(between.diagonal())).tocsr()[small]
    target = np.asarray(ties.argmax(axis=1)).ravel()
    alone = np.flatnonzero(np.asarray(ties.sum(axis=1)).ravel() == 0.0)
    target[alone] = large[_nearest_group(small[alone], large, labels, vectors)]
    size = between.shape[0]
    chosen = sparse.csr_matrix((np.ones(len(small)), (small, target)), shape=(size, size))
    together = sparse.csgraph.connected_components(chosen, directed=False)[1]
    # Each small one chose one, so those who come together have at most one large one among them.
    first: Labels = np.full(size, size, dtype=np.int64)
    np.minimum.at(first, together, np.arange(size))
    first[together[large]] = large
    into: Labels = first[together]
    return into


def _nearest_group(
    small: Labels, large: Labels, labels: Labels, vectors: Vectors
) -> NDArray[np.intp]:
    """Index in `large` of what each of `small` joins at the least cost by Ward's criterion."""
    sizes, centres = zip(
        *(_centres(_members(groups, labels), vectors) for groups in (small, large)), strict=True
    )
    square = (centres[1] ** 2).sum(axis=1)
    found = []
    for start in range(0, len(small), BLOCK):
        own, size = centres[0][start : start + BLOCK], sizes[0][start : start + BLOCK, None]
        cost = (own**2).sum(axis=1)[:, None] + square - 2.0 * own @ centres[1].T
        found.append((cost * (size * sizes[1]) / (size + sizes[1])).argmin(axis=1))
    return np.concatenate(found) if found else np.empty(0, dtype=np.intp)


def _centres(member: Any, vectors: Vectors) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Texts of each group, and their mean vector."""
    sizes = np.asarray(member.sum(axis=1)).ravel()
    return sizes, (member @ vectors) / np.maximum(sizes, 1.0)[:, None]


def _join_near(
    joined: Labels,
    steps: int,
    forbidden: NDArray[np.bool_],
    member: Any,
    vectors: Vectors,
) -> None:
    """Join groups by Ward's criterion, in place, up to `steps` times.

    Args:
        forbidden: pairs of groups that must not join.
        member: (groups before any joining, texts), 1 where the text is in the group.
    """
    groups = len(joined)
    into = sparse.csr_matrix((np.ones(groups), (joined, np.arange(groups))), (groups, groups))
    member = into @ member
    sizes, centres = _centres(member, vectors)
    square = (centres**2).sum(axis=1)
    cost = (square[:, None] + square - 2.0 * centres @ centres.T).clip(min=0.0)
    cost *= np.outer(sizes, sizes) / np.maximum(sizes[:, None] + sizes, 1.0)
    cost[forbidden] = np.inf
    pairs = _Pairs(-cost)
    for _ in range(steps):
        first, second, best = pairs.best()
        if best == -np.inf:
            break
        joined[joined == second] = first
        # What a union costs follows from what its halves do (Lance and Williams 1967).
        costs = (sizes[first] + sizes) * cost[first] + (sizes[second] + sizes) * cost[second]
        costs -= sizes * cost[first, second]
        costs /= sizes[first] + sizes[second] + sizes
        sizes[first] += sizes[second]
        cost[first] = cost[:, first] = costs
        cost[second] = cost[:, second] = np.inf
        pairs.join(first, second, -costs)


class _Pairs:
    """What joining each two is worth, and the best two without a search of all at each step.

    Args:
        value: symmetric, -inf where two must not join; changed in place.
    """

    def __init__(self, value: NDArray[np.float64]) -> None:
        self._value = value
        self._at = value.argmax(axis=1)
        self._most = value.max(axis=1)

    def best(self) -> tuple[int, int, float]:
        """The two that are worth most, the lower first, and their value."""
        row = int(self._most.argmax())
        first, second = sorted((row, int(self._at[row])))
        return first, second, float(self._most[row])

    def join(self, first: int, second: int, value: NDArray[np.float64]) -> None:
        """Make `second` part of `first`, which is now worth `value` with each other one."""
        value = value.copy()
        value[[first, second]] = -np.inf
        self._value[first] = self._value[:, first] = value
        self._value[second] = self._value[:, second] = -np.inf
        lost = (self._at == first) | (self._at == second)
        lost[[first, second]] = True
        ahead = (value > self._most) | ((value == self._most) & (first < self._at))
        self._at[ahead], self._most[ahead] = first, value[ahead]
        self._at[lost] = self._value[lost].argmax(axis=1)
        self._most[lost] = self._value[lost].max(axis=1)


def _members(linked: Labels, labels: Labels) -> Any:
    """(communities, texts), 1 where the text is in the community; sparse, `linked` alone."""
    return sparse.csr_matrix((np.ones(len(labels)), (labels, np.arange(len(labels)))))[linked]


def _between(graph: Any, labels: Labels) -> Any:
    """Sum of the weights between each two communities, and twice those within one; sparse."""
    member = sparse.csr_matrix((np.ones(len(labels)), (np.arange(len(labels)), labels)))
    return (member.T @ graph @ member).tocsr()


def adjusted_rand(first: Labels, second: Labels) -> float:
    """Agreement of two partitions: 1 for the same one, about 0 for chance (Hubert, Arabie 1985)."""
    pairs = np.zeros((int(first.max()) + 1, int(second.max()) + 1))
    np.add.at(pairs, (first, second), 1.0)
    both = _pairs(pairs).sum()
    of_first, of_second = _pairs(pairs.sum(axis=1)).sum(), _pairs(pairs.sum(axis=0)).sum()
    chance = of_first * of_second / max(1.0, float(_pairs(np.float64(len(first)))))
    most = (of_first + of_second) / 2.0
    return 1.0 if most == chance else float((both - chance) / (most - chance))


def _pairs(counts: Any) -> Any:
    return counts * (counts - 1.0) / 2.0
