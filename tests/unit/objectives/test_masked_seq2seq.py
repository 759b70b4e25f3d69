"""Masked sequence to sequence: one span of a row, masked in the encoder and written by the decoder."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from headstart.backbones.encoder_decoder import EncoderDecoder
from headstart.core.data import Rows, Sample, Vocabulary
from headstart.objectives.masked_seq2seq import MaskedSeq2Seq

PAD, UNK, CLS, SEP, MASK, SIZE = 0, 1, 2, 3, 4, 100
SPECIAL = np.arange(SIZE) < 5
VOCABULARY = Vocabulary(SIZE, pad=PAD, cls=CLS, sep=SEP, mask=MASK, special=SPECIAL, starts_word=~SPECIAL)


def rows_of(ids: np.ndarray, epoch: int = 0) -> Rows:
    return Rows(ids, [Sample(epoch, index) for index in range(len(ids))])


def text(count: int, length: int = 8, seed: int = 0) -> np.ndarray:
    """Return rows of distinct ordinary tokens that end with [SEP]."""
    rng = np.random.default_rng(seed)
    ids = np.stack([5 + rng.permutation(SIZE - 5)[:length] for _ in range(count)])
    ids[:, -1] = SEP
    return ids


def model(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    backbone = EncoderDecoder(EncoderDecoder.Config(kind=kind, size="tiny", dropout=0.0))
    return backbone.build(VOCABULARY, 16, "AutoModelForSeq2SeqLM").eval()


def test_the_span_is_contiguous_masked_in_the_encoder_and_predicted_whole():
    ids = text(200, 16)
    batch = MaskedSeq2Seq(mask=1.0, random=0.0).corrupt(rows_of(ids), VOCABULARY, 0)
    positions, shown = batch["positions"].numpy(), batch["input_ids"].numpy()
    assert positions.shape == (200, 8), "half of the row"
    assert (np.diff(positions, axis=1) == 1).all() and positions.min() == 0 and positions.max() == 15
    starts = np.bincount(positions[:, 0], minlength=9)
    assert len(starts) == 9 and starts.min() > 5, "every start is possible"
    inside = np.zeros(ids.shape, dtype=bool)
    np.put_along_axis(inside, positions, True, axis=1)
    assert (shown[~inside] == ids[~inside]).all()
    assert (shown[inside & (ids != SEP)] == MASK).all() and (shown[ids == SEP] == SEP).all()
    assert (batch["labels"].numpy() == np.take_along_axis(ids, positions, axis=1)).all()
    assert (batch["weights"] == 1).all()


def test_replacements_have_the_fractions_of_the_paper():
    ids = text(3000, 32)
    batch = MaskedSeq2Seq().corrupt(rows_of(ids), VOCABULARY, 0)
    shown = batch["input_ids"].gather(1, batch["positions"])
    labels = batch["labels"]
    ordinary = labels != SEP
    masked, kept = ((shown == value)[ordinary].float().mean().item() for value in (MASK, labels))
    assert masked == pytest.approx(0.8, abs=0.01)
    assert kept == pytest.approx(0.1 + 0.1 / 95, abs=0.01), "a random token may be the same one"
    assert not SPECIAL[shown[ordinary & (shown != MASK)].numpy()].any()


@pytest.mark.parametrize(("span", "length", "expected"), [(0.5, 64, 32), (0.5, 7, 4), (0.01, 16, 1), (1.0, 16, 16)])
def test_the_length_of_the_span(span, length, expected):
    batch = MaskedSeq2Seq(span=span).corrupt(rows_of(text(3, length)), VOCABULARY, 0)
    assert batch["labels"].shape == (3, expected)


def test_special_tokens_stay_and_only_sep_is_predicted():
    ids = text(50, 16)
    ids[:, 5], ids[:, 9] = UNK, SEP
    batch = MaskedSeq2Seq(span=1.0, mask=1.0, random=0.0).corrupt(rows_of(ids), VOCABULARY, 0)
    assert (batch["input_ids"].numpy()[:, [5, 9, 15]] == [UNK, SEP, SEP]).all()
    assert (batch["weights"][:, 5] == 0).all() and (batch["weights"][:, [9, 15]] == 1).all()
    assert (MaskedSeq2Seq().as_inputs(batch)["labels"][:, 5] == -100).all()


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_the_decoder_reads_the_previous_tokens_of_the_span_and_nothing_else(kind):
    """The figure of the paper: for the span x3 … x6, the decoder reads `_ _ _ x3 x4 x5` and predicts x3 … x6."""
    objective, network = MaskedSeq2Seq(mask=1.0, random=0.0), model(kind)
    ids = text(4)
    batch = objective.corrupt(rows_of(ids), VOCABULARY, 0)
    read = []
    hook = network.get_decoder().register_forward_pre_hook(
        lambda _, __, inputs: read.append(inputs["input_ids"]), with_kwargs=True
    )
    loss = objective.loss(network, batch)
    hook.remove()
    for row, positions in enumerate(batch["positions"].tolist()):
        expected = [PAD] * len(ids[row])
        expected[0] = network.config.decoder_start_token_id
        for column in positions[:-1]:
            expected[column + 1] = int(ids[row, column])
        end = positions[-1] + 1  # later positions predict nothing, and causal attention hides them from the span
        assert read[0][row].tolist()[:end] == expected[:end]
    inputs = objective.as_inputs(batch)
    with torch.no_grad():
        logits = network(**inputs).logits
    reference = F.cross_entropy(logits.flatten(0, 1), inputs["labels"].flatten(), ignore_index=-100, reduction="sum")
    assert loss.item() == pytest.approx(reference.item(), rel=1e-5), "the plain model has the same loss"


def test_fractions_above_one_are_refused():
    with pytest.raises(ValidationError, match="at most 1"):
        MaskedSeq2Seq(mask=0.8, random=0.3)
