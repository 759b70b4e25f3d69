"""Tags and spans: agreement with seqeval, on all examples and on resamples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score

from headstart.core.errors import DataError
from headstart.evaluation.resampling import draw, resampled
from headstart.evaluation.tagging import seqeval_f1, token_accuracy

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
rows = st.lists(
    st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), min_size=1, max_size=6), min_size=2, max_size=8
)


def test_known_values_by_hand() -> None:
    gold = [["B-PER", "I-PER", "O"], ["B-LOC"]]
    predicted = [["B-PER", "O", "O"], ["B-LOC"]]
    assert token_accuracy(gold, predicted) == pytest.approx(3 / 4)
    assert seqeval_f1(gold, predicted) == pytest.approx(1 / 2), "a span is correct as a whole or not at all"


@given(rows)
@settings(deadline=None, max_examples=20)
def test_spans_agree_with_seqeval_on_all_examples_and_on_resamples(pairs) -> None:
    gold, predicted = ([[pair[side] for pair in row] for row in pairs] for side in (0, 1))
    assume(any(tag != "O" for row in gold for tag in row))
    assert seqeval_f1(gold, predicted) == pytest.approx(f1_score(gold, predicted, zero_division=0))
    for metric, function in (("seqeval_f1", seqeval_f1), ("token_accuracy", token_accuracy)):
        (fast,) = resampled(metric, gold, [predicted])
        counts = next(draw(len(gold), 3, 0))
        for row, value in zip(counts, fast(counts), strict=True):
            drawn = np.repeat(np.arange(len(gold)), row.astype(int))
            assert value == pytest.approx(function([gold[i] for i in drawn], [predicted[i] for i in drawn]))


def test_without_spans_nothing_is_missed() -> None:
    assert seqeval_f1([["O", "O"]], [["O", "O"]]) == 1.0
    assert seqeval_f1([["O", "O"]], [["O", "B-PER"]]) == 0.0


def test_the_number_of_tags_must_match() -> None:
    with pytest.raises(DataError, match="example 1 has 2 gold tags and 1 predicted"):
        token_accuracy([["O"], ["O", "O"]], [["O"], ["O"]])
