"""Significance: agreement with scipy, with a resample-by-resample bootstrap, and error rates on simulated data."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from headstart.core import registry
from headstart.core.errors import DataError
from headstart.evaluation.metrics import about
from headstart.evaluation.resampling import _any_metric, draw, resampled
from headstart.evaluation.significance import holm, interval, paired_bootstrap, permutation_over_seeds

METRICS = [name for name in registry.names("metrics") if about(name).of in ("label", "number")]


def data(
    metric: str, examples: int, seed: int, quality: tuple[float, ...], labels: int = 2
) -> tuple[list[Any], list[list[Any]]]:
    """Return gold values and one run of predictions per wanted quality (0 is chance, 1 is perfect)."""
    rng = np.random.default_rng(seed)
    if about(metric).of == "number":
        gold = np.round(rng.random(examples) * 5, 1)
        return gold.tolist(), [np.round(q * gold + (1 - q) * rng.normal(2.5, 2, examples), 1).tolist() for q in quality]
    codes = rng.integers(0, labels, examples)
    noise = [np.where(rng.random(examples) < q, codes, rng.integers(0, labels, examples)).tolist() for q in quality]
    return codes.tolist(), noise


@pytest.mark.parametrize(
    ("metric", "labels"), [*((name, 2) for name in METRICS), ("accuracy", 5), ("macro_f1", 5), ("matthews", 5)]
)
def test_vectorised_values_equal_the_metric_itself(metric: str, labels: int) -> None:
    # Twelve examples, so that resamples without some label, and with constant values, do occur.
    gold, runs = data(metric, 12, 1, (0.9, 0.4), labels)
    function = registry.resolve("metrics", metric)
    for run, fast in zip(runs, resampled(metric, gold, runs), strict=True):
        slow = _any_metric(function, gold, run)
        for counts in draw(12, 60, 0):
            complete = np.array([metric != "f1" or 0 < np.dot(row, gold) < 12 for row in counts])
            np.testing.assert_allclose(fast(counts)[complete], slow(counts)[complete], atol=1e-9)


@pytest.mark.parametrize("metric", ["pearson", "spearman", "matthews"])
def test_constant_predictions_stay_at_zero_in_every_resample(metric: str) -> None:
    gold, _ = data(metric, 30, 0, ())
    (value,) = resampled(metric, gold, [[1] * 30])
    assert all((value(counts) == 0.0).all() for counts in draw(30, 50, 0))


def test_pearson_survives_a_large_offset() -> None:
    gold, (run,) = data("pearson", 40, 0, (0.7,))
    (plain,), (shifted,) = resampled("pearson", gold, [run]), resampled("pearson", gold, [[x + 1e8 for x in run]])
    for counts in draw(40, 20, 0):
        np.testing.assert_allclose(plain(counts), shifted(counts), atol=1e-6)


@pytest.mark.parametrize("metric", METRICS)
def test_a_clear_difference_is_found_with_its_sign(metric: str) -> None:
    gold, runs = data(metric, 600, 3, (0.8, 0.8, 0.8, 0.4, 0.4, 0.4))
    better = paired_bootstrap(gold, runs[:3], runs[3:], metric, samples=500)
    worse = paired_bootstrap(gold, runs[3:], runs[:3], metric, samples=500)
    assert better.p_value < 0.01
    assert 0 < better.low < better.difference < better.high
    assert worse.difference == pytest.approx(-better.difference)
    assert worse.low == pytest.approx(-better.high)
    assert (better.seeds, better.examples) == (3, 600)
    same = paired_bootstrap(gold, runs[:3], runs[:3], metric, samples=200)
    assert (same.difference, same.p_value) == (0.0, 1.0)


def test_a_single_run_stands_against_every_seed() -> None:
    gold, runs = data("accuracy", 300, 3, (0.8, 0.7, 0.6, 0.3))
    alone = paired_bootstrap(gold, runs[:3], runs[3:], "accuracy", samples=300)
    spelt = paired_bootstrap(gold, runs[:3], [runs[3]] * 3, "accuracy", samples=300)
    assert (alone.p_value, alone.seeds) == (spelt.p_value, 3)
    assert alone.difference == pytest.approx(spelt.difference)
    with pytest.raises(DataError, match="3 runs and system b 2"):
        paired_bootstrap(gold, runs[:3], runs[:2], "accuracy")


def test_the_seed_decides_and_nothing_else() -> None:
    gold, runs = data("accuracy", 100, 0, (0.5, 0.4))
    first, again, other = (paired_bootstrap(gold, runs[:1], runs[1:], "accuracy", 300, seed) for seed in (1, 1, 2))
    assert first == again
    assert first.low != other.low or first.p_value != other.p_value


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "pearson"])
def test_type_one_error_and_power_on_simulated_runs(metric: str) -> None:
    """Under the null 5 % of tests may cry wolf: with 300 trials, [0.017, 0.09] holds with more than 99 %."""
    false_alarms = hits = 0
    trials = 300
    for trial in range(trials):
        gold, runs = data(metric, 200, trial, (0.6, 0.6, 0.75))
        false_alarms += paired_bootstrap(gold, runs[:1], runs[1:2], metric, 200, trial).p_value <= 0.05
        hits += paired_bootstrap(gold, runs[2:], runs[1:2], metric, 200, trial).p_value <= 0.05
    assert 0.017 <= false_alarms / trials <= 0.09
    assert hits / trials > 0.4


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    covered = 0
    for trial in range(300):
        gold, runs = data("accuracy", 300, 1000 + trial, (0.8, 0.6))
        found = paired_bootstrap(gold, runs[:1], runs[1:], "accuracy", 200, trial)
        covered += found.low <= 0.1 <= found.high  # two labels: a share q kept gives accuracy (1 + q) / 2
    assert 0.91 <= covered / 300 <= 0.985


@pytest.mark.parametrize("metric", METRICS)
def test_five_thousand_examples_take_seconds(metric: str) -> None:
    gold, runs = data(metric, 5000, 0, (0.6, 0.6, 0.5, 0.5))
    started = time.process_time()
    paired_bootstrap(gold, runs[:2], runs[2:], metric, samples=400)
    assert time.process_time() - started < 5  # 400 calls of scikit-learn's or scipy's own take longer per run


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


def test_sign_flips_know_their_floor_and_go_on_beyond_exact_counting() -> None:
    assert permutation_over_seeds([0.9, 0.8, 0.95], [0.1, 0.2, 0.15]) == pytest.approx(2 / 2**3)
    rng = np.random.default_rng(0)
    b = rng.random(30)
    assert permutation_over_seeds((b + 0.1).tolist(), b.tolist()) < 1e-4
    a = rng.random(30)
    exact = stats.ttest_rel(a, b).pvalue
    assert permutation_over_seeds(a.tolist(), b.tolist()) == pytest.approx(exact, abs=0.03)
    with pytest.raises(DataError, match="paired"):
        permutation_over_seeds([0.1], [0.1, 0.2])


def test_the_interval_over_seeds_is_students() -> None:
    scores = [0.81, 0.84, 0.79, 0.86]
    found = interval(scores)
    low, high = stats.t.interval(0.95, 3, loc=np.mean(scores), scale=stats.sem(scores))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert found.sd == pytest.approx(np.std(scores, ddof=1))
    one = interval([0.8])
    assert (one.mean, one.sd, one.low, one.high, one.seeds) == (0.8, None, None, None, 1)
    with pytest.raises(DataError, match="no scores"):
        interval([])


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    with pytest.raises(DataError, match=r"p-value is 1\.5"):
        holm([0.1, 1.5])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_lies_between_the_raw_and_bonferronis(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    for raw, value in zip(p_values, adjusted, strict=True):
        assert raw <= value <= min(1.0, raw * len(p_values)) or value == max(
            adjusted[i] for i, p in enumerate(p_values) if p <= raw
        )
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert [adjusted[i] for i in order] == sorted(adjusted)


@pytest.mark.parametrize(("unlike", "least"), [(1, 1.0), (3, 0.25), (10, 2 / 2**10)])
def test_few_examples_can_say_no_more_than_a_sign_test(unlike: int, least: float) -> None:
    gold = ["a"] * (200 + unlike)
    found = paired_bootstrap(gold, [gold], [["a"] * 200 + ["b"] * unlike], "accuracy", samples=2000)
    assert found.p_value >= least
