"""An unhealthy curve is recognized, for the right reason."""

from __future__ import annotations

import math

import pytest

from headstart.training import health, schedule
from headstart.training.settings import TrainingSettings

SETTINGS = TrainingSettings(learning_rate=1e-3, budget="100 steps")


def curve(count: int = 100, **given):
    """Return a healthy curve, with some columns replaced by functions of the line number."""
    lines = []
    for n in range(count):
        share = (n + 1) / 100
        healthy = {
            "step": n + 1, "loss": 7 * math.exp(-n / 60), "gradient_norm": 1.0 + 0.1 * math.sin(n), "share": share,
            "learning_rate": 1e-3 * schedule.rate_factor(n / 100, "linear", 0.06), "tokens_per_second": 1000.0,
        }  # fmt: skip
        lines.append(healthy | {name: function(n) for name, function in given.items()})
    return lines


def complaints(lines, **given):
    return [f.sentence for f in health.check_curve(lines, SETTINGS, **given) if f.level != "ok"]


@pytest.mark.parametrize("count", [12, 50, 100])
def test_a_healthy_curve_has_no_complaints(count):
    assert complaints(curve(count)) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"loss": lambda n: 7.3}, "loss does not fall"),
        ({"loss": lambda n: 5 + n / 50}, "loss does not fall"),
        ({"learning_rate": lambda n: 0.0}, "rate is 0 in all 100 lines"),
        ({"learning_rate": lambda n: 4e-4, "share": lambda n: 0.3}, "stuck at 4.00e-04"),
        ({"learning_rate": lambda n: 9e-4}, "does not follow its schedule"),
        ({"gradient_norm": lambda n: 1e-7}, "gradient has vanished"),
        ({"gradient_norm": lambda n: 0.5 * 1.05**n}, "norm has grown"),
        ({"gradient_norm": lambda n: 40.0}, "by a factor of 40.0"),
        ({"gradient_norm": lambda n: 1.5}, "100% of the last gradients were clipped"),
        (
            {"tokens_per_second": lambda n: 1000.0 if n < 70 else 300.0},
            "speed dropped to 300 tokens per second from a median of 1,000",
        ),
    ],
)
def test_each_problem_is_recognized(given, expected):
    (complaint,) = complaints(curve(**given))
    assert expected in complaint


def test_the_learning_rate_of_an_adaptation_is_accepted():
    assert complaints(curve(learning_rate=lambda n: 3e-4 + n * 1e-9), planned=False) == []


def test_the_peak_may_be_between_two_lines():
    assert complaints(curve()[::7] + curve()[-1:]) == []


def test_a_short_curve_is_not_judged():
    assert "too few" in complaints(curve(5))[0] and "Nothing has been logged" in complaints([])[0]


@pytest.mark.parametrize(
    ("values", "level"), [([5, 4, 3, 2.9], "ok"), ([5, 3, 3.4, 4], "warning"), ([5, 3, 3.01], "ok"), ([5, 4], None)]
)
def test_overfitting_is_distinguished_from_noise(values, level):
    lines = [{"step": n, "validation/loss": value} for n, value in enumerate(values)]
    assert [f.level for f in health.check_held_out(lines)] == ([level] if level else [])


def test_bad_steps_and_spikes_are_counted_with_their_rows():
    bad = [{"step": n, "rows": [{"index": 7}]} for n in range(5)]
    (finding,) = health.check_records(bad, [], 100)
    assert finding.level == "problem" and "5 of 100 steps" in finding.sentence and "loss of rows 7" in finding.sentence
    assert health.check_records(bad[:1], [], 1000)[0].level == "warning"
    quarantine, spike = health.check_records([], [{"step": 40, "rows": [{"index": 3}]}], 1000)
    assert (quarantine.level, spike.level) == ("ok", "ok")
    assert "1 step had a spike" in spike.sentence and "step 40, where rows 3" in spike.sentence


def test_few_lines_show_whether_gradients_are_clipped():
    """Clipping is no trend: a short run is judged by all its lines."""
    few = [f.sentence for f in health.check_curve(curve(5, gradient_norm=lambda n: 8.0), SETTINGS)]
    assert "Only 5 lines" in few[0] and "100% of the gradients were clipped" in few[1]
    assert len(health.check_curve(curve(5), SETTINGS)) == 1


def test_a_held_out_loss_of_nan_is_not_at_its_best():
    lines = [{"step": n, "validation/loss": loss} for n, loss in enumerate([3.0, 2.5, math.nan])]
    (finding,) = health.check_held_out(lines)
    assert finding.level == "problem" and "loss is nan at the last evaluation" in finding.sentence
