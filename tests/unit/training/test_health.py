"""A sick curve is called sick, and for the right reason."""

from __future__ import annotations

import math

import pytest

from headstart.training import health, schedule
from headstart.training.settings import TrainingSettings

SETTINGS = TrainingSettings(learning_rate=1e-3, budget="100 steps")


def curve(count: int = 100, **given):
    """A healthy one, with some of its columns replaced by functions of the line's number."""
    lines = []
    for n in range(count):
        share = (n + 1) / 100
        healthy = {
            "step": n + 1, "loss": 7 * math.exp(-n / 60), "gradient_norm": 1.0 + 0.1 * math.sin(n), "share": share,
            "learning_rate": 1e-3 * schedule.rate_factor(n / 100, "linear", 0.06), "tokens_per_second": 1000.0,
        }  # fmt: skip
        lines.append(healthy | {name: function(n) for name, function in given.items()})
    return lines


def faults(lines, **given):
    return [r.sentence for r in health.of_curve(lines, SETTINGS, **given) if r.verdict != "good"]


@pytest.mark.parametrize("count", [12, 50, 100])
def test_a_healthy_curve_has_no_fault(count):
    assert faults(curve(count)) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"loss": lambda n: 7.3}, "loss does not fall"),
        ({"loss": lambda n: 5 + n / 50}, "loss does not fall"),
        ({"learning_rate": lambda n: 0.0}, "rate has been 0"),
        ({"learning_rate": lambda n: 4e-4, "share": lambda n: 0.3}, "stuck at 4.00e-04"),
        ({"learning_rate": lambda n: 9e-4}, "does not follow its schedule"),
        ({"gradient_norm": lambda n: 1e-7}, "gradient has vanished"),
        ({"gradient_norm": lambda n: 0.5 * 1.05**n}, "norm has grown"),
        ({"gradient_norm": lambda n: 40.0}, "by a factor of 40"),
        ({"tokens_per_second": lambda n: 1000.0 if n < 70 else 300.0}, "reads 300 tokens a second"),
    ],
)
def test_each_sickness_is_named(given, expected):
    found = faults(curve(**given))
    assert len(found) == 1 and expected in found[0]


def test_a_rate_of_an_adaptation_s_own_is_no_fault():
    assert faults(curve(learning_rate=lambda n: 3e-4 + n * 1e-9), planned=False) == []


def test_the_peak_may_fall_between_two_lines():
    assert faults(curve()[::7] + curve()[-1:]) == []


def test_little_is_said_of_little():
    assert "too few" in faults(curve(5))[0] and "Nothing has been logged" in faults([])[0]


@pytest.mark.parametrize(
    ("values", "verdict"), [([5, 4, 3, 2.9], "good"), ([5, 3, 3.4, 4], "look"), ([5, 3, 3.01], "good"), ([5, 4], None)]
)
def test_overfitting_is_told_from_noise(values, verdict):
    lines = [{"step": n, "validation/loss": value} for n, value in enumerate(values)]
    assert [r.verdict for r in health.of_held_out(lines)] == ([verdict] if verdict else [])


def test_higher_is_better_for_a_score():
    lines = [{"step": n, "validation/score": value} for n, value in enumerate([0.5, 0.9, 0.6])]
    assert [r.verdict for r in health.of_held_out(lines, "score", lower_is_better=False)] == ["look"]


def test_bad_steps_are_counted_and_their_rows_named():
    bad = [{"step": n, "rows": [{"index": 7}]} for n in range(5)]
    (remark,) = health.of_records(bad, [], 100)
    assert remark.verdict == "bad" and "5 of 100 steps" in remark.sentence and "rows 7 are bad" in remark.sentence
    assert health.of_records(bad[:1], [], 1000)[0].verdict == "look"
    good, spike = health.of_records([], [{"step": 40, "rows": [{"index": 3}]}], 1000)
    assert (good.verdict, spike.verdict) == ("good", "good") and "step 40, where the rows 3" in spike.sentence
