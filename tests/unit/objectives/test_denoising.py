"""The denoising objective: inputs of the encoder and labels of the decoder."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headstart.backbones.decoder import Decoder
from headstart.backbones.encoder_decoder import EncoderDecoder
from headstart.core.data import Document, Rows, Sample, Vocabulary
from headstart.core.errors import RecipeError
from headstart.core.vocabulary import vocabulary_of
from headstart.objectives.denoising import Denoising
from headstart.tokens import shards
from headstart.tokens.rows import cut

PAD, UNK, CLS, SEP, MASK, SIZE = 0, 1, 2, 3, 4, 400
SPECIAL = np.arange(SIZE) < 5
VOCABULARY = Vocabulary(SIZE, pad=PAD, cls=CLS, sep=SEP, mask=MASK, special=SPECIAL, starts_word=~SPECIAL)
NOISES = ("token_mask", "token_delete", "infill", "sentence_shuffle", "rotate")


def synthetic_rows(count: int = 6, length: int = 64, seed: int = 0, epoch: int = 0) -> Rows:
    """Return rows of distinct tokens, with two documents and sentences of about ten tokens."""
    rng = np.random.default_rng(seed)
    ids = np.stack([5 + rng.permutation(SIZE - 5)[:length] for _ in range(count)])
    ids[:, 0], ids[:, -1] = CLS, SEP
    ids[:, 40] = SEP
    starts = [np.sort(rng.permutation(np.arange(2, length - 1))[: length // 10]) for _ in range(count)]
    return Rows(ids, [Sample(epoch, index) for index in range(count)], starts)


def read(batch, row: int) -> np.ndarray:
    return batch["input_ids"][row][batch["attention_mask"][row] > 0].numpy()


@given(
    noise=st.lists(st.sampled_from(NOISES), min_size=1, max_size=4),
    rate=st.floats(0.05, 0.9),
    length=st.integers(44, 80),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_inputs_are_a_subset_of_the_row_and_labels_are_the_row(noise, rate, length, seed):
    rows = synthetic_rows(3, length, seed)
    batch = Denoising(noise=noise, rate=rate).corrupt(rows, VOCABULARY, seed)
    assert batch["input_ids"].shape == batch["attention_mask"].shape == rows.ids.shape
    assert (batch["labels"].numpy() == rows.ids[:, 1:]).all() and (batch["weights"] == 1).all()
    for row, ids in enumerate(rows.ids):
        shown = read(batch, row)
        assert (batch["input_ids"][row, len(shown) :] == PAD).all(), "padding comes last"
        assert shown[0] == CLS and shown[-1] == SEP and (shown == SEP).sum() == 2
        kept = shown[~np.isin(shown, (CLS, SEP, MASK))]
        assert len(set(kept)) == len(kept)
        border = int(np.flatnonzero(shown == SEP)[0])
        assert np.isin(shown[1:border], [*ids[1:40], MASK]).all(), "no token leaves its document"
        assert np.isin(shown[border + 1 : -1], [*ids[41:-1], MASK]).all()


@pytest.mark.parametrize("noise", NOISES)
def test_each_noise(noise):
    rows = synthetic_rows(20)
    batch = Denoising(noise=[noise]).corrupt(rows, VOCABULARY, 0)
    budget = round(0.3 * 61)
    changed = 0
    for row, ids in enumerate(rows.ids):
        shown = read(batch, row)
        masks, kept = int((shown == MASK).sum()), int((shown > MASK).sum())
        changed += not np.array_equal(shown, ids)
        if noise == "token_mask":
            assert (masks, kept) == (budget, 61 - budget) and (shown[shown != MASK] == ids[shown != MASK]).all()
        elif noise == "token_delete":
            assert (masks, kept) == (0, 61 - budget) and np.isin(ids, shown).sum() == len(shown)
        elif noise == "infill":
            assert kept == 61 - budget and 1 <= masks < budget
        else:
            assert (masks, kept) == (0, 61) and sorted(shown) == sorted(ids)
    assert changed == 20
    shown = read(batch, 0)
    order = [int(np.flatnonzero(rows.ids[0] == token)[0]) for token in shown if token > MASK]
    steps = np.diff(order)
    if noise in ("token_mask", "token_delete", "infill"):
        assert (steps > 0).all()
    if noise == "rotate":
        assert (steps < 0).sum() <= 2, "each document is rotated once"
    if noise == "sentence_shuffle":
        starts = {1, 41, *rows.sentence_starts[0].tolist()}
        assert all(following in starts for following, step in zip(order[1:], steps, strict=True) if step != 1)


def test_order_of_noises_matters():
    """Tokens deleted before masking leave fewer tokens to mask."""
    rows = synthetic_rows()
    masked_first, dropped_first = (
        Denoising(noise=noise).corrupt(rows, VOCABULARY, 0)
        for noise in (["token_mask", "token_delete"], ["token_delete", "token_mask"])
    )
    rest = 61 - round(0.3 * 61)
    assert (masked_first["input_ids"] == MASK).sum(1).tolist() == [round(0.3 * 61)] * 6
    assert (dropped_first["input_ids"] == MASK).sum(1).tolist() == [round(0.3 * rest)] * 6


def test_unknown_tokens_are_kept_and_not_predicted():
    rows = synthetic_rows()
    rows.ids[:, 5::7] = np.where(rows.ids[:, 5::7] == SEP, SEP, UNK)
    unknown = (rows.ids == UNK).sum(1)
    batch = Denoising(noise=list(NOISES), rate=0.6).corrupt(rows, VOCABULARY, 0)
    assert ((batch["input_ids"] == UNK).sum(1).numpy() == unknown).all()
    assert (batch["weights"] == 0).equal(batch["labels"] == UNK)
    assert (Denoising().as_inputs(batch)["labels"] == -100).equal(batch["labels"] == UNK)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_loss_equals_that_of_the_plain_model(kind):
    torch.manual_seed(0)
    model = EncoderDecoder(EncoderDecoder.Config(kind=kind, size="tiny")).build(VOCABULARY, 64, "AutoModelForSeq2SeqLM")
    objective = Denoising(chunk=50)
    batch = objective.corrupt(synthetic_rows(3), VOCABULARY, 0)
    with torch.no_grad():
        actual, measured = objective.loss(model.eval(), batch).item(), objective.measure(model, batch)
        logits = model(**objective.as_inputs(batch)).logits
    expected = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum").item()
    assert actual == pytest.approx(expected, rel=1e-5)
    assert measured["loss"] == pytest.approx(expected, rel=1e-5)
    assert objective.weight(batch) == 3 * 63
    padded = {**batch, "input_ids": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, 99)}
    with torch.no_grad():
        assert objective.loss(model, padded).item() == pytest.approx(expected, rel=1e-5), "padding is not read"


def test_sentences_of_real_rows_are_shuffled(tmp_path, verses, tiny_tokenizer):
    texts = (" ".join(verses[start : start + 12]) for start in range(0, 600, 12))
    shards.write((Document(str(number), text) for number, text in enumerate(texts)), tiny_tokenizer, tmp_path)
    vocabulary = vocabulary_of(tiny_tokenizer)
    objective = Denoising(noise=["sentence_shuffle"])
    rows = cut(shards.Shards(tmp_path), vocabulary, objective.row_shape(128)).rows([Sample(0, i) for i in range(30)])
    assert objective.row_shape(128).sentence_starts and not Denoising(noise=["infill"]).row_shape(128).sentence_starts
    batch = objective.corrupt(rows, vocabulary, 0)
    shown = batch["input_ids"].numpy()
    special = vocabulary.special[rows.ids] & (rows.ids != tiny_tokenizer.unk_token_id)
    assert (shown[special] == rows.ids[special]).all()
    assert (np.sort(shown, axis=1) == np.sort(rows.ids, axis=1)).all()
    assert (shown != rows.ids).any(axis=1).mean() > 0.6, "rows of one or two sentences may not change"


def test_collator_with_only_sentence_shuffle_raises(verses, tiny_tokenizer):
    tokenizer = copy.deepcopy(tiny_tokenizer)
    examples = [{"input_ids": ids} for ids in tokenizer(verses[:4])["input_ids"]]
    with pytest.raises(RecipeError, match="only sentence_shuffle"):
        Denoising(noise=["sentence_shuffle"]).collator(tokenizer)
    batch = Denoising(noise=["sentence_shuffle", "token_delete"]).collator(tokenizer)(examples)
    for row, example in enumerate(examples):
        shown = batch["input_ids"][row][batch["attention_mask"][row] > 0].tolist()
        rest = iter(example["input_ids"])
        assert all(token in rest for token in shown), "the text in its order, with gaps"
        written = batch["labels"][row][batch["labels"][row] != -100].tolist()
        assert written == [token for token in example["input_ids"][1:] if token != tokenizer.unk_token_id]


def test_labels_of_a_block_without_cls_are_the_whole_block():
    rows = Rows(np.arange(10, 40)[None], [Sample(0, 0)])
    batch = Denoising(noise=["infill"]).corrupt(rows, VOCABULARY, 0)
    assert (batch["labels"].numpy() == rows.ids).all()


@pytest.mark.parametrize("wrong", [{"noise": []}, {"noise": ["infil"]}, {"rate": 0}, {"poisson": 0}])
def test_invalid_settings_raise(wrong):
    with pytest.raises(ValidationError):
        Denoising(**wrong)


@pytest.mark.parametrize("prefix", [False, True])
def test_a_decoder_reads_the_corrupted_row_and_predicts_the_original(prefix, tiny_tokenizer):
    vocabulary = vocabulary_of(tiny_tokenizer)
    objective = Denoising(family="decoder", bidirectional_prefix=prefix, noise=["infill"])
    length = objective.row_shape(64).length
    ids = np.random.default_rng(0).integers(5, vocabulary.size, (4, length))
    ids[:, 0], ids[:, -1] = vocabulary.cls, vocabulary.sep
    rows = Rows(ids, [Sample(0, n) for n in range(4)])
    batch, pair = objective.corrupt(rows, vocabulary, 0), Denoising(noise=["infill"]).corrupt(rows, vocabulary, 0)
    assert batch["input_ids"].shape == (4, 2 * length - 1) and 2 * length - 1 <= 64
    for row in range(4):
        start = int(pair["attention_mask"][row].sum())
        end = start + length - 1
        assert torch.equal(batch["input_ids"][row, :start], pair["input_ids"][row, :start])
        assert batch["input_ids"][row, start:end].tolist() == ids[row, 1:].tolist()
        assert (batch["input_ids"][row, end:] == vocabulary.pad).all() and (batch["weights"][row, end:] == 0).all()
        assert (batch["weights"][row, :start] == 0).all() and (batch["weights"][row, start:end] == 1).all()
        assert not prefix or int(batch["prefixes"][row]) == start
    model = Decoder(Decoder.Config(kind="llama", size="tiny")).build(vocabulary, 64, "AutoModelForCausalLM").eval()
    with torch.no_grad():
        ours = objective.loss(model, batch).item() / objective.weight(batch)
        theirs = model(**objective.as_inputs(batch)).loss.item()
    assert ours == pytest.approx(theirs, rel=1e-5)
