"""Token vectors from co-occurrence counts, computed in about a minute.

word2vec implicitly factorizes a shifted logarithm of co-occurrence counts (Levy & Goldberg 2014). Counting takes one
pass over the tokens and no gradient. Embeddings that start from these vectors save a network the first millions of
tokens. gensim and fastText would train word2vec itself, but over words and not over a tokenizer's ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse

from headstart.tokens.shards import Shards

_CHUNK = 1 << 23
"""Tokens per chunk. The pairs of a chunk at one distance take 200 MB."""
_SMOOTHING = 0.75
"""Exponent of the context counts, as in word2vec's negative sampling: it damps rare contexts (Levy et al. 2015)."""

Floats = npt.NDArray[np.float32]


def vectors(
    corpora: Sequence[Shards], shares: Sequence[float], dimensions: int, window: int, limit_tokens: int
) -> Floats:
    """Return a unit vector for each id (vocabulary, dimensions), zeros for ids that never occur.

    Properties: deterministic. `limit_tokens` bounds the tokens counted over all corpora; each corpus contributes its
    share, from its beginning. Memory grows with the number of distinct pairs, at most the vocabulary size squared.
    """
    size = len(corpora[0].unigrams)
    total = sparse.csr_matrix((size, size), dtype=np.float32)
    for shards, share in zip(corpora, shares, strict=True):
        tokens = min(shards.tokens, max(1, round(limit_tokens * share)))
        total = total + _counts(shards, tokens, window, size) * (share / tokens)
    information = _ppmi(total + total.T)
    rank = min(dimensions, size - 1)
    # Not at the top: importing scikit-learn would delay the start of every run, and most do not count.
    from sklearn.utils.extmath import randomized_svd

    left, singular_values, _ = randomized_svd(information, n_components=rank, n_iter=3, random_state=0)
    # The square root of the singular values works best for word similarity (Levy et al. 2015).
    raw = np.zeros((size, dimensions), dtype=np.float32)
    raw[:, :rank] = left * np.sqrt(singular_values)
    raw[np.diff(information.indptr) == 0] = 0  # rows without any pair contain rounding errors only
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    return np.divide(raw, lengths, out=np.zeros_like(raw), where=lengths > 0)


def _counts(shards: Shards, tokens: int, window: int, size: int) -> sparse.csr_matrix:
    """Return how often each id precedes each other id within the window (size, size), within documents.

    A pair at distance d has weight (window - d + 1) / window, the expectation of word2vec's random window.
    """
    total = sparse.csr_matrix((size, size), dtype=np.float32)
    for ids, document in _chunks(shards, tokens, window):
        for distance in range(1, min(window, len(ids) - 1) + 1):
            same_document = document[:-distance] == document[distance:]
            before, after = ids[:-distance][same_document], ids[distance:][same_document]
            weights = np.full(len(before), (window - distance + 1) / window, dtype=np.float32)
            total = total + sparse.coo_matrix((weights, (before, after)), shape=(size, size)).tocsr()
    return total


def _chunks(shards: Shards, tokens: int, window: int) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]]:
    """Yield chunks of ids with the document index of each id; pairs across two chunks are not counted."""
    for start in range(0, tokens, _CHUNK):
        stop = min(start + _CHUNK, tokens)
        if stop - start > window:
            document = np.searchsorted(shards.documents, np.arange(start, stop), side="right")
            yield shards.read(start, stop).astype(np.int32), document


def _ppmi(counts: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return the positive pointwise mutual information of symmetric counts, with smoothed contexts."""
    rows = np.asarray(counts.sum(axis=1)).ravel()
    contexts = rows**_SMOOTHING
    contexts /= max(contexts.sum(), 1e-12)
    pairs = counts.tocoo()
    values = np.log(pairs.data / (rows[pairs.row] * contexts[pairs.col]))
    kept = values > 0
    return sparse.csr_matrix((values[kept].astype(np.float32), (pairs.row[kept], pairs.col[kept])), shape=counts.shape)
