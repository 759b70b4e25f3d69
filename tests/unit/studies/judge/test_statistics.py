"""Verdicts on simulated studies whose truth is known, and agreement with scipy and statsmodels."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from headstart.core import config
from headstart.evaluation.comparison import PairedScores, compare, compare_runs
from headstart.evaluation.metrics import about
from headstart.evaluation.significance import holm, interval, permutation_over_seeds
from headstart.studies.definition import Claim, Study
from headstart.studies.graph import Cell
from headstart.studies.grid import System
from headstart.studies.judge.evidence import Evidence, Finding
from headstart.studies.judge.pairing import Resamples, pair
from headstart.studies.judge.power import Spread, power, seeds_needed, smallest_difference
from headstart.studies.judge.results import CellScore, MissingCell, Results
from headstart.studies.judge.verdicts import Verdict, decided, judge

CLAIM = Claim(statement="the first is better", contrast="one > other")


class Simulation:
    """Two systems with a true difference, noise over seeds and noise over examples."""

    def __init__(self, seeds=5, examples=100, gain=0.0, seed_sd=0.06, example_sd=0.0, rate=0.7):
        self.seeds, self.examples, self.gain = seeds, examples, gain
        self.seed_sd, self.example_sd, self.rate = seed_sd, example_sd, rate

    def draw(self, rng: np.random.Generator, name: str) -> list[dict[int, CellScore]]:
        """Return the scores of both systems by seed: correct or not on each example."""
        gold = [1] * self.examples
        shared = rng.normal(0, self.example_sd, self.examples)
        sides = []
        for side, gain in enumerate((self.gain, 0.0)):
            own = rng.normal(0, self.example_sd, self.examples)
            runs = {}
            for seed in range(self.seeds):
                rate = self.rate + gain + rng.normal(0, self.seed_sd) + shared + own
                right = (rng.random(self.examples) < np.clip(rate, 0, 1)).astype(int).tolist()
                score = {"accuracy": float(np.mean(right))}
                runs[seed] = CellScore(f"{name}-{side}-{seed}", "accuracy", score, gold, right)
            sides.append(runs)
        return sides


def judged(simulation: Simulation, study: int, claims: int, samples: int) -> list[Verdict]:
    """Simulate a study of some claims and judge it by the rule that users get."""
    rng = np.random.default_rng(study)
    resamples, comparisons = Resamples(samples), []
    for claim in range(claims):
        first, second = simulation.draw(rng, f"{study}-{claim}")
        resamples.of([*first.values(), *second.values()])
        paired = pair([first], [second], resamples)
        assert paired is not None
        comparisons.append(Evidence(Finding.of(compare([paired])), 100.0))
    return decided([CLAIM] * claims, comparisons)


NO_DIFFERENCE = [
    pytest.param(Simulation(), 1, id="seeds"),
    pytest.param(Simulation(seed_sd=0.05, example_sd=0.2), 1, id="seeds-and-examples"),
    pytest.param(Simulation(seed_sd=0.0, example_sd=0.3), 1, id="examples"),
    pytest.param(Simulation(seeds=8, seed_sd=0.03, example_sd=0.2), 3, id="three-claims"),
]


def false_confirmations(simulation, claims, studies, samples, monkeypatch):
    for name in ("power", "seeds_needed"):  # they do not change the verdict, and take most of the time
        monkeypatch.setattr(f"headstart.studies.judge.verdicts.{name}", lambda *_, **__: None)
    return [
        any(verdict.word == "confirmed" for verdict in judged(simulation, study, claims, samples))
        for study in range(studies)
    ]


@pytest.mark.parametrize(("simulation", "claims"), NO_DIFFERENCE)
def test_few_claims_are_confirmed_where_nothing_differs(simulation, claims, monkeypatch):
    """The short form, with enough studies to detect a rate of one in ten."""
    confirmed = false_confirmations(simulation, claims, 120, 200, monkeypatch)
    assert sum(confirmed) <= stats.binom.ppf(0.999, len(confirmed), 0.05)


@pytest.mark.long
@pytest.mark.parametrize(("simulation", "claims"), NO_DIFFERENCE)
def test_at_most_one_in_twenty_is_confirmed_where_nothing_differs(simulation, claims, monkeypatch):
    """2,000 studies; that any of a study's claims is confirmed counts as one false alarm, as Holm promises."""
    confirmed = false_confirmations(simulation, claims, 2000, 500, monkeypatch)
    assert sum(confirmed) <= stats.binom.ppf(0.99, len(confirmed), 0.05), f"{np.mean(confirmed):.3f}"


