"""Initialization of embeddings and output bias."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headstart.backbones.encoder import Encoder
from headstart.backbones.start import embedding_width, start_embeddings, start_output
from headstart.core.vocabulary import vocabulary_of


@pytest.fixture
def model(tiny_tokenizer):
    torch.manual_seed(0)
    return Encoder(Encoder.Config(size="tiny")).build(vocabulary_of(tiny_tokenizer), 64, "AutoModelForMaskedLM")


def test_embeddings_take_the_direction_of_vectors_and_keep_their_norm(model):
    table = model.get_input_embeddings().weight
    before = table.detach().clone()
    vectors = np.random.default_rng(0).normal(size=before.shape).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[:10] = 0
    start_embeddings(model, vectors)
    assert torch.equal(table[:10], before[:10])
    assert torch.allclose(torch.nn.functional.normalize(table[10:]), torch.from_numpy(vectors[10:]), atol=1e-5)
    assert table[10:].norm(dim=1).mean().item() == pytest.approx(before[10:].norm(dim=1).mean().item(), rel=1e-4)


def test_output_bias_gives_unigram_probabilities(model):
    """With the bias alone, predictions are the smoothed frequencies of tokens."""
    counts = np.arange(model.config.vocab_size)
    start_output(model, counts)
    shares = (counts + 1) / (counts + 1).sum()
    assert torch.allclose(model.get_output_embeddings().bias.exp(), torch.from_numpy(shares).float(), atol=1e-6)


def test_embedding_width_is_none_if_there_are_too_few_rows(model):
    assert embedding_width(model, model.config.vocab_size) == model.config.hidden_size
    assert embedding_width(model, model.config.vocab_size + 1) is None
