"""Vectors counted from token shards: what stands in like company is alike, and nothing is counted across documents."""

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


def by_hand(text, window, tokens):
    """The weighted counts by two plain loops."""
    size = len(text.unigrams)
    counts = np.zeros((size, size))
    ends = [*text.documents[1:], text.tokens]
    for start, end in zip(text.documents, ends, strict=True):
        ids = text.read(int(start), min(int(end), tokens)) if start < tokens else []
        for place, left in enumerate(ids):
            for distance, right in enumerate(ids[place + 1 : place + 1 + window], start=1):
                counts[left, right] += (window - distance + 1) / window
    return counts


@pytest.mark.parametrize("window", [1, 3])
def test_counts_are_those_of_two_plain_loops(text, window):
    tokens = 3000
    found = cooccurrence._counts(text, tokens, window, len(text.unigrams)).toarray()
    np.testing.assert_allclose(found, by_hand(text, window, tokens), rtol=1e-5)


def test_chunks_lose_only_the_pairs_between_them(text, monkeypatch):
    whole = cooccurrence._counts(text, 4000, 2, len(text.unigrams)).sum()
    monkeypatch.setattr(cooccurrence, "_CHUNK", 1000)
    pieces = cooccurrence._counts(text, 4000, 2, len(text.unigrams)).sum()
    assert whole - 3 * 3 <= pieces < whole


def test_information_is_positive_and_by_the_formula():
    from scipy import sparse

    counts = np.array([[0.0, 8.0, 1.0], [8.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    found = cooccurrence._informative(sparse.csr_matrix(counts)).toarray()
    contexts = counts.sum(1) ** 0.75
    expected = np.log(np.maximum(counts, 1e-12) / counts.sum(1)[:, None] / (contexts / contexts.sum())[None])
    np.testing.assert_allclose(found, np.maximum(expected, 0), rtol=1e-5)


def test_vectors_repeat_and_have_length_one(text):
    first, again = (cooccurrence.vectors([text], [1.0], 24, 4, 10**6) for _ in range(2))
    assert np.array_equal(first, again)
    occurs = np.asarray(text.unigrams) > 0
    lengths = np.linalg.norm(first, axis=1)
    assert ((lengths == 0) | np.isclose(lengths, 1, atol=1e-4)).all()
    assert (lengths[occurs] > 0).mean() > 0.99
    assert not lengths[~occurs].any()


def test_like_company_gives_like_vectors(tmp_path, tiny_tokenizer):
    """Two words that are exchanged at random end up near each other, and far from those of other company."""
    words = sorted(word for word in tiny_tokenizer.get_vocab() if word.isalpha() and len(word) > 2)[:8]
    rng = np.random.default_rng(0)
    lines = [f"{words[g]} {words[g + 1 + rng.integers(2)]} {words[g + 3]}" for g in rng.integers(2, size=3000) * 4]
    shards.write((Document(str(n), line) for n, line in enumerate(lines)), tiny_tokenizer, tmp_path)
    found = cooccurrence.vectors([shards.Shards(tmp_path)], [1.0], 8, 3, 10**6)
    one = [found[tiny_tokenizer.convert_tokens_to_ids(word)] for word in words]
    assert one[1] @ one[2] > 0.9 and one[5] @ one[6] > 0.9
    assert abs(one[1] @ one[5]) < 0.2


def test_shares_weigh_corpora(text):
    """A corpus of no share changes nothing, and the limit is kept by share."""
    alone = cooccurrence.vectors([text], [1.0], 8, 2, 5000)
    beside = cooccurrence.vectors([text, text], [0.5, 0.5], 8, 2, 10000)
    np.testing.assert_allclose(np.abs(alone @ alone.T), np.abs(beside @ beside.T), atol=1e-3)
