"""The prefix LM objective: a bidirectional prefix and left-to-right predictions."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headstart.backbones.decoder import Decoder
from headstart.backbones.encoder_decoder import EncoderDecoder
from headstart.core.data import Rows, Sample, Vocabulary
from headstart.core.errors import RecipeError
from headstart.objectives.prefix_lm import PrefixLM, prefix_mask
from headstart.tokens.tokenizer import add_special

SIZE, MODE = 501, 500
DECODERS = ("gpt2", "llama", "modernbert-decoder")


def synthetic_vocabulary() -> Vocabulary:
    special = (np.arange(SIZE) < 5) | (np.arange(SIZE) == MODE)
    return Vocabulary(SIZE, 0, 2, 3, 4, special=special, starts_word=np.ones(SIZE, dtype=bool), added={"[S]": MODE})


def synthetic_rows(count: int, length: int, seed: int = 0, epoch: int = 0, opens: bool = False) -> Rows:
    ids = np.random.default_rng(seed).integers(5, MODE, size=(count, length))
    if opens:
        ids[:, 0] = 2
    return Rows(ids, [Sample(epoch, index) for index in range(count)])


def decoder(kind: str = "modernbert-decoder", **more) -> torch.nn.Module:
    torch.manual_seed(0)
    backbone = Decoder(Decoder.Config(kind=kind, size="tiny", **more))
    return backbone.build(synthetic_vocabulary(), 32, "AutoModelForCausalLM").eval()


@given(
    length=st.integers(2, 80),
    prefix=st.floats(0.05, 0.95),
    mode=st.sampled_from([None, "[S]"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_encoder_reads_the_prefix_and_decoder_the_rest(length, prefix, mode, seed):
    objective = PrefixLM(prefix=prefix, mode=mode)
    rows = synthetic_rows(3, length, seed)
    batch = objective.corrupt(rows, synthetic_vocabulary(), seed)
    inputs, labels = batch["input_ids"].numpy(), batch["labels"].numpy()
    if mode:
        assert (inputs[:, 0] == MODE).all()
        inputs = inputs[:, 1:]
    assert (np.hstack([inputs, labels]) == rows.ids).all()
    assert inputs.shape[1] >= 1 and labels.shape[1] >= 1
    assert abs(inputs.shape[1] - prefix * length) <= 1
    assert objective.weight(batch) == labels.size
    assert objective.tokens(batch) == 3 * (length + bool(mode))
    shape = objective.row_shape(64)
    assert (shape.length, shape.add_cls, shape.add_sep, shape.separate_documents) == (
        64 - bool(mode),
        False,
        False,
        True,
    )


@given(length=st.integers(2, 80), mode=st.sampled_from([None, "[S]"]), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_each_row_of_an_encoder_decoder_is_cut_at_its_own_point(length, mode, seed):
    objective, rows = PrefixLM(mode=mode), synthetic_rows(5, length, seed)
    batch = objective.corrupt(rows, synthetic_vocabulary(), seed)
    extra = int(bool(mode))
    for row in range(5):
        prefix = batch["input_ids"][row][batch["attention_mask"][row] == 1].tolist()
        rest = batch["labels"][row][batch["weights"][row] == 1].tolist()
        assert prefix[:extra] == [MODE] * extra
        assert prefix[extra:] + rest == rows.ids[row].tolist() and len(prefix) > extra and rest
        alone = objective.corrupt(rows.take(np.asarray([row])), synthetic_vocabulary(), seed)
        assert torch.equal(alone["input_ids"][0], batch["input_ids"][row]), "no other row matters"
    assert objective.tokens(batch) == 5 * (length + extra)
    assert batch["input_ids"].shape[1] == length - 1 + extra and batch["labels"].shape[1] == length - 1


def test_prefix_lengths_of_an_encoder_decoder_are_uniform():
    objective, vocabulary = PrefixLM(), synthetic_vocabulary()
    cuts = objective.corrupt(synthetic_rows(6300, 64), vocabulary, 0)["attention_mask"].sum(1)
    counts = np.bincount(cuts.numpy(), minlength=64)
    assert counts[0] == 0 and (abs(counts[1:] - 100) < 5 * 10).all()
    later = objective.corrupt(synthetic_rows(6300, 64, epoch=1), vocabulary, 0)["attention_mask"].sum(1)
    assert not torch.equal(cuts, later)


@given(length=st.integers(2, 80), mode=st.sampled_from([None, "[S]"]), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_decoder_reads_the_row_and_predicts_the_rest(length, mode, seed):
    objective = PrefixLM(family="decoder", mode=mode)
    rows = synthetic_rows(3, length, seed, opens=True)
    batch = objective.corrupt(rows, synthetic_vocabulary(), seed)
    inputs = batch["input_ids"].numpy()
    extra = int(bool(mode))
    assert (np.delete(inputs, np.arange(1, 1 + extra), axis=1) == rows.ids).all()
    assert (inputs[:, 1 : 1 + extra] == MODE).all()
    for row in range(3):
        cut = int(batch["prefixes"][row])
        assert 1 + extra <= cut <= length - 1 + extra
        assert (batch["labels"][row, :cut] == -100).all()
        assert batch["labels"][row, cut:].tolist() == inputs[row, cut:].tolist()
    assert objective.weight(batch) == int((batch["labels"] != -100).sum())
    assert objective.tokens(batch) == 3 * (length + extra)
    shape = objective.row_shape(64)
    assert (shape.length, shape.add_cls, shape.add_sep, shape.separate_documents) == (64 - extra, True, False, True)


def test_prefix_lengths_of_a_decoder_are_uniform():
    objective, vocabulary = PrefixLM(family="decoder"), synthetic_vocabulary()
    cuts = objective.corrupt(synthetic_rows(6300, 64, opens=True), vocabulary, 0)["prefixes"]
    counts = np.bincount(cuts.numpy(), minlength=64)
    assert counts[0] == 0
    assert (abs(counts[1:] - 100) < 5 * 10).all()
    later = objective.corrupt(synthetic_rows(6300, 64, epoch=1, opens=True), vocabulary, 0)["prefixes"]
    assert not torch.equal(cuts, later)


def test_sep_is_predicted_and_unknown_tokens_are_not():
    row = np.asarray([[2, 10, 11, 12, 13, 3, 1, 14]])
    rows = Rows(row, [Sample(0, 0)])
    batch = PrefixLM(prefix=0.5).corrupt(rows, synthetic_vocabulary(), 0)
    assert batch["labels"].tolist() == [[13, 3, 1, 14]], "the decoder also reads tokens that it does not predict"
    assert batch["weights"].tolist() == [[1, 1, 0, 1]]
    assert PrefixLM().as_inputs(batch)["labels"].tolist() == [[13, 3, -100, 14]]


def test_mask_is_bidirectional_within_the_prefix_only():
    mask = prefix_mask(torch.tensor([1, 3]), 5)
    seen = (mask == 0)[:, 0].long()
    assert torch.equal(seen[0], torch.ones(5, 5).tril().long()), "a prefix of one token is causal attention"
    assert seen[1].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert mask[mask != 0].unique().tolist() == [torch.finfo(torch.float32).min]


def states(model, ids, prefixes):
    mask = prefix_mask(prefixes, ids.shape[1])
    with torch.no_grad():
        return model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state[0]


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_every_decoder_applies_the_mask(kind, attention):
    """A changed token of the prefix affects all positions, a later one only the following positions."""
    model = decoder(kind)
    model.set_attn_implementation(attention)
    ids, prefixes = torch.randint(5, MODE, (1, 12)), torch.tensor([6])
    before = states(model, ids, prefixes)
    for column in range(12):
        changed = ids.clone()
        changed[0, column] = 504 - ids[0, column]
        moved = (states(model, changed, prefixes) - before).abs().amax(-1) > 1e-5
        expected = torch.arange(12) >= (0 if column < 6 else column)
        assert torch.equal(moved, expected), column


@pytest.mark.parametrize("kind", DECODERS)
def test_prefix_of_one_token_is_causal_language_modeling(kind):
    model = decoder(kind)
    ids = torch.randint(5, MODE, (2, 12))
    with torch.no_grad():
        plain = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        masked = model.base_model(
            input_ids=ids, attention_mask=prefix_mask(torch.tensor([1, 1]), 12), use_cache=False
        ).last_hidden_state
    assert torch.allclose(plain, masked, atol=1e-5)


@pytest.mark.parametrize("kind", [*DECODERS, "t5", "bart"])
@pytest.mark.parametrize("mode", [None, "[S]"])
def test_loss_equals_that_of_the_plain_model(kind, mode):
    torch.manual_seed(0)
    is_decoder = kind in DECODERS
    objective = PrefixLM(family="decoder" if is_decoder else "encoder-decoder", mode=mode, chunk=10)
    if is_decoder:
        model = decoder(kind)
    else:
        backbone = EncoderDecoder(EncoderDecoder.Config(kind=kind, size="tiny"))
        model = backbone.build(synthetic_vocabulary(), 32, "AutoModelForSeq2SeqLM").eval()
    batch = objective.corrupt(synthetic_rows(4, 30, opens=is_decoder), synthetic_vocabulary(), 0)
    with torch.no_grad():
        ours = objective.loss(model, batch).item() / objective.weight(batch)
        theirs = model(**objective.as_inputs(batch)).loss.item()
        with torch.autocast("cpu", torch.bfloat16):
            half = objective.loss(model, batch).item() / objective.weight(batch)
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert half == pytest.approx(ours, rel=2e-2)


@pytest.mark.parametrize("side", ["right", "left"])
def test_collator_masks_padding(side, verses, tiny_tokenizer):
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.padding_side = side
    objective = PrefixLM(family="decoder", mode="[S]")
    vocabulary = add_special(tokenizer, objective.special_tokens())
    examples = [{"input_ids": tokenizer(text)["input_ids"]} for text in verses[:6]]
    batch = objective.collator(tokenizer)(examples)
    width = batch["input_ids"].shape[1]
    seen = (batch["attention_mask"] == 0)[:, 0]
    for row, example in enumerate(examples):
        length = len(example["input_ids"]) + 1
        text = slice(width - length, width) if side == "left" else slice(0, length)
        assert batch["input_ids"][row, text].tolist() == [
            tokenizer.cls_token_id, vocabulary.added["[S]"], *example["input_ids"][1:]
        ]  # fmt: skip
        hidden = torch.ones(width, dtype=torch.bool)
        hidden[text] = False
        assert not seen[row][:, hidden].any()
        within = seen[row][text, text]
        assert torch.equal(within | torch.ones_like(within).tril(), within), "a position attends to all before it"
        opened = int(within[0].sum())
        labels = batch["labels"][row, text]
        assert (labels[:opened] == -100).all() and labels[-1] == tokenizer.sep_token_id


def test_an_instance_trains_one_family():
    assert PrefixLM.families == ("encoder-decoder", "decoder")
    assert PrefixLM().families == ("encoder-decoder",)
    assert PrefixLM(family="decoder").families == ("decoder",)


def test_sliding_window_attention_raises():
    def make(auto_class, part="", scale=1.0, **changes):
        return Decoder(Decoder.Config(size="tiny", max_length=1024)).build(synthetic_vocabulary(), 32, auto_class)

    with pytest.raises(RecipeError, match=r"sliding-window attention.*backbone\.max_length` to 512 or less"):
        PrefixLM(family="decoder").assemble(make)


@pytest.mark.parametrize("wrong", [{"prefix": 0}, {"prefix": 1}, {"family": "encoder"}, {"mode": ""}, {"chunk": 0}])
def test_invalid_settings_raise(wrong):
    with pytest.raises(ValidationError):
        PrefixLM(**wrong)
