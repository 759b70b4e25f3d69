"""Likelihoods of texts against a second computation of them, one token at a time, and against minicons."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from minicons import scorer

from headstart.stages.probe.likelihood import label_log_probs, log_likelihoods
from headstart.stages.probe.probe import data_file, read_columns, sample


def one_by_one(network, text, within_words=True):
    """The log-likelihood of a text, with one forward pass for each token and the logits of all positions."""
    tokenizer, total = network.tokenizer, 0.0
    if network.family == "decoder":
        ids = [tokenizer.bos_token_id, *tokenizer(text)["input_ids"]]
        for end in range(1, len(ids)):
            logits = network.model(input_ids=torch.tensor([ids[:end]])).logits[0, -1]
            total += float(logits.log_softmax(-1)[ids[end]])
        return total
    encoded = tokenizer(text)
    words = encoded.word_ids()
    for i, word in enumerate(words):
        if word is not None:
            ids = torch.tensor([encoded["input_ids"]])
            hidden = [j for j in range(i, len(words)) if words[j] == word] if within_words else [i]
            ids[0, hidden] = tokenizer.mask_token_id
            total += float(network.model(input_ids=ids).logits[0, i].log_softmax(-1)[encoded["input_ids"][i]])
    return total


@pytest.fixture(params=["encoder", "modernbert", "decoder"])
def network(request, network_of, checkpoint, decoder_folder):
    folders = {"encoder": "bert", "modernbert": "modernbert"}
    return network_of(checkpoint(folders[request.param]) if request.param in folders else decoder_folder)


@torch.no_grad()
def test_batches_give_what_single_tokens_give(network, sentences):
    expected = [one_by_one(network, text) for text in sentences]
    assert log_likelihoods(network, sentences) == pytest.approx(expected, abs=1e-4)


@torch.no_grad()
def test_the_later_tokens_of_a_word_are_hidden(network_of, encoder_folder):
    network, word = network_of(encoder_folder), "Nebuchadnezzar"
    assert len(network.tokenizer(word, add_special_tokens=False)["input_ids"]) > 2
    (value,) = log_likelihoods(network, [word])
    assert value == pytest.approx(one_by_one(network, word), abs=1e-4)
    assert abs(value - one_by_one(network, word, within_words=False)) > 1e-3


def test_a_large_vocabulary_costs_no_precision():
    """`log_softmax` in single precision is off by 4e-6 for each token here, and always to the same side."""
    logits = 4 * torch.randn(100, 49152, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(100)
    exact = logits.double().log_softmax(-1).gather(1, labels[:, None])[:, 0]
    assert abs(float((label_log_probs(logits, labels) - exact).mean())) < 5e-7


def test_equal_tokens_give_exactly_the_same_value_in_any_batch(network, sentences):
    first, *_, last = log_likelihoods(network, [sentences[0], *sentences[1:] * 3, sentences[0]])
    assert first == last


def test_a_text_that_is_too_long_has_no_value_and_the_others_keep_theirs(network, sentences):
    values = log_likelihoods(network, [sentences[0], "in " * 5000, sentences[1]])
    assert math.isnan(values[1])
    assert [values[0], values[2]] == pytest.approx(log_likelihoods(network, sentences[:2]), abs=1e-4)
    assert math.isnan(log_likelihoods(network, ["in " * 5000])[0])


def minicons_values(network, texts):
    """The log-likelihoods of the reference."""
    if network.family == "decoder":
        reference = scorer.IncrementalLMScorer(network.model, "cpu", tokenizer=network.tokenizer)
        parts = [texts[i : i + 50] for i in range(0, len(texts), 50)]
        settings = {"reduction": lambda x: x.sum(0).item(), "bos_token": True}
        return [value for part in parts for value in reference.sequence_score(part, **settings)]
    reference = scorer.MaskedLMScorer(network.model, "cpu", tokenizer=network.tokenizer)
    # Encoded here, as minicons calls a method of tokenizers that transformers 5 removed.
    encoded = [network.tokenizer([text]) for text in texts]
    settings = {"reduction": lambda x: x.sum(0).item(), "PLL_metric": "within_word_l2r"}
    return [value for text in encoded for value in reference.sequence_score(text, **settings)]


def test_minicons_gives_the_same_values(network, sentences):
    assert log_likelihoods(network, sentences) == pytest.approx(minicons_values(network, sentences), abs=1e-4)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("folder", [name for name in os.environ.get("HEADSTART_PROBED", "").split(os.pathsep) if name])
def test_minicons_gives_the_same_values_for_pairs_of_blimp(folder, network_of):
    """HEADSTART_PROBED has the folders of language models, HEADSTART_DATA the data, HEADSTART_PAIRS a number of pairs.

    By default there are 1,000 pairs; `-s` shows the largest difference.
    """
    path = data_file("probes/blimp.parquet")
    if path is None:
        pytest.skip("set HEADSTART_DATA to a folder with probes/blimp.parquet (`python recipes/data.py blimp`)")
    rows = read_columns(path, ("good", "bad"))
    count = int(os.environ.get("HEADSTART_PAIRS", "1000"))
    pairs = [rows[i] for i in sample(len(rows), count, 0, "pairs for minicons")]
    texts = [pair[side] for pair in pairs for side in ("good", "bad")]
    network = network_of(Path(folder).absolute())
    found, expected = (np.array(scores(network, texts)) for scores in (log_likelihoods, minicons_values))
    prefers = [float(((values[::2] - values[1::2]) > 0).mean()) for values in (found, expected)]
    print(f"\n{folder}: largest difference {np.abs(found - expected).max():.1e} nats, accuracies {prefers}")
    assert found == pytest.approx(expected, abs=1e-4)
