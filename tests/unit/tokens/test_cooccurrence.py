"""Token vectors from counts: similar contexts give similar vectors, and nothing is counted across documents."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.core.data import Document
from headstart.tokens import cooccurrence, shards


@pytest.fixture(scope="module")
def text(verses, tiny_tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    shards.write((Document(str(n), verse) for n, verse in enumerate(verses)), tiny_tokenizer, folder)
    return shards.Shards(folder)


def reference_counts(text, window, tokens):
    """The weighted counts by two plain loops."""
    size = len(text.unigrams)
    counts = np.zeros((size, size))
    ends = [*text.documents[1:], text.tokens]
    for start, end in zip(text.documents, ends, strict=True):
        ids = text.read(int(start), min(int(end), tokens)) if start < tokens else []
        for i, left in enumerate(ids):
            for distance, right in enumerate(ids[i + 1 : i + 1 + window], start=1):
                counts[left, right] += (window - distance + 1) / window
    return counts


@pytest.mark.parametrize("window", [1, 3])
def test_counts_equal_those_of_two_plain_loops(text, window):
    tokens = 3000
    counts = cooccurrence._counts(text, tokens, window, len(text.unigrams)).toarray()
    np.testing.assert_allclose(counts, reference_counts(text, window, tokens), rtol=1e-5)


def test_chunks_lose_only_the_pairs_between_them(text, monkeypatch):
    whole = cooccurrence._counts(text, 4000, 2, len(text.unigrams)).sum()
    monkeypatch.setattr(cooccurrence, "_CHUNK", 1000)
    chunked = cooccurrence._counts(text, 4000, 2, len(text.unigrams)).sum()
    assert whole - 3 * 3 <= chunked < whole


def test_information_is_positive_and_follows_the_formula():
    from scipy import sparse

    counts = np.array([[0.0, 8.0, 1.0], [8.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    information = cooccurrence._ppmi(sparse.csr_matrix(counts)).toarray()
    contexts = counts.sum(1) ** 0.75
    expected = np.log(np.maximum(counts, 1e-12) / counts.sum(1)[:, None] / (contexts / contexts.sum())[None])
    np.testing.assert_allclose(information, np.maximum(expected, 0), rtol=1e-5)


def test_vectors_are_deterministic_and_have_length_one(text):
    first, again = (cooccurrence.vectors([text], [1.0], 24, 4, 10**6) for _ in range(2))
    assert np.array_equal(first, again)
    occurs = np.asarray(text.unigrams) > 0
    lengths = np.linalg.norm(first, axis=1)
    assert ((lengths == 0) | np.isclose(lengths, 1, atol=1e-4)).all()
    assert (lengths[occurs] > 0).mean() > 0.99
    assert not lengths[~occurs].any()


def test_similar_contexts_give_similar_vectors(tmp_path, tiny_tokenizer):
    """Two words that are exchanged at random get similar vectors, and differ from words of other contexts."""
    words = sorted(word for word in tiny_tokenizer.get_vocab() if word.isalpha() and len(word) > 2)[:8]
    rng = np.random.default_rng(0)
    lines = [f"{words[g]} {words[g + 1 + rng.integers(2)]} {words[g + 3]}" for g in rng.integers(2, size=3000) * 4]
    shards.write((Document(str(n), line) for n, line in enumerate(lines)), tiny_tokenizer, tmp_path)
    table = cooccurrence.vectors([shards.Shards(tmp_path)], [1.0], 8, 3, 10**6)
    vectors = [table[tiny_tokenizer.convert_tokens_to_ids(word)] for word in words]
    assert vectors[1] @ vectors[2] > 0.9 and vectors[5] @ vectors[6] > 0.9
    assert abs(vectors[1] @ vectors[5]) < 0.2


def test_shares_weight_the_corpora(text):
    """Two halves of the same corpus give the same vectors, and the limit applies by share."""
    alone = cooccurrence.vectors([text], [1.0], 8, 2, 5000)
    beside = cooccurrence.vectors([text, text], [0.5, 0.5], 8, 2, 10000)
    np.testing.assert_allclose(np.abs(alone @ alone.T), np.abs(beside @ beside.T), atol=1e-3)
