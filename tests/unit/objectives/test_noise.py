"""BART's noise functions: how many tokens are corrupted, where, and what is kept."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from headstart.core.data import Vocabulary
from headstart.objectives.noise import (
    MASKED,
    Layout,
    delete_tokens,
    draw_lengths,
    infill_spans,
    mask_tokens,
    rotate_documents,
    shuffle_sentences,
)

PAD, UNK, CLS, SEP, MASK, SIZE = 0, 1, 2, 3, 4, 100
SPECIAL = np.arange(SIZE) < 5
VOCABULARY = Vocabulary(SIZE, pad=PAD, cls=CLS, sep=SEP, mask=MASK, special=SPECIAL, starts_word=~SPECIAL)


@st.composite
def layouts(draw):
    """Draw a row of documents of any length, with unknown tokens and random sentence starts."""
    tokens = st.one_of(st.integers(5, SIZE - 1), st.sampled_from([6, 7, UNK, SEP]))
    ids = np.asarray([CLS, *draw(st.lists(tokens, max_size=60)), SEP])
    starts = draw(st.lists(st.integers(1, len(ids) - 1), max_size=8, unique=True))
    return Layout.of(ids, np.asarray(sorted(starts), dtype=np.int64), VOCABULARY)


rngs = st.integers(0, 2**32).map(np.random.default_rng)
rates = st.floats(0.01, 0.99)


def columns_of(layout: Layout) -> np.ndarray:
    return np.arange(len(layout.ordinary) - 1)


def plain(length: int) -> Layout:
    """Return the layout of one document of ordinary tokens."""
    return Layout.of(np.full(length, 9), np.zeros(0, dtype=np.int64), VOCABULARY)


def documents(columns: np.ndarray, layout: Layout) -> list[np.ndarray]:
    """Return the documents between [CLS], [SEP] and padding, including empty ones."""
    return [piece[1:] for piece in np.split(columns, np.flatnonzero(layout.frame[columns]))[1:]]


@given(layout=layouts(), rng=rngs, noise=st.sampled_from([shuffle_sentences, rotate_documents]))
@settings(max_examples=150, deadline=None)
def test_shuffling_and_rotation_are_permutations_within_documents(layout, rng, noise):
    before = columns_of(layout)
    after = noise(before, layout, rng)
    assert (after[layout.frame[:-1]] == before[layout.frame[:-1]]).all(), "[CLS], [SEP] and padding do not move"
    for old, new in zip(documents(before, layout), documents(after, layout), strict=True):
        assert sorted(old) == sorted(new)


@given(layout=layouts(), rng=rngs)
@settings(max_examples=100, deadline=None)
def test_sentences_are_shuffled_as_units(layout, rng):
    before = columns_of(layout)
    after = shuffle_sentences(before, layout, rng)
    index = np.empty_like(after)
    index[after] = before
    for column in before[1:]:
        if not layout.opens[column] and not layout.frame[[column - 1, column]].any():
            assert index[column] == index[column - 1] + 1, "a sentence's tokens stay together"


def test_orders_of_sentences_and_rotations_are_uniform():
    layout = Layout.of(np.full(9, 9), np.asarray([0, 2, 5]), VOCABULARY)
    rng, before = np.random.default_rng(0), columns_of(layout)
    orders = [tuple(shuffle_sentences(before, layout, rng)) for _ in range(6000)]
    drawn = [tuple(rotate_documents(before, layout, rng)) for _ in range(9000)]
    for actual, kinds in ((orders, 6), (drawn, 9)):
        counts = np.asarray([actual.count(one) for one in set(actual)])
        assert len(counts) == kinds
        assert stats.chisquare(counts).pvalue > 1e-6
    assert all(np.diff(member_index).tolist().count(1) >= 7 for member_index in set(drawn)), (
        "a rotation keeps the cyclic order"
    )


@given(layout=layouts(), rate=rates, rng=rngs)
@settings(max_examples=150, deadline=None)
def test_masking_and_deletion_use_exactly_the_budget(layout, rate, rng):
    before = columns_of(layout)
    count = int(layout.ordinary.sum())
    budget = min(count, max(1, round(rate * count)))
    hidden, kept = mask_tokens(before, layout, rate, rng), delete_tokens(before, layout, rate, rng)
    touched = hidden == MASKED
    assert touched.sum() == budget and layout.ordinary[:-1][touched].all()
    assert (hidden[~touched] == before[~touched]).all()
    assert len(kept) == len(before) - budget
    assert (np.diff(kept) > 0).all(), "the rest keeps its order"
    assert layout.ordinary[np.setdiff1d(before, kept)].all()


@given(layout=layouts(), rate=rates, mean=st.floats(0.1, 12), rng=rngs)
@settings(max_examples=200, deadline=None)
def test_infilling_keeps_the_other_tokens(layout, rate, mean, rng):
    before = columns_of(layout)
    after = infill_spans(before, layout, rate, mean, rng)
    kept = after[after != MASKED]
    assert (np.diff(kept) > 0).all(), "kept tokens keep their order"
    replaced = np.setdiff1d(before, kept)
    assert len(replaced) == layout.budget(before, rate) and layout.ordinary[replaced].all()
    assert len(after) <= len(before), "there are never more masks than replaced tokens"
    # Each run of removed tokens has a mask, and no run contains a special token.
    for left, right in itertools.pairwise(kept):
        masks = int(np.flatnonzero(after == right)[0] - np.flatnonzero(after == left)[0]) - 1
        assert masks >= (right - left > 1)
    assert after[0] == before[0] and after[-1] == before[-1]


@given(
    layout=layouts(),
    order=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    rate=rates,
    mean=st.floats(0.1, 12),
    rng=rngs,
)
@settings(max_examples=150, deadline=None)
def test_any_composition_keeps_the_frame_and_never_lengthens_a_row(layout, order, rate, mean, rng):
    noises = [
        lambda columns: mask_tokens(columns, layout, rate, rng),
        lambda columns: delete_tokens(columns, layout, rate, rng),
        lambda columns: infill_spans(columns, layout, rate, mean, rng),
        lambda columns: shuffle_sentences(columns, layout, rng),
        lambda columns: rotate_documents(columns, layout, rng),
    ]
    before = columns = columns_of(layout)
    for index in order:
        columns = noises[index](columns)
    assert len(columns) <= len(before)
    shown = columns[columns != MASKED]
    assert len(set(shown)) == len(shown), "no column occurs twice"
    frame = layout.frame[:-1]
    assert (columns[layout.frame[columns]] == before[frame]).all(), "the frame is complete and in order"
    special = before[~layout.ordinary[:-1]]
    assert np.isin(special, columns).all(), "unknown tokens may move, but are neither masked nor deleted"
    for old, new in zip(documents(before, layout), documents(columns, layout), strict=True):
        assert np.isin(new[new != MASKED], old).all(), "nothing leaves its document"


def expected_counts(budget: int, mean: float) -> np.ndarray:
    """Return the expected number of spans of each length within a budget, the last one cut to fit.

    By renewal theory: `visits[n]` is the expected number of draws with n tokens left.
    """
    pmf = stats.poisson(mean).pmf(np.arange(budget + 1))
    visits, counts = np.zeros(budget + 1), np.zeros(budget + 1)
    visits[budget] = 1
    for left in range(budget, 0, -1):
        visits[left] /= 1 - pmf[0]
        visits[1:left] += visits[left] * pmf[left - 1 : 0 : -1]
        counts[:left] += visits[left] * pmf[:left]
        counts[left] += visits[left] * stats.poisson(mean).sf(left - 1)
    return counts


@pytest.mark.parametrize(("mean", "budget"), [(3.0, 38), (3.0, 150), (1.5, 38), (8.0, 38)])
def test_span_lengths_follow_poisson_over_100_000_tokens(mean, budget):
    rng, rows = np.random.default_rng(0), math.ceil(100_000 / budget)
    sizes = np.asarray([round(budget / 0.3)])
    drawn = [length for _ in range(rows) for length in draw_lengths(sizes, budget, mean, rng)[0]]
    actual = np.bincount(drawn, minlength=budget + 1)
    assert actual @ np.arange(len(actual)) == rows * budget >= 100_000
    expected = rows * expected_counts(budget, mean)
    zeros = stats.poisson(mean).pmf(0)
    assert abs(actual[0] - zeros * actual.sum()) < 5 * math.sqrt(zeros * (1 - zeros) * actual.sum()), (
        "as often as drawn"
    )
    many = expected >= 50
    assert many.sum() > 5
    deviations = (actual[many] - expected[many]) / np.sqrt(expected[many])
    assert np.abs(deviations).max() < 5, deviations
    # The Poisson distribution itself: cutting the last span changes at most one span per row.
    pure = stats.poisson(mean).pmf(np.arange(len(actual))) * expected.sum()
    assert np.abs(actual - pure).sum() / 2 <= rows


@pytest.mark.parametrize("rate", [0.15, 0.3, 0.5])
@pytest.mark.parametrize("noise", ["token_mask", "token_delete", "infill"])
def test_rates_over_100_000_tokens(noise, rate):
    layout, rng = plain(126), np.random.default_rng(1)
    rows = 800
    touched = np.zeros(126, dtype=int)
    for _ in range(rows):
        if noise == "infill":
            after = infill_spans(columns_of(layout), layout, rate, 3.0, rng)
        else:
            after = (mask_tokens if noise == "token_mask" else delete_tokens)(columns_of(layout), layout, rate, rng)
        touched += ~np.isin(np.arange(126), after)
    trials = rows * 126
    assert trials >= 100_000
    low, high = stats.binom(trials, rate).interval(1 - 1e-6)
    assert low <= touched.sum() <= high
    low, high = stats.binom(rows, round(rate * 126) / 126).interval(1 - 1e-8)
    inner = touched[10:-10] if noise == "infill" else touched
    assert low <= inner.min() and inner.max() <= high, "every position is equally likely"


def test_a_length_of_zero_inserts_a_mask_between_two_tokens():
    layout, rng = plain(126), np.random.default_rng(0)
    inserted = draws = 0
    for _ in range(2000):
        after = infill_spans(columns_of(layout), layout, 0.3, 3.0, rng)
        gaps = np.diff(after[after != MASKED])
        masks = int((after == MASKED).sum())
        draws += masks
        between = [after[index - 1] + 1 == after[index + 1] for index in np.flatnonzero(after[1:-1] == MASKED) + 1]
        inserted += sum(between)
        assert gaps.min() >= 1
    # A mask next to another one or to an end of the text is not counted: about 13 in 100 masks have such neighbors.
    rate = inserted / draws
    assert 0.7 * math.exp(-3) < rate < 1.02 * math.exp(-3)


def test_rows_do_not_grow_with_short_spans():
    layout, rng = plain(50), np.random.default_rng(0)
    for _ in range(50):
        after = infill_spans(columns_of(layout), layout, 0.3, 0.1, rng)
        assert len(after) == 50 and (after == MASKED).sum() == 15


def test_spans_do_not_cross_documents():
    """With documents of two tokens no span is longer, and the rate is still reached."""
    ids = np.asarray([CLS, *[9, 9, SEP] * 30])
    layout = Layout.of(ids, np.zeros(0, dtype=np.int64), VOCABULARY)
    rng = np.random.default_rng(0)
    for _ in range(50):
        after = infill_spans(columns_of(layout), layout, 0.5, 3.0, rng)
        assert layout.frame[after].sum() == 31
        assert layout.ordinary[after].sum() == 30


def test_row_without_ordinary_tokens_is_unchanged():
    layout = Layout.of(np.asarray([CLS, UNK, SEP, SEP]), np.zeros(0, dtype=np.int64), VOCABULARY)
    before, rng = columns_of(layout), np.random.default_rng(0)
    for after in (
        mask_tokens(before, layout, 0.3, rng),
        delete_tokens(before, layout, 0.3, rng),
        infill_spans(before, layout, 0.3, 3.0, rng),
        shuffle_sentences(before, layout, rng),
        rotate_documents(before, layout, rng),
    ):
        assert (after == before).all()
