"""Vectors without a model: TF-IDF weights and their truncated singular value decomposition.

Latent semantic analysis (Deerwester et al. 1990), the fallback where the embedding model is not
installed. It finds shared words, not shared meaning: expect clearly coarser themes.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import svds

from app.pipelines.thematic.words import phrases, stem, tokens

DIMENSIONS: Final = 100


def lsa(texts: Sequence[str]) -> NDArray[np.float32]:
    """Unit vectors (len(texts), at most 100); a text without any word gets the zero vector."""
    weights = _tf_idf(texts)
    smaller = min(weights.shape)
    if smaller <= DIMENSIONS + 1:
        dense = weights.toarray()
        if dense.shape[1] <= DIMENSIONS + 1:
            return _unit(dense)
        left, sizes, _ = np.linalg.svd(dense, full_matrices=False)
        return _unit(left * sizes)
    # A fixed start vector makes the iteration repeatable; the vectors' signs cancel in cosines.
    start = np.full(smaller, 1.0 / np.sqrt(smaller))
    left, sizes, _ = svds(weights, k=DIMENSIONS, v0=start)
    return _unit(left * sizes)


def _tf_idf(texts: Sequence[str]) -> sparse.csr_matrix:
    """Rows of unit length over stems and stem pairs that occur in at least two texts."""
    counted = [Counter(_terms(text)) for text in texts]
    spread = Counter(term for terms in counted for term in terms)
    rare = 1 if len(texts) < DIMENSIONS else 2
    columns = {term: at for at, term in enumerate(sorted(t for t in spread if spread[t] >= rare))}
    rows, cols, values = [], [], []
    for row, terms in enumerate(counted):
        for term, times in terms.items():
            if term in columns:
                rows.append(row)
                cols.append(columns[term])
                idf = 1.0 + np.log((1 + len(texts)) / (1 + spread[term]))
                values.append((1.0 + np.log(times)) * idf)
    shape = (len(texts), max(1, len(columns)))
    matrix = sparse.csr_matrix((values, (rows, cols)), shape=shape, dtype=np.float64)
    length = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    return sparse.csr_matrix(sparse.diags(1.0 / np.where(length > 0, length, 1.0)) @ matrix)


def _terms(text: str) -> list[str]:
    """Stems and stem pairs; all words where no topic word is left ("It was as it is")."""
    topical = [" ".join(map(stem, phrase)) for phrase in phrases(text)]
    return topical or [stem(word) for word in tokens(text)]


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float32]:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(length > 0, length, 1.0), dtype=np.float32)
