"""Texts of similar length share a forward pass, and each vector belongs to its text."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.stages.search.embedder import Embedder, _batches
from headstart.stages.search.encoder import SentenceTransformersEncoder

pytest.importorskip("sentence_transformers", reason="pip install 'headstart[search]'")

TEXTS = ["a text", "it was a bright cold day in april, and the clocks were striking", "", "a text", "x " * 60, "day"]


@given(st.lists(st.integers(1, 50), max_size=40).map(sorted), st.integers(1, 200))
def test_batches_contain_every_text_once_and_respect_the_limit(lengths, tokens):
    batches = [lengths[batch] for batch in _batches(lengths, tokens)]
    assert [length for batch in batches for length in batch] == lengths
    for batch in batches:
        assert len(batch) == 1 or len(batch) * batch[-1] <= tokens
    for batch, after in pairwise(batches):
        assert (len(batch) + 1) * after[0] > tokens, "the next text would not have fit"


@pytest.mark.parametrize("tokens", [1, 64, 4096])
def test_vectors_are_in_the_order_of_the_texts(checkpoint, tokens):
    embedder = Embedder(checkpoint("bert"), "fp32")
    together = embedder.vectors(TEXTS, tokens)
    reference = SentenceTransformersEncoder(checkpoint("bert"), embedder.device, embedder.encoder.model.dtype).model
    assert together.shape == (len(TEXTS), reference.get_embedding_dimension()) and together.dtype == np.float32
    for text, vector in zip(TEXTS, together, strict=True):
        assert vector == pytest.approx(embedder.vectors([text])[0], abs=1e-5)
    assert together == pytest.approx(reference.encode(TEXTS, normalize_embeddings=True), abs=1e-5)


def test_bf16_gives_nearly_the_same_directions(checkpoint):
    full, half = (Embedder(checkpoint("bert"), kind).vectors(TEXTS) for kind in ("fp32", "bf16"))
    assert (full * half).sum(1).min() > 0.999
