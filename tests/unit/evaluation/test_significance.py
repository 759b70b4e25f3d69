"""Significance: agreement of the sign-flip test and the interval with scipy, and Holm's correction."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from headstart.core.errors import DataError
from headstart.evaluation.significance import holm, interval, permutation_over_seeds, seeds_to_decide, smallest_p


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=8))
@settings(max_examples=40, deadline=None)
def test_sign_flips_agree_with_scipy(scores: list[tuple[float, float]]) -> None:
    a, b = (np.round(side, 3) for side in zip(*scores, strict=True))
    expected = stats.permutation_test(
        (a - b,),
        lambda x, axis: np.abs(np.round(x.mean(axis=axis), 9)),
        permutation_type="samples",
        vectorized=True,
        alternative="greater",
    ).pvalue
    assert permutation_over_seeds(a.tolist(), b.tolist()) == pytest.approx(expected)


def test_sign_flips_have_a_smallest_p_and_continue_beyond_exact_counting() -> None:
    assert permutation_over_seeds([0.9, 0.8, 0.95], [0.1, 0.2, 0.15]) == pytest.approx(2 / 2**3)
    rng = np.random.default_rng(0)
    b = rng.random(30)
    assert permutation_over_seeds((b + 0.1).tolist(), b.tolist()) < 1e-4
    a = rng.random(30)
    exact = stats.ttest_rel(a, b).pvalue
    assert permutation_over_seeds(a.tolist(), b.tolist()) == pytest.approx(exact, abs=0.03)
    with pytest.raises(DataError, match="paired"):
        permutation_over_seeds([0.1], [0.1, 0.2])


def test_the_interval_over_seeds_is_student_s() -> None:
    scores = [0.81, 0.84, 0.79, 0.86]
    result = interval(scores)
    low, high = stats.t.interval(0.95, 3, loc=np.mean(scores), scale=stats.sem(scores))
    assert (result.low, result.high) == (pytest.approx(low), pytest.approx(high))
    assert result.sd == pytest.approx(np.std(scores, ddof=1))
    single = interval([0.8])
    assert (single.mean, single.sd, single.low, single.high, single.seeds) == (0.8, None, None, None, 1)
    with pytest.raises(DataError, match="no scores"):
        interval([])


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    with pytest.raises(DataError, match=r"p-value is 1\.5"):
        holm([0.1, 1.5])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_between_the_raw_value_and_bonferroni_s(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    for raw, value in zip(p_values, adjusted, strict=True):
        assert raw <= value <= min(1.0, raw * len(p_values)) or value == max(
            adjusted[i] for i, p in enumerate(p_values) if p <= raw
        )
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert [adjusted[i] for i in order] == sorted(adjusted)


@pytest.mark.parametrize("seeds", range(1, 13))
def test_the_smallest_p_is_that_of_seeds_that_all_agree(seeds: int) -> None:
    agreeing = permutation_over_seeds([1.0 + seed / 10 for seed in range(seeds)], [0.0] * seeds)
    assert smallest_p(seeds) == agreeing == 2 / 2**seeds
    assert smallest_p(seeds, sides=1) == agreeing / 2


def test_the_smallest_p_beyond_exact_counting_is_that_of_the_random_patterns() -> None:
    agreeing = permutation_over_seeds([1.0 + seed / 10 for seed in range(30)], [0.0] * 30)
    assert smallest_p(30) == agreeing == 1 / (2**16 + 1)


def test_six_seeds_can_decide_and_five_one_sided() -> None:
    assert (seeds_to_decide(), seeds_to_decide(sides=1), seeds_to_decide(0.01)) == (6, 5, 8)
    assert smallest_p(6) <= 0.05 < smallest_p(5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_score_that_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(DataError, match=f"score 2 of 3 is {bad}"):
        interval([0.5, bad, 0.6])
    with pytest.raises(DataError, match="score 1 of 2"):
        permutation_over_seeds([bad, 0.5], [0.1, 0.2])