def computed_and_simulated(studies, samples, simulation, monkeypatch):
    """Return the power computed from the variance in simulated studies, and the fraction that is confirmed."""
    for name in ("power", "seeds_needed"):
        monkeypatch.setattr(f"headstart.studies.judge.verdicts.{name}", lambda *_, **__: None)
    verdicts = [judged(simulation, 10_000 + study, 1, samples)[0] for study in range(studies)]
    seen = [verdict.comparison for verdict in verdicts]
    sd, examples_error, residual = (
        float(np.mean([getattr(one, name) ** 2 for one in seen]) ** 0.5)
        for name in ("sd", "examples_error", "residual")
    )
    computed = power(simulation.gain, Spread(sd, examples_error, residual), simulation.seeds)
    return computed, float(np.mean([verdict.word == "confirmed" for verdict in verdicts])), simulation.gain / sd


ONE_SD = Simulation(seeds=5, examples=1000, gain=0.088, seed_sd=0.06, rate=0.6)
"""The gain is one standard deviation of the paired difference: 0.06 √2, plus the sampling error of 1,000 examples."""


def test_the_computed_power_is_about_the_simulated_power(monkeypatch):
    computed, simulated, _ = computed_and_simulated(200, 100, ONE_SD, monkeypatch)
    assert abs(computed - simulated) < 4 * (computed * (1 - computed) / 200) ** 0.5


@pytest.mark.long
def test_the_computed_power_is_the_simulated_power_at_one_sd_and_five_seeds(monkeypatch):
    computed, simulated, effect = computed_and_simulated(2500, 500, ONE_SD, monkeypatch)
    assert effect == pytest.approx(1.0, abs=0.05)
    assert abs(computed - simulated) < 0.03, (computed, simulated)


def test_power_with_five_seeds_is_the_probability_that_all_agree():
    """Sign flips of five seeds reach the level only if all five agree."""
    assert power(1.0, Spread(1.0), 5) == pytest.approx(stats.norm.cdf(1.0) ** 5, abs=0.02)


def test_power_with_many_seeds_is_that_of_students_test():
    t_power = pytest.importorskip("statsmodels.stats.power", reason="statsmodels brings the reference").TTestPower()
    for effect, seeds in ((0.3, 40), (0.5, 30), (0.8, 20)):
        expected = t_power.power(effect, seeds, 0.05, alternative="larger")
        assert power(effect, Spread(1.0), seeds) == pytest.approx(expected, abs=0.03)


def test_seeds_needed_reach_the_power_and_one_fewer_does_not():
    spread = Spread(1.0, examples_error=0.1, residual=0.2)
    needed = seeds_needed(0.8, spread)
    assert needed is not None
    assert power(0.8, spread, needed) >= 0.8 > power(0.8, spread, needed - 1)
    assert seeds_needed(0.8, Spread(1.0, claims=10)) > needed, "more claims take more seeds"
    assert seeds_needed(0.1, Spread(1.0, examples_error=0.2)) is None, "more seeds cannot replace test examples"
    assert seeds_needed(0.0, spread) is None


def test_the_smallest_difference_is_the_one_with_that_power():
    spread = Spread(0.02, examples_error=0.005)
    smallest = smallest_difference(spread, 8)
    assert smallest is not None and power(smallest, spread, 8) == pytest.approx(0.8, abs=0.02)
    assert smallest_difference(spread.with_examples(4), 8) < smallest
    assert smallest_difference(Spread(0.02, claims=2), 5) is None, "five seeds cannot decide two claims by sign flips"


def test_sign_flips_agree_with_scipy():
    rng = np.random.default_rng(0)
    for seeds in (5, 8):
        one, other = rng.normal(0.3, 1, seeds), rng.normal(0, 1, seeds)
        reference = stats.permutation_test(
            (one - other,), np.mean, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
        )
        assert permutation_over_seeds(one.tolist(), other.tolist()) == pytest.approx(reference.pvalue)


def test_holm_and_the_interval_agree_with_statsmodels_and_scipy():
    multitest = pytest.importorskip("statsmodels.stats.multitest", reason="statsmodels brings the reference")
    values = [0.001, 0.04, 0.03, 0.2, 0.011]
    assert holm(values) == pytest.approx(multitest.multipletests(values, method="holm")[1].tolist())
    scores = [0.61, 0.66, 0.58, 0.64, 0.6]
    low, high = stats.t.interval(0.95, 4, np.mean(scores), stats.sem(scores))
    result = interval(scores)
    assert (result.low, result.high) == pytest.approx((low, high))


