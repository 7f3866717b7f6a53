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
    """
    between = _between(graph, labels)
    linked = np.flatnonzero(between.sum(axis=1))
    group = np.full(between.shape[0], -1, dtype=np.int64)
    if not len(linked):
        return group
    share = between[linked][:, linked].toarray() / between.sum()
    ends = share.sum(axis=1)
    ties = share > 0
    gain = share - resolution * np.outer(ends, ends)
    np.fill_diagonal(gain, -np.inf)
    kept_apart = np.flatnonzero(np.isin(linked, apart))
    gain[np.ix_(kept_apart, kept_apart)] = -np.inf
    joined = np.arange(len(linked))
    for left in range(len(linked), 1, -1):
        value = gain
        if left > at_most and gain.max() <= 0:
            value = _least_loss(gain, ties, joined, linked, labels, vectors)
        first, second = sorted(divmod(int(value.argmax()), len(linked)))
        best = value[first, second]
        if best == -np.inf or (left <= at_most and best <= 0):
            break
        joined[joined == second] = first
        # The gain of joining is additive: what both would win with a third, their union wins.
        gain[first] += gain[second]
        gain[:, first] = gain[first]
        gain[second] = gain[:, second] = -np.inf
        gain[first, first] = -np.inf
        ties[first] |= ties[second]
        ties[:, first] = ties[first]
    group[linked] = np.unique(joined, return_inverse=True)[1]
    return group


def _least_loss(
    gain: NDArray[np.float64],
    ties: NDArray[np.bool_],
    joined: Labels,
    linked: Labels,
    labels: Labels,
    vectors: Vectors,
) -> NDArray[np.float64]:
    """What joining each two is worth where modularity only falls, -inf where it is forbidden."""
    among_linked = np.where(ties, gain, -np.inf)
    if among_linked.max() > -np.inf:
        return among_linked
    group_of = np.full(int(labels.max()) + 1, -1, dtype=np.int64)
    group_of[linked] = joined
    inside = group_of[labels] >= 0
    sizes = np.bincount(group_of[labels][inside], minlength=len(linked)).astype(np.float64)
    centres = np.zeros((len(linked), vectors.shape[1]))
    np.add.at(centres, group_of[labels][inside], vectors[inside])
    centres /= np.maximum(sizes, 1.0)[:, None]
    square = (centres**2).sum(axis=1)
    distance = (square[:, None] + square - 2.0 * centres @ centres.T).clip(min=0.0)
    cost = distance * np.outer(sizes, sizes) / np.maximum(sizes[:, None] + sizes, 1.0)
    return np.where(gain > -np.inf, -cost, -np.inf)


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
