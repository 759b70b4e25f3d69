"""Claims that two systems are equally good, and that a lead is larger in one context than in another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from headstart.core import config
from headstart.core.errors import RecipeError
from headstart.evaluation.comparison import PairedScores, compare
from headstart.evaluation.equivalence import equivalence
from headstart.studies.contrast import Contrast
from headstart.studies.definition import Study
from headstart.studies.grid import System
from headstart.studies.judge.pairing import Resamples, pair
from headstart.studies.judge.results import CellScore, Results
from headstart.studies.judge.verdicts import judge

EXAMPLES = 400


def draw(rng: np.random.Generator, rate: float, seeds: int, name: str) -> dict[int, CellScore]:
    """Runs of one system that differ by 1 point over seeds."""
    runs = {}
    for seed in range(seeds):
        right = (rng.random(EXAMPLES) < rate + rng.normal(0, 0.01)).astype(int).tolist()
        score = {"accuracy": float(np.mean(right))}
        runs[seed] = CellScore(f"{name}-{seed}", "accuracy", score, [1] * EXAMPLES, right, group=name[:4])
    return runs


def study_of(seeds: int, baselines: Sequence[str] = ("svm",), **claim: object) -> Study:
    axes = {
        "task": {"sst2": {"finetune.x": 1}, "trec": {"finetune.x": 2}},
        "labels": {"32": {"finetune.y": 32}, "2048": {"finetune.y": 2048}},
        "start": {"ready": {"finetune.model": "a"}, "none": {"finetune.model": "b"}},
    }
    sections = {
        "question": "?", "output": "out", "base": {"finetune": {}}, "axes": axes, "compare": ["start"],
        "baselines": list(baselines), "reference": "none", "seeds": seeds,
        "claims": [{"statement": "so it is", **claim}],
    }  # fmt: skip
    return config.fill(Study, sections)


def results_of(rng: np.random.Generator, rates: dict[tuple[str, str], float], seeds: int) -> Results:
    """Two tasks whose runs have these success rates by number of labels and start."""
    results = Results()
    for task in ("sst2", "trec"):
        for (labels, start), rate in rates.items():
            runs = draw(rng, rate, seeds, f"{task}-{labels}-{start}")
            results.scores[System((start,)), (task, labels)] = runs
    return results


RATES = {("32", "ready"): 0.85, ("32", "none"): 0.60, ("2048", "ready"): 0.90, ("2048", "none"): 0.86}


def test_a_larger_lead_at_few_labels_is_confirmed_and_the_opposite_refuted() -> None:
    results = results_of(np.random.default_rng(0), RATES, seeds=6)
    more = {"contrast": "ready > none", "where": {"labels": 32}, "versus": {"labels": 2048}}
    (verdict,) = judge(study_of(6, **more), results, Resamples(400))
    assert verdict.word == "confirmed"
    assert verdict.comparison.difference == pytest.approx(0.25 - 0.04, abs=0.04)
    assert verdict.comparison.units == 12, "two tasks of six seeds"
    assert "the lead of ready > none at 32 exceeds that at 2048 by +" in verdict.sentence()
    less = {**more, "where": more["versus"], "versus": more["where"]}
    assert judge(study_of(6, **less), results, Resamples(400))[0].word == "refuted"


def test_a_context_without_its_counterpart_does_not_count() -> None:
    results = results_of(np.random.default_rng(0), RATES, seeds=6)
    for start in ("ready", "none"):
        del results.scores[System((start,)), ("trec", "2048")]
    claim = {"contrast": "ready > none", "where": {"labels": 32}, "versus": {"labels": 2048}}
    assert judge(study_of(6, **claim), results, Resamples(400))[0].comparison.units == 6


def test_a_network_is_compared_with_itself_from_scratch_not_with_another_network() -> None:
    rng = np.random.default_rng(2)
    results = Results()
    for task in ("sst2", "trec"):
        for system, rate in {("ready",): 0.80, ("none",): 0.95}.items():
            results.scores[System(system), (task, "32")] = draw(rng, rate, 6, f"{task}-{system[0]}")
            scratch = draw(rng, rate - 0.1, 6, f"{task}-{system[0]}-scratch")
            results.scores[System(system, "scratch"), (task, "32")] = scratch
    claim = {"contrast": "ready > scratch", "where": {"labels": 32}}
    (verdict,) = judge(study_of(6, baselines=["scratch"], **claim), results, Resamples(400))
    assert verdict.word == "confirmed" and verdict.comparison.difference == pytest.approx(0.10, abs=0.04)
    assert verdict.comparison.units == 12


def test_equal_systems_are_confirmed_within_a_margin_that_the_data_resolve() -> None:
    equal = {("2048", "ready"): 0.86, ("2048", "none"): 0.86}
    results = results_of(np.random.default_rng(1), equal, seeds=8)
    words = {
        margin: judge(study_of(8, contrast=f"ready = none within {margin}"), results, Resamples(400))[0]
        for margin in ("4.0", "0.1")
    }
    assert (words["4.0"].word, words["0.1"].word) == ("confirmed", "undecided")
    assert "ready = none within 4.0, the difference is " in words["4.0"].sentence()


def test_a_difference_beyond_the_margin_refutes_equality() -> None:
    different = {("2048", "ready"): 0.90, ("2048", "none"): 0.70}
    results = results_of(np.random.default_rng(2), different, seeds=8)
    assert judge(study_of(8, contrast="ready ≈ none within 2"), results, Resamples(400))[0].word == "refuted"


def test_a_difference_that_is_not_shown_is_no_equality() -> None:
    """Three noisy seeds show neither a difference nor that there is none."""
    rng = np.random.default_rng(3)
    noisy = PairedScores("a", dict(enumerate(rng.normal(0, 0.05, 5))), {s: rng.normal(0, 0.03, 500) for s in range(5)})
    comparison = compare([noisy])
    assert comparison is not None and comparison.p_value > 0.05
    assert equivalence([noisy], 0.01)[0] > 0.05


def test_identical_predictions_are_equal_whatever_the_margin() -> None:
    same = draw(np.random.default_rng(4), 0.8, 6, "same")
    paired = pair([same], [same], Resamples(400))
    assert paired is not None and paired.discordant == 0
    assert equivalence([paired], 0.001)[0] == pytest.approx(1 / 64)


def false_alarms(kind: str, studies: int) -> float:
    """Return how often a claim is confirmed at the border where it is just false."""
    confirmed = 0
    claim = {"contrast": "ready > none", "where": {"labels": 32}, "versus": {"labels": 2048}}
    rates = {("32", "ready"): 0.8, ("32", "none"): 0.7, ("2048", "ready"): 0.9, ("2048", "none"): 0.8}
    if kind == "equivalence":
        claim, rates = {"contrast": "ready = none within 3"}, {("32", "ready"): 0.83, ("32", "none"): 0.8}
    study = study_of(6, **claim)
    for number in range(studies):
        results = results_of(np.random.default_rng(100 + number), rates, seeds=6)
        confirmed += judge(study, results, Resamples(200))[0].word == "confirmed"
    return confirmed / studies


@pytest.mark.parametrize("studies", [40, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["interaction", "equivalence"])
def test_claims_that_are_just_false_are_seldom_confirmed(
    kind: str, studies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("power", "seeds_needed"):  # they do not change the verdict, and take most of the time
        monkeypatch.setattr(f"headstart.studies.judge.verdicts.{name}", lambda *_, **__: None)
    assert false_alarms(kind, studies) <= 0.05


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a/b > c", Contrast(("a", "b"), ("c",), "score")),
        ("a = b within 1.5", Contrast(("a",), ("b",), "score", 1.5)),
        ("a ≈ b/c within 2 on mean(f1)", Contrast(("a",), ("b", "c"), "f1", 2.0)),
    ],
)
def test_contrasts_are_parsed(text: str, expected: Contrast) -> None:
    assert Contrast.parse(text) == expected


@pytest.mark.parametrize("text", ["a = b", "a > b within 1", "a = b within 0", "a = b within -1", "a ≈≈ b within 1"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="it must read `one > other`, or `one = other within"):
        Contrast.parse(text)


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"where": {"labels": 32}, "versus": {"labels": 32}}, "each name another level"),
        ({"versus": {"labels": 32}}, "each name another level"),
        ({"where": {"labels": 32}, "versus": {"labels": [32, 2048]}}, "each name another level"),
        ({"where": {"labels": 32}, "versus": {"labels": 64}}, "labels has no level '64'"),
        ({"contrast": "ready = none within 1", "where": {"labels": 32}, "versus": {"labels": 2048}}, "compares leads"),
    ],
)
def test_wrong_claims_are_refused(claim: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        study_of(2, **{"contrast": "ready > none", **claim})
