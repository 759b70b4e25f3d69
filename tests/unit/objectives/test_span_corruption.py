"""The span-corruption objective: T5's arithmetic, random partitions and reconstruction of the row."""

from __future__ import annotations

import copy
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headstart.backbones.decoder import Decoder
from headstart.backbones.encoder_decoder import EncoderDecoder
from headstart.core.data import Rows, Sample, Vocabulary
from headstart.core.errors import ArtifactError, RecipeError
from headstart.objectives.span_corruption import SpanCorruption
from headstart.tokens.tokenizer import add_special

TEXT, SEP = 500, 3


def synthetic_vocabulary(objective: SpanCorruption) -> Vocabulary:
    """Return a vocabulary of five special tokens, 495 text tokens and the objective's special tokens."""
    added = {token: TEXT + number for number, token in enumerate(objective.special_tokens())}
    size = TEXT + len(added)
    special = (np.arange(size) < 5) | (np.arange(size) >= TEXT)
    return Vocabulary(size, 0, 2, SEP, 4, special=special, starts_word=np.ones(size, dtype=bool), added=added)


def synthetic_rows(count: int, length: int, seed: int = 0) -> Rows:
    ids = np.random.default_rng(seed).integers(5, TEXT, size=(count, length))
    return Rows(ids, [Sample(0, index) for index in range(count)])


def rebuilt(inputs, targets, sentinels):
    """Replace the sentinels in the inputs by the spans of the targets."""
    assert inputs[-1] == targets[-1] == SEP
    spans: dict[int, list[int]] = {}
    for token in targets[:-1]:
        if token in sentinels:
            spans[token] = []
        else:
            spans[next(reversed(spans))].append(token)
    pieces = [spans[token] if token in sentinels else [token] for token in inputs[:-1]]
    assert list(spans) == sorted(spans) == [token for token in inputs if token in sentinels], "in the same order"
    return [token for piece in pieces for token in piece]


