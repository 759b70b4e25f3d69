"""Nearest words by static vectors: the input embeddings of a network, and GloVe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headstart.evaluation.glove import average, vectors_path
from headstart.stages.probe.hidden.similarity import nearest
from headstart.stages.probe.network import ProbedNetwork

_BEFORE = "a"
"""A word before each word, as some tokenizers write a word differently at the start of a text."""


def input_embeddings(network: ProbedNetwork, words: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return for each word the mean of the input embeddings of its tokens, shape (words, hidden)."""
    weights = network.model.get_input_embeddings().weight.detach().double().cpu().numpy()  # type: ignore[operator, union-attr]
    start = len(network.encode(_BEFORE))
    encoded = network.tokenizer([f"{_BEFORE} {word}" for word in words], add_special_tokens=False, verbose=False)
    return np.stack([weights[ids[start:]].mean(0) for ids in encoded["input_ids"]])


def nearest_words(
    vectors: npt.NDArray[np.float64], words: Sequence[str], word: str, count: int
) -> list[tuple[str, float]]:
    """Return the words whose vectors have the highest cosines to that of a word among them, and the cosines.

    Empty if the word has no vector, which is a row of zeros.
    """
    index = words.index(word)
    if not vectors[index].any():
        return []
    found = nearest(vectors[index], vectors, count + 1)
    return [(words[i], cosine) for i, cosine in found if i != index][:count]


def glove_words(words: Sequence[str], queries: Sequence[str], count: int) -> dict[str, list[tuple[str, float]]]:
    """Return the nearest words of each query by GloVe; empty if there is no file of vectors."""
    path = vectors_path()
    if path is None:
        return {}
    vectors = average(words, path)
    return {query: nearest_words(vectors, words, query, count) for query in queries}
