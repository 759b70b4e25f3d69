"""Comparisons of two systems: the two tests, the larger of their p-values, and error rates on simulated runs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from scipy import stats

from headstart.core import registry
from headstart.core.errors import DataError
from headstart.evaluation.comparison import PairedScores, _pair_runs, compare, compare_runs, too_few_seeds
from headstart.evaluation.metrics import about
from headstart.evaluation.resampling import _any_metric, draw, resampled

METRICS = [name for name in registry.names("metrics") if about(name).of in ("label", "number")]


def data(
    metric: str, examples: int, seed: int, quality: tuple[float, ...], labels: int = 2
) -> tuple[list[Any], list[list[Any]]]:
    """Return gold values and one run of predictions per requested quality (0 is the chance level, 1 is perfect)."""
    rng = np.random.default_rng(seed)
    if about(metric).of == "number":
        gold = np.round(rng.random(examples) * 5, 1)
        return gold.tolist(), [np.round(q * gold + (1 - q) * rng.normal(2.5, 2, examples), 1).tolist() for q in quality]
    codes = rng.integers(0, labels, examples)
    noise = [np.where(rng.random(examples) < q, codes, rng.integers(0, labels, examples)).tolist() for q in quality]
    return codes.tolist(), noise


def by_seed(runs: list[list[Any]]) -> dict[int, list[Any]]:
    return dict(enumerate(runs))


@pytest.mark.parametrize(
    ("metric", "labels"), [*((name, 2) for name in METRICS), ("accuracy", 5), ("macro_f1", 5), ("matthews", 5)]
)
def test_vectorized_values_equal_the_metric_itself(metric: str, labels: int) -> None:
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
    first, second = by_seed(runs[:3]), by_seed(runs[3:])
    better = compare_runs(gold, first, second, metric, samples=500)
    worse = compare_runs(gold, second, first, metric, samples=500)
    assert better.p_over_examples < 0.01
    assert 0 < better.low < better.difference < better.high
    assert worse.difference == pytest.approx(-better.difference)
    assert worse.low == pytest.approx(-better.high, abs=0.01)
    assert (better.seeds, better.examples) == (3, 600)
    same = compare_runs(gold, first, first, metric, samples=200)
    assert (same.difference, same.p_value) == (0.0, 1.0)


def test_a_single_run_is_compared_with_every_seed() -> None:
    gold, runs = data("accuracy", 300, 3, (0.8, 0.7, 0.6, 0.3))
    single = compare_runs(gold, by_seed(runs[:3]), {5: runs[3]}, "accuracy", samples=300)
    repeated = compare_runs(gold, by_seed(runs[:3]), by_seed([runs[3]] * 3), "accuracy", samples=300)
    assert (single.p_value, single.seeds) == (repeated.p_value, 3)
    assert single.difference == pytest.approx(repeated.difference)
    with pytest.raises(DataError, match="3 runs and system b 2"):
        compare_runs(gold, by_seed(runs[:3]), by_seed(runs[:2]), "accuracy")
    with pytest.raises(DataError, match="same seeds on both sides"):
        compare_runs(gold, {0: runs[0], 1: runs[1]}, {2: runs[0], 3: runs[1]}, "accuracy")


def test_runs_are_paired_by_seed_not_by_position() -> None:
    gold, runs = data("accuracy", 200, 3, (0.8, 0.7, 0.6, 0.5))
    ordered = compare_runs(gold, {0: runs[0], 1: runs[1]}, {0: runs[2], 1: runs[3]}, "accuracy", samples=100)
    shuffled = compare_runs(gold, {1: runs[1], 0: runs[0]}, {0: runs[2], 1: runs[3]}, "accuracy", samples=100)
    assert ordered == shuffled


def test_the_seed_determines_the_resamples() -> None:
    gold, runs = data("accuracy", 100, 0, (0.5, 0.4))
    first, again, other = (compare_runs(gold, {0: runs[0]}, {0: runs[1]}, "accuracy", 300, seed) for seed in (1, 1, 2))
    assert first == again
    assert first.low != other.low or first.p_examples != other.p_examples


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "pearson"])
def test_type_one_error_and_power_of_the_bootstrap_over_examples(metric: str) -> None:
    """Under the null 5 % of tests may reject: with 300 trials, [0.017, 0.09] holds with more than 99 %."""
    false_alarms = hits = 0
    trials = 300
    for trial in range(trials):
        gold, (null, other, better) = data(metric, 200, trial, (0.6, 0.6, 0.75))
        false_alarms += compare_runs(gold, {0: null}, {0: other}, metric, 400, trial).p_over_examples <= 0.05
        hits += compare_runs(gold, {0: better}, {0: other}, metric, 400, trial).p_over_examples <= 0.05
    assert 0.017 <= false_alarms / trials <= 0.09
    assert hits / trials > 0.4


def test_the_interval_covers_the_truth_in_95_percent() -> None:
    covered = 0
    for trial in range(300):
        gold, runs = data("accuracy", 300, 1000 + trial, (0.8, 0.6))
        result = compare_runs(gold, {0: runs[0]}, {0: runs[1]}, "accuracy", 200, trial)
        covered += result.low <= 0.1 <= result.high  # two labels: a quality of q gives accuracy (1 + q) / 2
    assert 0.91 <= covered / 300 <= 0.985


@pytest.mark.parametrize("metric", METRICS)
def test_five_thousand_examples_take_seconds(metric: str) -> None:
    gold, runs = data(metric, 5000, 0, (0.6, 0.6, 0.5, 0.5))
    started = time.process_time()
    compare_runs(gold, by_seed(runs[:2]), by_seed(runs[2:]), metric, samples=400)
    assert time.process_time() - started < 5  # 400 calls of scikit-learn's or scipy's own take longer per run


@pytest.mark.parametrize(("discordant", "smallest"), [(1, 1.0), (3, 0.25), (10, 2 / 2**10)])
def test_few_discordant_examples_give_no_smaller_p_than_a_sign_test(discordant: int, smallest: float) -> None:
    gold = ["a"] * (200 + discordant)
    other = ["a"] * 200 + ["b"] * discordant
    runs = dict.fromkeys(range(6), gold), dict.fromkeys(range(6), other)
    assert compare_runs(gold, *runs, "accuracy").p_over_examples >= smallest


def simulate(seeds: int, rng: np.random.Generator, noise: float = 0.02, examples: int = 1000) -> list[dict[int, Any]]:
    """Return two systems of equal true accuracy whose runs vary by `noise` over seeds, as fine-tuning does."""
    systems = []
    for _ in range(2):
        rates = np.clip(rng.normal(0.8, noise, seeds), 0, 1)
        systems.append({seed: (rng.random(examples) < rate).astype(int).tolist() for seed, rate in enumerate(rates)})
    return systems


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_at_most_five_percent_of_equal_systems_are_decided(seeds: int) -> None:
    """Seed noise of two points: the bootstrap over examples alone decided 28 % of such comparisons with three seeds."""
    rng = np.random.default_rng(seeds)
    trials = 150
    gold = [1] * 1000
    decided = sum(compare_runs(gold, *simulate(seeds, rng), "accuracy", samples=200).is_decided for _ in range(trials))
    assert decided <= stats.binom.ppf(0.999, trials, 0.05)
    assert decided == 0 or seeds >= 6, "three and five seeds can never decide"


def p_over_examples_alone(pairs: PairedScores) -> float:
    """Return the two-sided p-value of a bootstrap that keeps the seeds fixed."""
    observed = np.mean(list(pairs.differences.values()))
    resampled_means = np.mean(list(pairs.resampled.values()), axis=0)
    hits = np.sum(np.abs(resampled_means - observed) >= abs(observed) - 1e-12)
    return float((hits + 1) / (len(resampled_means) + 1))


@pytest.mark.long
def test_seed_noise_by_either_rule(capsys: pytest.CaptureFixture[str]) -> None:
    """2,000 comparisons of equal systems for each number of seeds; `-s` shows the fractions that are decided."""
    trials, gold = 2000, [1] * 1000
    for seeds in (3, 5, 10):
        rng = np.random.default_rng(seeds)
        pairs = [_pair_runs(gold, *simulate(seeds, rng), "accuracy", 500, None) for _ in range(trials)]
        alone = np.mean([p_over_examples_alone(pair) <= 0.05 for pair in pairs])
        larger = np.mean([compare([pair]).is_decided for pair in pairs])
        with capsys.disabled():
            print(f"\n{seeds} seeds: {alone:.1%} by examples alone, {larger:.1%} by the larger p-value")
        assert alone > 0.2 and larger <= stats.binom.ppf(0.99, trials, 0.05) / trials


def test_the_larger_p_value_counts() -> None:
    rng = np.random.default_rng(0)
    differences = dict(enumerate([0.02, 0.03, 0.01, 0.02, 0.04, 0.03, 0.02]))
    steady = {seed: value + 0.001 * rng.normal(size=500) for seed, value in differences.items()}
    unsteady = {seed: value + 0.2 * rng.normal() + np.zeros(500) for seed, value in differences.items()}
    by_seeds = compare([PairedScores("", differences, steady)])
    assert by_seeds.p_value == by_seeds.p_over_seeds == pytest.approx(2 / 2**7) and by_seeds.is_decided
    examples = rng.normal(0.02, 0.05, 500)
    by_examples = compare([PairedScores("", differences, dict.fromkeys(unsteady, examples))])
    assert by_examples.p_value == by_examples.p_over_examples > 0.05 and not by_examples.is_decided


def test_too_few_seeds_name_the_smallest_p_and_how_many_to_run() -> None:
    assert too_few_seeds(3) == "3 seeds can never reach p ≤ 0.05 (smallest possible p is 0.25); run at least 6."
    assert too_few_seeds(1).startswith("1 seed can never reach p ≤ 0.05 (smallest possible p is 1);")


def test_a_metric_that_is_nan_on_a_resample_decides_nothing() -> None:
    differences = dict.fromkeys(range(8), 0.02)
    half_nan = np.where(np.arange(100) < 50, 0.02, np.nan)
    assert compare([PairedScores("", differences, dict.fromkeys(range(8), half_nan))]).p_better > 0.4


def test_plain_values_for_json() -> None:
    gold, runs = data("accuracy", 100, 0, (0.9, 0.3))
    values = compare_runs(gold, {0: runs[0]}, {0: runs[1]}, "accuracy", samples=100).to_dict()
    assert {"difference", "low", "high", "p_value", "seeds", "examples", "decided"} <= values.keys()
    assert values["decided"] is False and values["p_value"] == 1.0 and values["seeds"] == 1
