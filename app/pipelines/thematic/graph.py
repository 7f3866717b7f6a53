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
    found = np.argpartition(block, block.shape[1] - k, axis=1)[:, -k:]
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


def centroids(vectors: Vectors, labels: Labels) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean vector and size of each label 0 .. max."""
    sizes = np.bincount(labels).astype(np.float64)
    sums = np.zeros((len(sizes), vectors.shape[1]))
    np.add.at(sums, labels, vectors)
    return sums / np.maximum(sizes, 1.0)[:, None], sizes


def merge(centres: NDArray[np.float64], sizes: NDArray[np.float64], at_most: int) -> Labels:
    """Ward's merge of weighted centres down to `at_most` groups: centre -> group 0 .. at_most - 1.

    Each step joins the pair whose union adds least to the sum of squares (Ward 1963).
    """
    centres, sizes = centres.copy(), sizes.copy()
    group = np.arange(len(sizes))
    alive = np.ones(len(sizes), dtype=bool)
    square = (centres**2).sum(axis=1)
    cost = square[:, None] + square[None, :] - 2.0 * centres @ centres.T
    cost = cost.clip(min=0.0) * (sizes[:, None] * sizes) / (sizes[:, None] + sizes)
    np.fill_diagonal(cost, np.inf)
    for _ in range(len(sizes) - at_most):
        first, second = sorted(divmod(int(cost.argmin()), len(sizes)))
        both = sizes[first] + sizes[second]
        centres[first] = (centres[first] * sizes[first] + centres[second] * sizes[second]) / both
        sizes[first] = both
        alive[second] = False
        group[group == second] = first
        apart = ((centres - centres[first]) ** 2).sum(axis=1) * both * sizes / (both + sizes)
        apart[~alive] = np.inf
        apart[first] = np.inf
        cost[first, :] = cost[:, first] = apart
        cost[second, :] = cost[:, second] = np.inf
    return np.unique(group, return_inverse=True)[1].astype(np.int64)


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