def test_the_bootstrap_over_examples_agrees_with_scipy():
    """One seed, so only the choice of examples varies."""
    rng = np.random.default_rng(1)
    right = [(rng.random(300) < rate).astype(int).tolist() for rate in (0.8, 0.7)]
    runs = [
        {0: CellScore(f"n{side}", "accuracy", {"accuracy": float(np.mean(one))}, [1] * 300, one)}
        for side, one in enumerate(right)
    ]
    result = compare([pair([runs[0]], [runs[1]], Resamples(4000))])
    reference = stats.bootstrap(
        (np.array(right[0]) - np.array(right[1]),), np.mean, n_resamples=4000, method="percentile", rng=0
    )
    assert (result.low, result.high) == pytest.approx(reference.confidence_interval, abs=0.01)
    assert result.sd is None and result.p_seeds == (0.5, 0.5), "one seed has no spread over seeds"
    assert result.examples_error == pytest.approx(reference.standard_error, rel=0.1)


def paired(values, group="", noise=0.0):
    rng = np.random.default_rng(len(values))
    return PairedScores(
        group, dict(enumerate(values)), {s: value + noise * rng.normal(size=500) for s, value in enumerate(values)}
    )


def test_contexts_of_the_same_rows_are_one_unit_and_others_are_more():
    first, second = [0.02, 0.03, 0.01, 0.02, 0.04], [0.03, 0.02, 0.02, 0.01, 0.05]
    together = compare([paired(first, "sst2"), paired(second, "sst2")])
    apart = compare([paired(first, "sst2"), paired(second, "trec")])
    assert (together.units, apart.units) == (5, 10)
    assert together.difference == pytest.approx(apart.difference)
    assert together.p_better == pytest.approx(1 / 32) and apart.p_better < 0.01


def test_verdicts_are_three_words():
    clear, against, faint = (Finding.of(compare([paired(values)])) for values in (
        [0.02, 0.03, 0.01, 0.02, 0.04, 0.03, 0.02, 0.03], [-0.02, -0.03, -0.01, -0.02, -0.04, -0.03, -0.02, -0.03],
        [0.02, -0.03, 0.01, 0.02, -0.01, 0.03, -0.02, 0.0],
    ))  # fmt: skip
    verdicts = decided([CLAIM] * 3, [Evidence(clear, 100.0), Evidence(against, 100.0), Evidence(faint, 100.0, 2)])
    assert [verdict.word for verdict in verdicts] == ["confirmed", "refuted", "undecided"]
    assert "is confirmed: one > other by +2.5 (" in verdicts[0].sentence()
    assert "more seed" in verdicts[2].sentence() and "(power < 0.8 at 200 seeds)" in verdicts[2].sentence()
    assert "2 of its cells are missing" in verdicts[2].sentence()
    assert verdicts[0].comparison.effect == pytest.approx(2.5, abs=0.6), "in standard deviations"


def test_a_claim_without_cells_is_undecided():
    (verdict,) = decided([CLAIM], [Evidence(None, 100.0, 4)])
    assert verdict.word == "undecided" and "no finished cells" in verdict.sentence()


def test_too_few_seeds_say_so_and_how_many_are_needed():
    (verdict,) = decided([CLAIM], [Evidence(Finding.of(compare([paired([0.02, 0.03, 0.01])])), 100.0)])
    assert verdict.word == "undecided" and verdict.needed == 5
    assert "about 2 more seeds would decide it" in verdict.sentence()
    assert "3 paired runs can never reach p ≤ 0.05" in verdict.sentence()
    assert "smallest possible p after Holm's correction is 0.125" in verdict.sentence()


def score(name, right, gold=None, metric="accuracy"):
    gold = gold or [1] * len(right)
    return CellScore(name, metric, {metric: float(np.mean(np.array(right) == gold))}, gold, right, group=name[:4])


