"""The span-boundary objective: lengths and positions of spans, replacements and the boundary loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from headstart.backbones.encoder import Encoder
from headstart.core.data import Rows, Sample, Vocabulary
from headstart.core.vocabulary import vocabulary_of
from headstart.objectives.heads import HeadConfig
from headstart.objectives.span_boundary import MAX_BOUNDARY_TARGETS, SpanBoundary
from headstart.objectives.span_boundary_network import BoundaryHead

SIZE, MASK, SPECIAL = 500, 4, 5
ENCODERS = ("bert", "roberta", "modernbert", "deberta-v2", "albert", "electra")


def synthetic_vocabulary(continues: int = 0) -> Vocabulary:
    """Return a vocabulary in which every `continues`-th token continues a word; none if it is 0."""
    special = np.arange(SIZE) < SPECIAL
    starts = special | (np.arange(SIZE) % continues != 0) if continues else np.ones(SIZE, dtype=bool)
    return Vocabulary(SIZE, pad=0, cls=2, sep=3, mask=MASK, special=special, starts_word=starts)


def synthetic_rows(count: int, length: int, seed: int = 0, separators: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    ids = rng.integers(SPECIAL, SIZE, size=(count, length))
    ids[rng.random(ids.shape) < separators / length] = 3
    ids[:, 0], ids[:, -1] = 2, 3
    return Rows(ids, [Sample(0, index) for index in range(count)])


def spans_of(batch: dict[str, torch.Tensor], row: int) -> list[tuple[int, int]]:
    """Return the start and stop of each span, in the order in which they were drawn."""
    used = int(batch["weights"][row].sum())
    opens = [slot for slot in range(used) if batch["before"][row, slot] == 1]
    starts = [int(batch["positions"][row, slot]) for slot in opens]
    return [(start, start + int(batch["after"][row, slot])) for start, slot in zip(starts, opens, strict=True)]


@given(
    rate=st.floats(0.02, 0.5),
    length=st.integers(3, 96),
    longest=st.integers(1, 12),
    separators=st.integers(0, 10),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=150, deadline=None)
def test_spans_are_whole_words_between_unmasked_tokens(rate, length, longest, separators, seed):
    vocabulary, rows = synthetic_vocabulary(3), synthetic_rows(3, length, seed, separators)
    batch = SpanBoundary(rate=rate, longest=longest).corrupt(rows, vocabulary, seed)
    budget = max(1, round(rate * length))
    for row, ids in enumerate(rows.ids):
        selected = np.zeros(length, dtype=bool)
        opens = np.append(vocabulary.word_starts(ids), True)
        spans = spans_of(batch, row)
        for start, stop in spans:
            assert 0 < start < stop < length
            assert not vocabulary.special[ids[start:stop]].any()
            assert opens[start] and opens[stop], "whole words"
            assert opens[start:stop].sum() <= longest
            assert not selected[start:stop].any()
            selected[start:stop] = True
        assert not any(selected[start - 1] or selected[stop] for start, stop in spans), "boundary tokens are not masked"
        assert selected.sum() == batch["weights"][row].sum() <= budget
        columns = np.concatenate([np.arange(start, stop) for start, stop in spans]) if spans else np.zeros(0, int)
        used = len(columns)
        assert (batch["positions"][row, :used].numpy() == columns).all()
        assert (batch["labels"][row, :used].numpy() == ids[columns]).all()
        assert (batch["input_ids"][row].numpy()[~selected] == ids[~selected]).all()
        for start, stop in spans:
            shown = batch["input_ids"][row, start:stop].numpy()
            assert (shown == MASK).all() or (shown >= SPECIAL).all(), (
                "all tokens of a span are replaced in the same way"
            )


def test_mean_length_equals_the_papers():
    shares = SpanBoundary().length_probabilities()
    assert shares @ np.arange(1, 11) == pytest.approx(3.8, abs=0.01)
    assert np.allclose(shares[1:] / shares[:-1], 0.8)


@pytest.mark.parametrize(("stop", "longest"), [(0.2, 10), (0.5, 4)])
def test_lengths_follow_the_distribution(stop, longest):
    """The first span of a row is never cut, so its length follows the distribution."""
    objective = SpanBoundary(stop=stop, longest=longest)
    batch = objective.corrupt(synthetic_rows(6_000, 96), synthetic_vocabulary(), 1)
    lengths = batch["after"][:, 0].numpy()
    actual = np.bincount(lengths, minlength=longest + 1)[1:]
    assert len(actual) == longest
    assert stats.chisquare(actual, objective.length_probabilities() * 6_000).pvalue > 1e-4


def test_lengths_over_all_spans_of_long_rows_in_words():
    """The number of words, not of tokens, follows the distribution; at most the last span of a row is cut."""
    vocabulary, objective = synthetic_vocabulary(3), SpanBoundary()
    rows = synthetic_rows(60, 4096)
    batch = objective.corrupt(rows, vocabulary, 0)
    lengths = [
        int(vocabulary.word_starts(rows.ids[row])[start:stop].sum())
        for row in range(60)
        for start, stop in spans_of(batch, row)[:-1]
    ]
    total = len(lengths)
    assert total > 5000
    actual = np.bincount(lengths, minlength=11)[1:] / total
    assert np.abs(actual - objective.length_probabilities()).max() < 5 * math.sqrt(0.22 * 0.78 / total) + 60 / total


@pytest.mark.parametrize(("mask", "random"), [(0.8, 0.1), (0.5, 0.3)])
def test_fractions_of_masked_random_and_kept_spans(mask, random):
    rows = synthetic_rows(5000, 128)
    batch = SpanBoundary(mask=mask, random=random).corrupt(rows, synthetic_vocabulary(), 0)
    counts = {"masked": 0, "kept": 0, "random": 0}
    for row in range(5000):
        for start, stop in spans_of(batch, row):
            shown = batch["input_ids"][row, start:stop].numpy()
            if (shown == MASK).all():
                counts["masked"] += 1
            else:
                counts["kept" if (shown == rows.ids[row, start:stop]).all() else "random"] += 1
    total = sum(counts.values())
    assert total > 20_000
    # A random token equals the original one once in 495 draws, which matters only for spans of one token.
    coincidence = random * 0.25 / (SIZE - SPECIAL)
    for name, fraction in (
        ("masked", mask),
        ("kept", 1 - mask - random + coincidence),
        ("random", random - coincidence),
    ):
        assert abs(counts[name] - total * fraction) <= 5 * math.sqrt(total * fraction * (1 - fraction)), name


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_rate_is_reached_on_real_text(kind, tiny_tokenizers, verses):
    tokenizer = tiny_tokenizers[kind]
    stream = [token for text in verses[:400] for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    ids = np.asarray(stream[: 100 * 128]).reshape(100, 128)
    batch = SpanBoundary().corrupt(
        Rows(ids, [Sample(0, index) for index in range(100)]), vocabulary_of(tokenizer), seed=0
    )
    assert batch["positions"].shape == (100, 19)
    assert (batch["weights"].sum(1) == 19).float().mean() > 0.9


def build(objective, kind="bert", vocabulary=None):
    torch.manual_seed(0)
    encoder = Encoder(Encoder.Config(kind=kind, size="tiny", dropout=0.0))
    return objective.assemble(
        lambda auto, part="", scale=1.0, **changes: encoder.build(
            vocabulary or synthetic_vocabulary(), 64, auto, scale, **changes
        )
    ).eval()


@pytest.mark.parametrize("kind", ENCODERS)
def test_loss_equals_the_papers_formula(kind):
    """Compute both terms token by token, with the formulas of the paper."""
    objective, vocabulary = SpanBoundary(), synthetic_vocabulary()
    module = build(objective, kind)
    rows = synthetic_rows(4, 64)
    batch = objective.corrupt(rows, vocabulary, 0)
    with torch.no_grad():
        loss, measured = objective.loss(module, batch).item(), objective.measure(module, batch)
        masked = boundary = 0.0
        full = module.network(input_ids=batch["input_ids"]).logits
        states = module.network.base_model(input_ids=batch["input_ids"])[0]
        head, decoder = module.head, module.network.get_output_embeddings()
        for row in range(4):
            for start, stop in spans_of(batch, row):
                for index in range(start, stop):
                    label = torch.tensor(rows.ids[row, index])
                    masked += F.cross_entropy(full[row, index], label).item()
                    inner = [states[row, start - 1], states[row, stop], head.places.weight[index - start]]
                    inner = head.first_norm(F.gelu(head.first(torch.cat(inner))))
                    vector = head.second_norm(F.gelu(head.second(inner)))
                    boundary += F.cross_entropy(decoder(vector), label).item()
    assert measured["masked_loss"] == pytest.approx(masked, rel=1e-5)
    assert measured["boundary_loss"] == pytest.approx(boundary, rel=1e-5)
    assert loss == pytest.approx(masked + boundary, rel=1e-5)


def test_boundary_loss_ignores_tokens_far_from_the_start_of_a_span():
    objective = SpanBoundary(rate=0.5, longest=30, stop=0.001, mask=1, random=0)
    module = build(objective)
    batch = dict(objective.corrupt(synthetic_rows(8, 128), synthetic_vocabulary(), 0))
    far = (batch["before"] > MAX_BOUNDARY_TARGETS) & (batch["weights"] > 0)
    assert far.sum() > 20
    with torch.no_grad():
        before = objective.measure(module, batch)
        batch["labels"] = torch.where(far, (batch["labels"] + 1).clamp(max=SIZE - 1), batch["labels"])
        after = objective.measure(module, batch)
    assert after["boundary_loss"] == before["boundary_loss"]
    assert after["masked_loss"] != before["masked_loss"]


def test_head_is_loaded_if_it_exists_and_fits(tmp_path):
    objective = SpanBoundary()
    module = build(objective)
    module.network.save_pretrained(str(tmp_path))
    load = lambda auto, **_: type(module.network).from_pretrained(str(tmp_path))  # noqa: E731
    fresh = objective.assemble(load)
    assert not torch.equal(fresh.head.first.weight, module.head.first.weight)
    module.head.save_pretrained(str(tmp_path / "boundary_head"))
    assert torch.equal(objective.assemble(load).head.first.weight, module.head.first.weight)
    BoundaryHead(HeadConfig(hidden_size=64, output_size=128)).save_pretrained(str(tmp_path / "boundary_head"))
    assert objective.assemble(load).head.first.weight.shape == module.head.first.weight.shape, (
        "a head of another size is not loaded"
    )


@pytest.mark.parametrize("side", ["right", "left"])
def test_collated_batches_give_the_same_loss(side, verses, tiny_tokenizer):
    objective = SpanBoundary()
    before, tiny_tokenizer.padding_side = tiny_tokenizer.padding_side, side
    try:
        collator = objective.collator(tiny_tokenizer)
        module = build(objective, "modernbert", collator.vocabulary)
        examples = [{"input_ids": tiny_tokenizer(text)["input_ids"][:60]} for text in verses[:6]]
        together, apart = collator(examples), [collator([example]) for example in examples]
    finally:
        tiny_tokenizer.padding_side = before
    with torch.no_grad():
        loss = module(**together).loss.item()
        counts = [int((batch["labels"] != -100).sum()) for batch in apart]
        losses = [module(**batch).loss.item() for batch in apart]
    assert loss == pytest.approx(np.average(losses, weights=counts), rel=1e-4)


def test_fractions_above_1_raise():
    with pytest.raises(ValidationError, match=r"mask \+ random is 1.2"):
        SpanBoundary(mask=0.9, random=0.3)
