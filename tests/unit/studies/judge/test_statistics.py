"""Are the verdicts right? Simulated studies of which the truth is known, and other people's implementations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from headstart.core import config
from headstart.evaluation.significance import holm, interval, permutation_over_seeds
from headstart.studies.definition import Claim, Study
from headstart.studies.graph import Cell
from headstart.studies.grid import System
from headstart.studies.judge.comparison import Pair, Resamples, compare, pair
from headstart.studies.judge.power import Spread, power, seeds_needed, smallest_difference
from headstart.studies.judge.results import CellScore, MissingCell, Results
from headstart.studies.judge.verdicts import Verdict, decided, judge

CLAIM = Claim(statement="the first is better", contrast="one > other")


class Lot:
    """Scores of two systems: what they share, what a seed does to each, what an example does to each."""

    def __init__(self, seeds=5, examples=100, gain=0.0, seed_sd=0.06, example_sd=0.0, rate=0.7):
        self.seeds, self.examples, self.gain = seeds, examples, gain
        self.seed_sd, self.example_sd, self.rate = seed_sd, example_sd, rate

    def draw(self, chance: np.random.Generator, name: str) -> list[dict[int, CellScore]]:
        """Return the outcomes of both systems by seed: right or wrong on each example."""
        gold = [1] * self.examples
        shared = chance.normal(0, self.example_sd, self.examples)
        sides = []
        for side, gain in enumerate((self.gain, 0.0)):
            own = chance.normal(0, self.example_sd, self.examples)
            runs = {}
            for seed in range(self.seeds):
                rate = self.rate + gain + chance.normal(0, self.seed_sd) + shared + own
                right = (chance.random(self.examples) < np.clip(rate, 0, 1)).astype(int).tolist()
                score = {"accuracy": float(np.mean(right))}
                runs[seed] = CellScore(f"{name}-{side}-{seed}", "accuracy", score, gold, right)
            sides.append(runs)
        return sides


def judged(lot: Lot, study: int, claims: int, samples: int) -> list[Verdict]:
    """Draw a study of some claims and judge it by the rule that users get."""
    chance = np.random.default_rng(study)
    resamples, found = Resamples(samples), []
    for place in range(claims):
        one, other = lot.draw(chance, f"{study}-{place}")
        resamples.of([*one.values(), *other.values()])
        made = pair([one], [other], resamples)
        assert made is not None
        found.append(compare([made]))
    return decided([CLAIM] * claims, found, [100.0] * claims, [0] * claims)


NO_DIFFERENCE = [
    pytest.param(Lot(), 1, id="seeds"),
    pytest.param(Lot(seed_sd=0.05, example_sd=0.2), 1, id="seeds-and-examples"),
    pytest.param(Lot(seed_sd=0.0, example_sd=0.3), 1, id="examples"),
    pytest.param(Lot(seeds=8, seed_sd=0.03, example_sd=0.2), 3, id="three-claims"),
]


def false_confirmations(lot, claims, studies, samples, monkeypatch):
    for name in ("power", "seeds_needed"):  # they have no say in the word, and take most of the time
        monkeypatch.setattr(f"headstart.studies.judge.verdicts.{name}", lambda *_, **__: None)
    return [
        any(verdict.word == "confirmed" for verdict in judged(lot, study, claims, samples)) for study in range(studies)
    ]


@pytest.mark.parametrize(("lot", "claims"), NO_DIFFERENCE)
def test_where_nothing_differs_hardly_anything_is_confirmed(lot, claims, monkeypatch):
    """The short form: as many studies as leave a rate of one in ten no chance."""
    found = false_confirmations(lot, claims, 120, 200, monkeypatch)
    assert sum(found) <= stats.binom.ppf(0.999, len(found), 0.05)


@pytest.mark.long
@pytest.mark.parametrize(("lot", "claims"), NO_DIFFERENCE)
def test_at_most_one_in_twenty_is_confirmed_where_nothing_differs(lot, claims, monkeypatch):
    """2,000 studies; that any of a study's claims is confirmed counts as one false alarm, as Holm promises."""
    found = false_confirmations(lot, claims, 2000, 500, monkeypatch)
    assert sum(found) <= stats.binom.ppf(0.99, len(found), 0.05), f"{np.mean(found):.3f}"


def stated_and_found(studies, samples, lot, monkeypatch):
    """Return the power that is stated for a lot, from the variance seen in studies of it, and the share confirmed."""
    for name in ("power", "seeds_needed"):
        monkeypatch.setattr(f"headstart.studies.judge.verdicts.{name}", lambda *_, **__: None)
    verdicts = [judged(lot, 10_000 + study, 1, samples)[0] for study in range(studies)]
    seen = [verdict.comparison for verdict in verdicts]
    sd, examples_error, residual = (
        float(np.mean([getattr(one, name) ** 2 for one in seen]) ** 0.5)
        for name in ("sd", "examples_error", "residual")
    )
    stated = power(lot.gain, Spread(sd, examples_error, residual), lot.seeds)
    return stated, float(np.mean([verdict.word == "confirmed" for verdict in verdicts])), lot.gain / sd