def claimed(contrast, results):
    axes = {
        "task": {"sst2": {"finetune.x": 1}, "trec": {"finetune.x": 2}},
        "start": {"mini": {"finetune.model": "a"}, "minilm": {"finetune.model": "b"}},
        "adaptation": {"full": {"finetune.adaptation": "full"}, "lora": {"finetune.adaptation": "lora"}},
    }
    sections = {
        "question": "?", "output": "out", "base": {"finetune": {}}, "axes": axes, "compare": ["start", "adaptation"],
        "baselines": ["svm"], "seeds": 2, "claims": [{"statement": "so it is", "contrast": contrast}],
    }  # fmt: skip
    return judge(config.fill(Study, sections), results, Resamples(50))[0]


def test_only_matching_systems_are_compared_where_a_cell_is_missing():
    """MiniLM's lead over mini does not count as the lead of full over LoRA."""
    results = Results()
    scores = {("mini", "full"): 5, ("mini", "lora"): 5, ("minilm", "full"): 9}
    for levels, points in scores.items():
        right = [1] * points + [0] * (10 - points)
        results.scores[System(levels), ("sst2",)] = {s: score(f"sst2{levels}{s}", right) for s in range(2)}
    results.missing.append(MissingCell(Cell(System(("minilm", "lora")), ("sst2",), 0, "later"), None))
    verdict = claimed("full > lora", results)
    assert verdict.comparison.difference == 0 and verdict.missing == 1
    assert claimed("minilm > mini", results).comparison.difference == pytest.approx(0.4)


def test_a_claim_covers_the_contexts_that_report_its_metric():
    results = Results()
    for task, metric in (("sst2", "f1"), ("trec", "accuracy")):
        for levels, right in ((("mini", "full"), [1, 1, 0, 1]), (("mini", "lora"), [1, 0, 0, 1])):
            cell = score(f"{task}{levels}", right, [1, 1, 1, 0], metric)
            results.scores[System(levels), (task,)] = {0: cell}
    assert claimed("full > lora on mean(f1)", results).comparison.units == 1
    assert claimed("full > lora on mean(recall)", results).comparison is None


def test_each_test_set_is_resampled_by_its_own_gold():
    """A compared axis, such as a language, may select the test rows."""
    cells = score("a", [1, 1, 1, 0], [1, 1, 1, 1]), score("b", [0, 0, 1], [0, 0, 0])
    first, second = Resamples(400).of(cells)
    assert (first.mean(), second.mean()) == pytest.approx((0.75, 2 / 3), abs=0.05)


def test_an_effect_needs_three_units_that_differ():
    assert compare([paired([0.02, 0.03])]).effect is None
    assert compare([paired([0.1 + 0.2] * 4)]).effect is None
    assert compare([paired([0.02, 0.03, 0.01])]).effect > 0


def test_a_study_and_a_fine_tuning_run_compare_by_one_rule():
    first, second = Simulation(seeds=7, gain=0.05).draw(np.random.default_rng(3), "one rule")
    by_study = compare([pair([first], [second], Resamples(500))])
    runs = [{seed: cell.predictions for seed, cell in side.items()} for side in (first, second)]
    assert compare_runs(first[0].gold, *runs, "accuracy", samples=500) == by_study


def unlike(metrics):
    """Two systems on two tasks, each scored by its own metric."""
    results = Results()
    for task, metric in zip(("sst2", "trec"), metrics, strict=True):
        for levels, right in ((("mini", "full"), [1, 1, 0, 1, 0]), (("mini", "lora"), [1, 0, 0, 1, 1])):
            cell = score(f"{task}{levels}", right, [1, 1, 1, 0, 0], metric)
            results.scores[System(levels), (task,)] = dict.fromkeys(range(3), cell)
    return results


@pytest.mark.parametrize("metrics", [("accuracy", "matthews"), ("accuracy", "f1"), ("spearman", "matthews")])
def test_metrics_of_different_kinds_are_not_averaged(metrics):
    verdict = claimed("full > lora on mean(score)", unlike(metrics))
    assert verdict.word == "undecided" and verdict.comparison is None and verdict.p_value is None
    assert "no mean was formed, because its contexts are scored by metrics of different kinds" in verdict.sentence()
    assert f"({about(metrics[0]).family}: sst2; {about(metrics[1]).family}: trec)" in verdict.sentence()
    assert "`where`" in verdict.sentence() and "`on mean(accuracy)`" in verdict.sentence()


@pytest.mark.parametrize("metrics", [("accuracy", "accuracy"), ("f1", "macro_f1"), ("pearson", "spearman")])
def test_metrics_of_one_kind_are_averaged(metrics):
    assert claimed("full > lora on mean(score)", unlike(metrics)).comparison.units == 6
