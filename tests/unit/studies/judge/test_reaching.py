"""Claims that one pre-training reaches a level in fewer tokens than another."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from headstart.core import config
from headstart.core.errors import RecipeError
from headstart.studies.contrast import Contrast
from headstart.studies.definition import Study
from headstart.studies.grid import System
from headstart.studies.judge import looks
from headstart.studies.judge.pairing import Resamples
from headstart.studies.judge.reaching import evaluations, tokens_to, tokens_until
from headstart.studies.judge.results import Results
from headstart.studies.judge.verdicts import Verdict, judge

CLAIM = "fast < slow on tokens_to(loss, 3.5)"
LOG = [(100.0, 6.0), (200.0, 4.0), (300.0, 3.0), (400.0, 2.9)]


def study_of(contrast: str = CLAIM, **base: object) -> Study:
    axes = {"objective": {name: {"pretrain.objective": name} for name in ("fast", "slow")}}
    sections = {
        "question": "?", "output": "out", "base": {"pretrain": {}, "probe": {"probes": ["minimal_pairs"]}, **base},
        "axes": axes, "compare": ["objective"], "seed_pretraining": True,
        "claims": [{"statement": "it is faster", "contrast": contrast}],
    }  # fmt: skip
    return config.fill(Study, sections)


def judged(logs: dict[str, list[list[tuple[float, float]]]]) -> Verdict:
    by_system = {
        (System((name,)), ()): {seed: (f"{name}-{seed}", log) for seed, log in enumerate(runs)}
        for name, runs in logs.items()
    }
    contrast = Contrast.parse(CLAIM)
    results = Results(outcomes={contrast.outcome: tokens_until(by_system, contrast)})
    return judge(study_of(), results, Resamples(200))[0]


def decay(half_life: float) -> list[tuple[float, float]]:
    return [(float(tokens), 2 + 6 * 0.5 ** (tokens / half_life)) for tokens in range(0, 1001, 100)]


def test_the_level_is_interpolated_between_evaluations() -> None:
    assert tokens_to(LOG, 3.5, lower_is_better=True) == pytest.approx(250)
    assert tokens_to(LOG, 6.5, lower_is_better=True) == 100, "it was there at the first evaluation"
    assert tokens_to(LOG, 2.0, lower_is_better=True) is None
    assert tokens_to([(1, 0.1), (2, 0.5)], 0.3, lower_is_better=False) == pytest.approx(1.5)


def test_evaluations_get_the_tokens_of_their_step(tmp_path: Path) -> None:
    lines = [{"step": 10, "tokens": 1000}, {"step": 15, "validation/loss": 4.0}, {"step": 20, "tokens": 2000}]
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert evaluations(path, "loss") == [(1500.0, 4.0)]
    assert evaluations(path, "accuracy") == evaluations(tmp_path / "none.jsonl", "loss") == []


def test_fewer_tokens_are_confirmed_and_the_opposite_refuted() -> None:
    quick, late = [decay(100 + seed) for seed in range(6)], [decay(200 + seed) for seed in range(6)]
    verdict = judged({"fast": quick, "slow": late})
    assert verdict.word == "confirmed" and verdict.comparison.difference == pytest.approx(200, rel=0.1)
    assert "Differences are in million tokens." in verdict.sentence()
    assert judged({"fast": late, "slow": quick}).word == "refuted"


def test_a_run_that_never_reaches_the_level_is_worse_than_all_that_do() -> None:
    quick, never = [decay(400 - seed) for seed in range(6)], [[(0.0, 8.0), (1000.0, 7.0)]] * 6
    verdict = judged({"fast": quick, "slow": never})
    assert verdict.word == "confirmed"
    assert "million tokens. 6 of 6 runs of slow never reached it, and count as if" in verdict.sentence()
    neither = judged({"fast": never, "slow": never})
    assert neither.word == "undecided" and neither.comparison.difference == 0


@pytest.mark.parametrize("studies", [200, pytest.param(2000, marks=pytest.mark.long)])
@pytest.mark.parametrize("half_life", [150.0, 450.0])
def test_equal_systems_are_seldom_told_apart(studies: int, half_life: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the longer half-life about half of the runs never reach the level.

    Sign flips of six seeds are exact: they confirm 3 of 64 studies of equal systems, and nothing else limits them here.
    """
    for name in ("power", "seeds_needed"):
        monkeypatch.setattr(f"headstart.studies.judge.verdicts.{name}", lambda *_, **__: None)
    confirmed = 0
    for number in range(studies):
        rng = np.random.default_rng(number)
        logs = {name: [decay(half_life * rng.lognormal(0, 0.3)) for _ in range(6)] for name in ("fast", "slow")}
        confirmed += judged(logs).word == "confirmed"
    assert confirmed <= stats.binom.ppf(0.99, studies, 0.05), f"{confirmed / studies:.3f}"


def test_contrasts_of_tokens_are_parsed_and_others_refused() -> None:
    contrast = Contrast.parse("a < b/c on tokens_to( bits_per_byte , 1.20 )")
    assert contrast == Contrast(("a",), ("b", "c"), "bits_per_byte", None, "tokens_to(bits_per_byte, 1.2)", 1.2)
    assert Contrast.parse("a > b on probe.cloze.facts").outcome == "probe.cloze.facts"
    wrong = ("a > b on tokens_to(loss, 3)", "a < b", "a < b on mean(f1)", "a = b within 1 on tokens_to(loss, 3)")
    for text in wrong:
        with pytest.raises(ValueError, match=r"one < other on tokens_to\(loss, 3.5\)"):
            Contrast.parse(text)


def test_claims_without_what_they_compare_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"needs `base\.pretrain`"):
        study_of(pretrain=None)
    with pytest.raises(RecipeError, match=r"names the probe 'cloze'; base.probe.probes has: minimal_pairs"):
        study_of("fast > slow on probe.cloze")


def test_an_early_look_values_runs_by_its_own_longest_run() -> None:
    """A run that never reached the level is valued by the longest run, which a later seed must not change."""
    never, quick = [(0.0, 8.0), (1000.0, 7.0)], decay(100)
    logs = {
        (System((name,)), ()): {seed: (f"{name}-{seed}", run) for seed, run in enumerate(runs)}
        for name, runs in {"fast": [quick] * 3, "slow": [never, never, [(0.0, 8.0), (9000.0, 7.0)]]}.items()
    }
    results = tokens_until(logs, Contrast.parse(CLAIM))
    slow = System(("slow",)), ()
    assert {seed: cell.score for seed, cell in results.scores[slow].items()} == {0: 9001, 1: 9001, 2: 9001}
    assert {seed: cell.score for seed, cell in looks.until(results, 2).scores[slow].items()} == {0: 1001, 1: 1001}