ONE_SD = Lot(seeds=5, examples=1000, gain=0.088, seed_sd=0.06, rate=0.6)
"""The gain is one standard deviation of the paired difference: 0.06 √2, and what 1,000 examples leave to chance."""


def test_the_power_stated_is_about_the_power_found(monkeypatch):
    stated, found, _ = stated_and_found(200, 100, ONE_SD, monkeypatch)
    assert abs(stated - found) < 4 * (stated * (1 - stated) / 200) ** 0.5


@pytest.mark.long
def test_the_power_stated_is_the_power_found_at_one_sd_and_five_seeds(monkeypatch):
    stated, found, effect = stated_and_found(2500, 500, ONE_SD, monkeypatch)
    assert effect == pytest.approx(1.0, abs=0.05)
    assert abs(stated - found) < 0.03, (stated, found)


def test_power_with_five_seeds_is_the_chance_that_all_agree():
    """Sign flips of five seeds are sure of a direction only if all five point there."""
    assert power(1.0, Spread(1.0), 5) == pytest.approx(stats.norm.cdf(1.0) ** 5, abs=0.02)


def test_power_with_many_seeds_is_that_of_students_test():
    t_power = pytest.importorskip("statsmodels.stats.power", reason="statsmodels brings the reference").TTestPower()
    for effect, seeds in ((0.3, 40), (0.5, 30), (0.8, 20)):
        wanted = t_power.power(effect, seeds, 0.05, alternative="larger")
        assert power(effect, Spread(1.0), seeds) == pytest.approx(wanted, abs=0.03)


def test_seeds_needed_reach_the_power_and_one_fewer_does_not():
    spread = Spread(1.0, examples_error=0.1, residual=0.2)
    needed = seeds_needed(0.8, spread)
    assert needed is not None
    assert power(0.8, spread, needed) >= 0.8 > power(0.8, spread, needed - 1)
    assert seeds_needed(0.8, Spread(1.0, claims=10)) > needed, "more claims take more seeds"
    assert seeds_needed(0.1, Spread(1.0, examples_error=0.2)) is None, "seeds cannot make up for examples"
    assert seeds_needed(0.0, spread) is None


def test_the_smallest_difference_is_the_one_with_that_power():
    spread = Spread(0.02, examples_error=0.005)
    smallest = smallest_difference(spread, 8)
    assert smallest is not None and power(smallest, spread, 8) == pytest.approx(0.8, abs=0.02)
    assert smallest_difference(spread.with_examples(4), 8) < smallest
    assert smallest_difference(Spread(0.02, claims=2), 5) is None, "five seeds cannot decide two claims by sign flips"


def test_sign_flips_are_scipys():
    chance = np.random.default_rng(0)
    for seeds in (5, 8):
        one, other = chance.normal(0.3, 1, seeds), chance.normal(0, 1, seeds)
        theirs = stats.permutation_test(
            (one - other,), np.mean, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
        )
        assert permutation_over_seeds(one.tolist(), other.tolist()) == pytest.approx(theirs.pvalue)


def test_holm_and_the_interval_are_statsmodels_and_scipys():
    multitest = pytest.importorskip("statsmodels.stats.multitest", reason="statsmodels brings the reference")
    values = [0.001, 0.04, 0.03, 0.2, 0.011]
    assert holm(values) == pytest.approx(multitest.multipletests(values, method="holm")[1].tolist())
    scores = [0.61, 0.66, 0.58, 0.64, 0.6]
    low, high = stats.t.interval(0.95, 4, np.mean(scores), stats.sem(scores))
    found = interval(scores)
    assert (found.low, found.high) == pytest.approx((low, high))


def test_the_bootstrap_over_examples_is_scipys():
    """One seed: what is left is the choice of examples."""
    chance = np.random.default_rng(1)
    right = [(chance.random(300) < rate).astype(int).tolist() for rate in (0.8, 0.7)]
    runs = [
        {0: CellScore(f"n{side}", "accuracy", {"accuracy": float(np.mean(one))}, [1] * 300, one)}
        for side, one in enumerate(right)
    ]
    found = compare([pair([runs[0]], [runs[1]], Resamples(4000))])
    theirs = stats.bootstrap(
        (np.array(right[0]) - np.array(right[1]),), np.mean, n_resamples=4000, method="percentile", rng=0
    )
    assert (found.low, found.high) == pytest.approx(theirs.confidence_interval, abs=0.01)
    assert found.sd is None and found.p_seeds == (0.5, 0.5), "one seed tells nothing about seeds"
    assert found.examples_error == pytest.approx(theirs.standard_error, rel=0.1)


def paired(values, group="", noise=0.0):
    chance = np.random.default_rng(len(values))
    return Pair(
        group, dict(enumerate(values)), {s: value + noise * chance.normal(size=500) for s, value in enumerate(values)}
    )


