"""The bidirectional LM objective: labels, predicting states and memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.backbones.lstm import BiLM
from headstart.core.data import Rows, Sample, Vocabulary
from headstart.core.vocabulary import vocabulary_of
from headstart.objectives.bilm import BidirectionalLM

SIZE = 300
SPECIAL = np.arange(SIZE) < 5
VOCABULARY = Vocabulary(SIZE, 0, 2, 3, 4, special=SPECIAL, starts_word=~SPECIAL)


def synthetic_rows(count: int, length: int, seed: int = 0) -> Rows:
    ids = np.random.default_rng(seed).integers(5, SIZE, size=(count, length))
    ids[:, 0], ids[:, -1] = 2, 3
    ids[0, length // 2] = 3
    return Rows(ids, [Sample(0, index) for index in range(count)])


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return BiLM(BiLM.Config(size="tiny")).build(VOCABULARY, 64, "AutoModelForPreTraining").eval()


@given(length=st.integers(3, 64), seed=st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_every_ordinary_token_with_two_neighbors_is_predicted(length, seed):
    rows = synthetic_rows(3, length, seed)
    batch = BidirectionalLM().corrupt(rows, VOCABULARY, seed)
    assert (batch["input_ids"].numpy() == rows.ids).all()
    expected = np.where(SPECIAL[rows.ids], -100, rows.ids)
    assert (batch["labels"].numpy() == expected).all()
    bare = Rows(rows.ids[:, 1:-1], rows.samples)
    if length > 3:
        labels = BidirectionalLM().corrupt(bare, VOCABULARY, seed)["labels"]
        assert (labels[:, [0, -1]] == -100).all(), "a token without a neighbor cannot be predicted"


@pytest.mark.parametrize("chunk", [1, 7, 1024])
def test_the_loss_is_the_mean_of_both_directions(model, chunk):
    objective = BidirectionalLM(chunk=chunk)
    batch = objective.corrupt(synthetic_rows(2, 16), VOCABULARY, 0)
    with torch.no_grad():
        logits = model(batch["input_ids"]).logits.log_softmax(-1)
        actual, measured = objective.loss(model, batch).item(), objective.measure(model, batch)
        mean = model(batch["input_ids"], labels=batch["labels"]).loss.item()
    expected, hits = 0.0, 0.0
    for row, ids in enumerate(batch["input_ids"].tolist()):
        for index, token in enumerate(ids):
            if not SPECIAL[token]:
                expected -= (logits[row, index - 1, 0, token] + logits[row, index + 1, 1, token]).item() / 2
                hits += (logits[row, index - 1, 0].argmax() == token).item() / 2
                hits += (logits[row, index + 1, 1].argmax() == token).item() / 2
    assert objective.weight(batch) == 27
    assert actual == pytest.approx(expected, rel=1e-5)
    assert mean * 27 == pytest.approx(expected, rel=1e-5)
    assert measured == pytest.approx({"loss": expected, "accuracy": hits}, rel=1e-5)


def test_gradients_equal_those_of_full_logits(model):
    objective = BidirectionalLM(chunk=5)
    batch = objective.corrupt(synthetic_rows(2, 16), VOCABULARY, 0)
    objective.loss(model, batch).backward()
    actual = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    (model(batch["input_ids"], labels=batch["labels"]).loss * objective.weight(batch)).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(actual[name], parameter.grad, atol=1e-5, rtol=1e-4)
    model.zero_grad()


def test_full_logits_are_never_in_memory(monkeypatch):
    torch.manual_seed(0)
    network = BiLM(BiLM.Config(size="tiny")).build(VOCABULARY, 64, "AutoModelForPreTraining")
    objective = BidirectionalLM(chunk=10)
    batch = objective.corrupt(synthetic_rows(4, 32), VOCABULARY, 0)
    sizes = []
    plain = network.get_output_embeddings().forward

    def watched(states):
        sizes.append(states.shape[:-1].numel())
        return plain(states)

    monkeypatch.setattr(network.get_output_embeddings(), "forward", watched)
    objective.loss(network, batch).backward()
    objective.measure(network, batch)
    assert max(sizes) == 10 and len(sizes) >= 2 * 24


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_does_not_change_the_output(side, verses, tiny_tokenizer):
    torch.manual_seed(0)
    network = BiLM(BiLM.Config(size="tiny")).build(vocabulary_of(tiny_tokenizer), 64, "AutoModelForPreTraining").eval()
    texts = sorted(verses[:20], key=len)
    examples = [
        {"input_ids": tiny_tokenizer(texts[index], truncation=True, max_length=64)["input_ids"]} for index in (0, 19)
    ]
    before = tiny_tokenizer.padding_side
    tiny_tokenizer.padding_side = side
    try:
        collator = BidirectionalLM().collator(tiny_tokenizer)
        together, alone = collator(examples), [collator([example]) for example in examples]
    finally:
        tiny_tokenizer.padding_side = before
    with torch.no_grad():
        losses = [network(**one).loss.item() * int((one["labels"] != -100).sum()) for one in (together, *alone)]
    assert losses[0] == pytest.approx(sum(losses[1:]), rel=1e-5)


def test_runs_in_bf16(model):
    objective = BidirectionalLM()
    batch = objective.corrupt(synthetic_rows(4, 48), VOCABULARY, 0)
    exact = objective.loss(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        rough = objective.loss(model, batch)
    rough.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    model.zero_grad()
    assert rough.item() == pytest.approx(exact.item(), rel=0.01)
