"""Cosine similarities of states: of a word's occurrences, of the words of a sentence, and of random words.

Paper: Ethayarajh 2019, How Contextual are Contextualized Word Representations?
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[Any]


def unit(vectors: Vectors) -> npt.NDArray[np.float64]:
    """Return vectors (…, hidden) with length one; a zero vector stays zero."""
    values = np.asarray(vectors, dtype=np.float64)
    scaled: npt.NDArray[np.float64] = values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-12)
    return scaled


def self_similarity(occurrences: Vectors) -> float:
    """Return the mean cosine over all pairs of a word's occurrences, shape (occurrences, hidden); two or more."""
    units, count = unit(occurrences), len(occurrences)
    total = float((units.sum(0) ** 2).sum())  # over all pairs, each occurrence with itself included
    return (total - count) / (count * (count - 1))


def intra_sentence_similarity(words: Vectors) -> float:
    """Return the mean cosine between the words of a sentence, shape (words, hidden), and their mean vector."""
    return float((unit(words) @ unit(np.asarray(words, dtype=np.float64).mean(0))).mean())


def pair_cosines(left: Vectors, right: Vectors) -> npt.NDArray[np.float64]:
    """Return the cosine of each row of `left` with that row of `right`; the mean over random words is anisotropy."""
    cosines: npt.NDArray[np.float64] = (unit(left) * unit(right)).sum(-1)
    return cosines


def nearest(query: Vectors, candidates: Vectors, count: int) -> list[tuple[int, float]]:
    """Return the indices of the candidates with the highest cosines to a query, and the cosines, the highest first.

    Algorithm:
        Exact: one product. To build a graph of the candidates takes longer than thousands of exact searches, and a
        page asks for a few words only.
    """
    cosines = unit(candidates) @ unit(query)
    best = np.argsort(-cosines, kind="stable")[:count]
    return [(int(i), float(cosines[i])) for i in best]