def test_contexts_of_the_same_rows_are_one_unit_and_others_are_more():
    one, other = [0.02, 0.03, 0.01, 0.02, 0.04], [0.03, 0.02, 0.02, 0.01, 0.05]
    together = compare([paired(one, "sst2"), paired(other, "sst2")])
    apart = compare([paired(one, "sst2"), paired(other, "trec")])
    assert (together.units, apart.units) == (5, 10)
    assert together.difference == pytest.approx(apart.difference)
    assert together.p_better == pytest.approx(1 / 32) and apart.p_better < 0.01


def test_verdicts_are_three_words():
    clear, against, faint = (compare([paired(values)]) for values in (
        [0.02, 0.03, 0.01, 0.02, 0.04, 0.03, 0.02, 0.03], [-0.02, -0.03, -0.01, -0.02, -0.04, -0.03, -0.02, -0.03],
        [0.02, -0.03, 0.01, 0.02, -0.01, 0.03, -0.02, 0.0],
    ))  # fmt: skip
    found = decided([CLAIM] * 3, [clear, against, faint], [100.0] * 3, [0, 0, 2])
    assert [verdict.word for verdict in found] == ["confirmed", "refuted", "undecided"]
    assert "is confirmed: one > other by +2.5 (" in found[0].sentence()
    assert "more seed" in found[2].sentence() or "No number of seeds" in found[2].sentence()
    assert "2 of its cells are missing" in found[2].sentence()
    assert found[0].comparison.effect == pytest.approx(2.5, abs=0.6), "in standard deviations"


def test_a_claim_without_cells_is_undecided():
    (verdict,) = decided([CLAIM], [None], [100.0], [4])
    assert verdict.word == "undecided" and "no finished cells" in verdict.sentence()


def test_few_seeds_say_how_many_it_would_take():
    (verdict,) = decided([CLAIM], [compare([paired([0.02, 0.03, 0.01])])], [100.0], [0])
    assert verdict.word == "undecided" and verdict.needed == 5
    assert "about 2 more seeds would decide it" in verdict.sentence()


def outcome(name, right, gold=None, metric="accuracy"):
    gold = gold or [1] * len(right)
    return CellScore(name, metric, {metric: float(np.mean(np.array(right) == gold))}, gold, right, group=name[:4])


def claimed(contrast, found):
    axes = {
        "task": {"sst2": {"finetune.x": 1}, "trec": {"finetune.x": 2}},
        "start": {"mini": {"finetune.model": "a"}, "minilm": {"finetune.model": "b"}},
        "adaptation": {"full": {"finetune.adaptation": "full"}, "lora": {"finetune.adaptation": "lora"}},
    }
    made = {
        "question": "?", "output": "out", "base": {"finetune": {}}, "axes": axes, "compare": ["start", "adaptation"],
        "baselines": ["svm"], "seeds": 2, "claims": [{"statement": "so it is", "contrast": contrast}],
    }  # fmt: skip
    return judge(config.fill(Study, made), found, Resamples(50))[0]


def test_like_is_held_against_like_where_a_cell_is_missing():
    """MiniLM's lead over mini is not booked as that of full over LoRA."""
    found = Results()
    scores = {("mini", "full"): 5, ("mini", "lora"): 5, ("minilm", "full"): 9}
    for levels, points in scores.items():
        right = [1] * points + [0] * (10 - points)
        found.outcomes[System(levels), ("sst2",)] = {s: outcome(f"sst2{levels}{s}", right) for s in range(2)}
    found.holes.append(MissingCell(Cell(System(("minilm", "lora")), ("sst2",), 0, "later"), None))
    verdict = claimed("full > lora", found)
    assert verdict.comparison.difference == 0 and verdict.holes == 1
    assert claimed("minilm > mini", found).comparison.difference == pytest.approx(0.4)


def test_a_claim_speaks_of_the_contexts_that_count_its_metric():
    found = Results()
    for task, metric in (("sst2", "f1"), ("trec", "accuracy")):
        for levels, right in ((("mini", "full"), [1, 1, 0, 1]), (("mini", "lora"), [1, 0, 0, 1])):
            one = outcome(f"{task}{levels}", right, [1, 1, 1, 0], metric)
            found.outcomes[System(levels), (task,)] = {0: one}
    assert claimed("full > lora on mean(f1)", found).comparison.units == 1
    assert claimed("full > lora on mean(recall)", found).comparison is None


def test_each_test_set_is_resampled_by_its_own_gold():
    """A compared axis, as a language, may choose the test rows."""
    one, other = outcome("a", [1, 1, 1, 0], [1, 1, 1, 1]), outcome("b", [0, 0, 1], [0, 0, 0])
    ours, theirs = Resamples(400).of([one, other])
    assert (ours.mean(), theirs.mean()) == pytest.approx((0.75, 2 / 3), abs=0.05)


def test_an_effect_needs_three_units_that_differ():
    assert compare([paired([0.02, 0.03])]).effect is None
    assert compare([paired([0.1 + 0.2] * 4)]).effect is None
    assert compare([paired([0.02, 0.03, 0.01])]).effect > 0