@given(
    length=st.integers(0, 400), density=st.floats(0.02, 0.5), mean=st.floats(1, 20), seed=st.integers(0, 2**31),
    mode=st.sampled_from([None, "[R]"]),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_inputs_and_targets_reconstruct_the_row(length, density, mean, seed, mode):
    objective = SpanCorruption(density=density, mean_length=mean, sentinels=250, mode=mode)
    rows, vocabulary = synthetic_rows(3, length, seed), synthetic_vocabulary(objective)
    batch = objective.corrupt(rows, vocabulary, seed)
    sentinels = set(range(TEXT, TEXT + 250))
    for row in range(3):
        inputs, targets = batch["input_ids"][row].tolist(), batch["labels"][row].tolist()
        if mode:
            assert inputs.pop(0) == vocabulary.added[mode]
        assert rebuilt(inputs, targets, sentinels) == rows.ids[row].tolist()
        assert inputs[0] not in sentinels, "a row starts with kept text"
    assert (batch["weights"] == 1).all()
    assert objective.weight(batch) == batch["labels"].numel()
    assert objective.tokens(batch) == batch["input_ids"].numel() + batch["labels"].numel()


@given(length=st.integers(2, 600), density=st.floats(0.02, 0.5), mean=st.floats(1, 20))
@settings(max_examples=100, deadline=None)
def test_density_and_number_of_spans_are_exact_in_every_row(length, density, mean):
    objective = SpanCorruption(density=density, mean_length=mean, sentinels=400)
    batch = objective.corrupt(synthetic_rows(2, length), synthetic_vocabulary(objective), 0)
    expected = objective.counts(length)
    assert batch["input_ids"].shape == (2, expected.inputs) and batch["labels"].shape == (2, expected.targets)
    assert abs(expected.noise - density * length) <= 0.5 or expected.noise == 1
    for row in range(2):
        marks = batch["labels"][row] >= TEXT
        assert int(marks.sum()) == expected.spans == int((batch["input_ids"][row] >= TEXT).sum())
        assert int((~marks).sum()) - 1 == expected.noise
    if expected.noise >= 2 * mean and length - expected.noise > expected.spans:
        assert expected.noise / expected.spans == pytest.approx(mean, rel=0.5)


@pytest.mark.parametrize(
    ("seq_length", "density", "mean", "raw", "targets"),
    [(512, 0.15, 3.0, 568, 114), (512, 0.5, 3.0, 766, 512), (512, 0.15, 8.0, 588, 100), (512, 0.5, 64.0, 1006, 512)],
)
def test_lengths_equal_t5s(seq_length, density, mean, raw, targets):
    """568 and 114 are published by T5; the others are UL2's denoisers with the same computation."""
    objective = SpanCorruption(density=density, mean_length=mean, sentinels=300)
    assert objective.row_shape(seq_length).length == raw
    actual = objective.counts(raw)
    assert (actual.inputs, actual.targets) == (seq_length, targets)


def published_lengths(inputs_length, density, mean):
    """Return T5's sizes, from the description of `random_spans_helper`: the longest text whose inputs fit."""

    def lengths(tokens):
        noise = round(tokens * density)
        spans = round(noise / mean)
        return tokens - noise + spans + 1, noise + spans + 1

    tokens = inputs_length - 1
    while lengths(tokens + 1)[0] <= inputs_length:
        tokens += 1
    inputs, targets = lengths(tokens)
    if density == 0.5 and targets > inputs:
        tokens, targets = tokens - 1, targets - 1
    return tokens, inputs, targets


@given(
    seq_length=st.integers(24, 2048),
    density=st.sampled_from([0.1, 0.15, 0.25, 0.5]),
    mean=st.sampled_from([2.0, 3.0, 5.0, 10.0]),
)
@settings(max_examples=200, deadline=None)
def test_nothing_is_ever_padded(seq_length, density, mean):
    """The densities and lengths of T5's tables 6 and 7."""
    objective = SpanCorruption(density=density, mean_length=mean, sentinels=1000)
    shape = objective.row_shape(seq_length)
    assert not (shape.add_cls or shape.add_sep or shape.separate_documents)
    actual = objective.counts(shape.length)
    assert actual.inputs == seq_length
    assert actual.targets <= seq_length
    tokens, inputs, targets = published_lengths(seq_length, density, mean)
    # At 0.5, reducing an odd length by one can remove a span, which the original ignores.
    spans = {round(round(length * density) / mean) for length in (tokens, tokens + 1)}
    if len(spans) == 1 and spans != {0}:
        assert (shape.length, actual.inputs, actual.targets) == (tokens, inputs, targets)
    with_mode = SpanCorruption(density=density, mean_length=mean, sentinels=1000, mode="[X]")
    assert with_mode.counts(with_mode.row_shape(seq_length).length).inputs == seq_length


def runs(flags):
    """Return the runs of equal flags as (flag, length)."""
    edges = np.flatnonzero(np.diff(flags)) + 1
    return [(bool(piece[0]), len(piece)) for piece in np.split(flags, edges)]


def test_lengths_of_spans_and_gaps_follow_a_random_partition():
    """A part of a random partition of n into s parts has size k with probability C(n-k-1, s-2) / C(n-1, s-1)."""
    objective = SpanCorruption()
    length, rows = 142, 4000
    noise, spans, *_ = objective.counts(length)
    assert (noise, spans) == (21, 7)
    actual: dict[bool, Counter[int]] = {True: Counter(), False: Counter()}
    position: Counter[int] = Counter()
    for index in range(rows):
        cut, opens = objective._spans(np.zeros(length, dtype=bool), np.random.default_rng(index))
        pieces = runs(cut)
        assert opens.sum() == spans and cut[opens].all()
        assert len(pieces) == 2 * spans and not pieces[0][0]
        for flag, size in pieces:
            actual[flag][size] += 1
        position.update(np.flatnonzero(cut).tolist())
    for flag, total in ((True, noise), (False, length - noise)):
        assert sum(actual[flag].values()) == rows * spans
        for size in range(1, total - spans + 2):
            probability = math.comb(total - size - 1, spans - 2) / math.comb(total - 1, spans - 1)
            expected = rows * spans * probability
            # Parts of one row are negatively correlated, so independent draws would have a larger variance.
            assert abs(actual[flag][size] - expected) < 5 * math.sqrt(expected) + 3, (flag, size)
    assert (position[0], position[length - 1]) == (0, rows), "the first token is always kept, the last always removed"
    assert sum(position.values()) == rows * noise


def test_density_over_100_000_tokens():
    objective = SpanCorruption()
    rows, length = 200, objective.row_shape(512).length
    batch = objective.corrupt(synthetic_rows(rows, length), synthetic_vocabulary(objective), 0)
    assert rows * length > 100_000
    text = int((batch["labels"] < TEXT).sum()) - rows
    assert text / (rows * length) == pytest.approx(0.15, abs=0.5 / length)


@given(share=st.floats(0, 0.6), seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_special_tokens_are_neither_removed_nor_predicted(share, seed):
    objective = SpanCorruption()
    rows = synthetic_rows(8, 142, seed)
    unknown = np.random.default_rng(seed).random(rows.ids.shape) < share
    rows.ids[unknown] = 1
    batch = objective.corrupt(rows, synthetic_vocabulary(objective), 0)
    assert not (batch["labels"] == 1).any()
    for row in range(8):
        inputs, targets = batch["input_ids"][row].tolist(), batch["labels"][row].tolist()
        actual = rebuilt(inputs, targets, set(range(TEXT, TEXT + 100)))
        assert actual.count(1) == unknown[row].sum()
        assert [token for token in actual if token != 1] == rows.ids[row][~unknown[row]].tolist()


def test_only_sentinels_are_predicted_in_a_row_of_unknown_tokens():
    objective = SpanCorruption()
    rows = Rows(np.ones((1, 60), dtype=np.int64), [Sample(0, 0)])
    batch = objective.corrupt(rows, synthetic_vocabulary(objective), 0)
    expected = objective.counts(60)
    assert objective.weight(batch) == expected.spans + 1
    inputs = objective.as_inputs(batch)
    assert inputs.keys() == {"input_ids", "labels"}
    assert (inputs["labels"] == -100).sum() == expected.noise


def test_more_spans_than_sentinels_raise():
    message = r"has 101 spans, but `objective\.sentinels` is 100.*[Ss]et `objective\.sentinels` to 101"
    with pytest.raises(RecipeError, match=message):
        SpanCorruption().corrupt(synthetic_rows(1, 2020), synthetic_vocabulary(SpanCorruption()), 0)
    with pytest.raises(RecipeError, match=r"objective\.sentinels` is 100"):
        SpanCorruption().row_shape(2048)
    assert SpanCorruption(sentinels=114).row_shape(2048).length == 2274


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_loss_equals_that_of_the_plain_model(kind):
    torch.manual_seed(0)
    objective = SpanCorruption(chunk=10)
    vocabulary = synthetic_vocabulary(objective)
    backbone = EncoderDecoder(EncoderDecoder.Config(kind=kind, size="tiny"))
    model = backbone.build(vocabulary, 64, objective.auto_class).eval()
    batch = objective.corrupt(synthetic_rows(4, 70), vocabulary, 0)
    with torch.no_grad():
        ours = objective.loss(model, batch).item() / objective.weight(batch)
        theirs = model(**objective.as_inputs(batch)).loss.item()
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_collator_accepts_texts_of_any_length(verses, tiny_tokenizers):
    tokenizer = tiny_tokenizers["wordpiece"]
    objective = SpanCorruption(mode="[R]")
    with pytest.raises(ArtifactError, match=r"lacks 101 special tokens, starting with <extra_id_0>"):
        objective.collator(tokenizer)
    tokenizer = copy.deepcopy(tokenizer)
    vocabulary = add_special(tokenizer, objective.special_tokens())
    texts = [*verses[:6], "a", ""]
    examples = [{"input_ids": tokenizer(text)["input_ids"]} for text in texts]
    batch = objective.collator(tokenizer)(examples)
    sentinels = {vocabulary.added[f"<extra_id_{number}>"] for number in range(100)}
    for row, example in enumerate(examples):
        inputs = batch["input_ids"][row][batch["attention_mask"][row] == 1].tolist()
        targets = batch["labels"][row][batch["labels"][row] != -100].tolist()
        assert inputs.pop(0) == vocabulary.added["[R]"]
        if tokenizer.unk_token_id not in example["input_ids"]:
            assert rebuilt(inputs, targets, sentinels) == example["input_ids"][1:-1]


@pytest.mark.parametrize(
    "wrong", [{"density": 0}, {"density": 0.6}, {"mean_length": 0.5}, {"sentinels": 0}, {"mode": ""}]
)
def test_invalid_settings_raise(wrong):
    with pytest.raises(ValidationError):
        SpanCorruption(**wrong)


@pytest.mark.parametrize("prefix", [False, True])
def test_a_decoder_reads_input_and_target_in_one_row_and_predicts_the_target(prefix):
    objective = SpanCorruption(family="decoder", bidirectional_prefix=prefix, mode="[R]")
    shape = objective.row_shape(64)
    rows, vocabulary = synthetic_rows(3, shape.length), synthetic_vocabulary(objective)
    batch, pair = objective.corrupt(rows, vocabulary, 0), SpanCorruption(mode="[R]").corrupt(rows, vocabulary, 0)
    width = pair["input_ids"].shape[1]
    assert batch["input_ids"].shape == (3, 64) and (batch["input_ids"][:, 0] == 2).all(), "[CLS] first"
    assert torch.equal(batch["input_ids"][:, 1 : 1 + width], pair["input_ids"])
    assert torch.equal(batch["input_ids"][:, 1 + width :], pair["labels"])
    assert torch.equal(batch["labels"], batch["input_ids"])
    assert (batch["weights"][:, : 1 + width] == 0).all() and torch.equal(
        batch["weights"][:, 1 + width :], pair["weights"]
    )
    assert objective.weight(batch) == SpanCorruption(mode="[R]").weight(pair)
    assert objective.tokens(batch) == 3 * 64
    assert ("prefixes" in batch) is prefix and (not prefix or (batch["prefixes"] == 1 + width).all())


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "modernbert-decoder"])
def test_the_loss_of_a_decoder_equals_that_of_the_plain_model(kind, prefix):
    objective = SpanCorruption(family="decoder", bidirectional_prefix=prefix, chunk=10)
    vocabulary = synthetic_vocabulary(objective)
    torch.manual_seed(0)
    backbone = Decoder(Decoder.Config(kind=kind, size="tiny"))
    model = objective.assemble(lambda auto: backbone.build(vocabulary, 64, auto)).eval()
    batch = objective.corrupt(synthetic_rows(4, objective.row_shape(64).length), vocabulary, 0)
    with torch.no_grad():
        ours = objective.loss(model, batch).item() / objective.weight(batch)
        theirs = model(**objective.as_inputs(batch))
        causal = model(input_ids=batch["input_ids"])
    assert ours == pytest.approx(theirs.loss.item(), rel=1e-5)
    assert torch.allclose(theirs.logits, causal.logits, atol=1e-5) is not prefix, "read in both directions"


def test_an_instance_trains_one_family_and_older_recipes_keep_their_hash():
    assert SpanCorruption().families == ("encoder-decoder",)
    assert SpanCorruption(family="decoder").families == ("decoder",)
    assert not {"family", "bidirectional_prefix"} & SpanCorruption.Config().model_dump().keys()
    with pytest.raises(ValidationError, match="bidirectional_prefix is true, but family"):
        SpanCorruption(bidirectional_prefix=True)
