"""Vectors of tokens from what stands near them: counted in a minute, where a network needs hours to learn as much.

A shifted logarithm of co-occurrence counts, factorised, is what word2vec finds by gradient descent (Levy & Goldberg
2014); counting costs one pass and no gradient. As the starting point of a network's embeddings they spare it the
first millions of tokens. gensim and fastText would train word2vec itself, over words rather than a tokenizer's ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.utils.extmath import randomized_svd

from headstart.tokens.shards import Shards

_CHUNK = 1 << 23
"""Tokens counted at once: a chunk's pairs at one distance take 200 MB."""
_SMOOTHING = 0.75
"""Power of the contexts' counts, as in word2vec's negative sampling: rare contexts say less (Levy et al. 2015)."""

Floats = npt.NDArray[np.float32]


def vectors(
    corpora: Sequence[Shards], shares: Sequence[float], dimensions: int, window: int, limit_tokens: int
) -> Floats:
    """Return a vector of length 1 for each id, or zeros for one that never occurs; no chance is involved.

    `limit_tokens` bounds what is counted over all corpora, each from its beginning and in its share. Memory grows with
    the number of different pairs, at most the square of the vocabulary.
    """
    size = len(corpora[0].unigrams)
    together = sparse.csr_matrix((size, size), dtype=np.float32)
    for shards, share in zip(corpora, shares, strict=True):
        counted = min(shards.tokens, max(1, round(limit_tokens * share)))
        together = together + _counts(shards, counted, window, size) * (share / counted)
    found = _informative(together + together.T)
    rank = min(dimensions, size - 1)
    left, strength, _ = randomized_svd(found, n_components=rank, n_iter=3, random_state=0)
    # The square root of the strengths, and not the strengths, serves word similarity best (Levy et al. 2015).
    raw = np.zeros((size, dimensions), dtype=np.float32)
    raw[:, :rank] = left * np.sqrt(strength)
    raw[np.diff(found.indptr) == 0] = 0  # without a pair to tell of, what stands there is rounding
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    return np.divide(raw, lengths, out=np.zeros_like(raw), where=lengths > 0)


def _counts(shards: Shards, tokens: int, window: int, size: int) -> sparse.csr_matrix:
    """Return how often each id precedes each other within the window, near ones counting more, never across documents.

    A pair at distance d counts (window - d + 1) / window, which is what word2vec's random window amounts to.
    """
    total = sparse.csr_matrix((size, size), dtype=np.float32)
    for ids, document in _chunks(shards, tokens, window):
        for distance in range(1, min(window, len(ids) - 1) + 1):
            together = document[:-distance] == document[distance:]
            before, after = ids[:-distance][together], ids[distance:][together]
            weights = np.full(len(before), (window - distance + 1) / window, dtype=np.float32)
            total = total + sparse.coo_matrix((weights, (before, after)), shape=(size, size)).tocsr()
    return total


def _chunks(shards: Shards, tokens: int, window: int) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]]:
    """Yield stretches of ids with the number of the document each belongs to; pairs across two chunks are let go."""
    for start in range(0, tokens, _CHUNK):
        stop = min(start + _CHUNK, tokens)
        if stop - start > window:
            document = np.searchsorted(shards.documents, np.arange(start, stop), side="right")
            yield shards.read(start, stop).astype(np.int32), document


def _informative(counts: sparse.csr_matrix) -> sparse.csr_matrix:
    """Turn symmetric counts into positive pointwise mutual information, contexts smoothed."""
    rows = np.asarray(counts.sum(axis=1)).ravel()
    contexts = rows**_SMOOTHING
    contexts /= max(contexts.sum(), 1e-12)
    pairs = counts.tocoo()
    values = np.log(pairs.data / (rows[pairs.row] * contexts[pairs.col]))
    kept = values > 0
    return sparse.csr_matrix((values[kept].astype(np.float32), (pairs.row[kept], pairs.col[kept])), shape=counts.shape)
