"""Budgets in the forms that users write."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.training.budget import Budget, Usage


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("30 min", 1800, "seconds"), ("30min", 1800, "seconds"), ("30 Minutes", 1800, "seconds"),
        ("5m", 300, "seconds"),
        ("2 h", 7200, "seconds"), ("1.5 hours", 5400, "seconds"), ("1 day", 86400, "seconds"), ("90 s", 90, "seconds"),
        ("10M tokens", 1e7, "tokens"), ("10 M tokens", 1e7, "tokens"), ("10Mtokens", 1e7, "tokens"),
        ("1,000,000 tokens", 1e6, "tokens"), ("1_000 steps", 1000, "steps"), ("2000 steps", 2000, "steps"),
        ("1 step", 1, "steps"), ("3 Epochs", 3, "epochs"), ("0.5 epochs", 0.5, "epochs"), ("1 Token", 1, "tokens"),
        ("1e15 flops", 1e15, "flops"), ("1E15 FLOPs", 1e15, "flops"), ("2 P flops", 2e15, "flops"),
        ("3Tflops", 3e12, "flops"), ("1E flops", 1e18, "flops"), ("2k steps", 2000, "steps"),
        ("  7  steps ", 7, "steps"),
        ("1B tokens", 1e9, "tokens"), ("1e-1 epochs", 0.1, "epochs"),
    ],
)  # fmt: skip
def test_a_budget_is_parsed(text, amount, unit):
    budget = Budget.parse(text)
    assert budget.unit == unit and budget.amount == pytest.approx(amount)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "10", "min", "soon", "ten steps", "-3 steps", "+3 steps", "0 steps", "0.0 h", "1e-400 steps",
        "1e400 steps",
        "nan steps", "inf steps", "3 parsecs", "3 steps 4", "3 steps and", "1..5 h", "1.5.2 h", "10M", "10 M", "2,5 h",
        "1,00 steps", "1,0000 steps", ",5 h", "_5 h", "3 Q tokens", "3 kM tokens", "3 mtokens", "３ steps",
        "0x10 steps",
    ],
)  # fmt: skip
def test_an_ambiguous_budget_is_refused(text):
    with pytest.raises(ValueError, match="it must be"):
        Budget.parse(text)


@given(
    st.floats(1e-6, 1e12),
    st.sampled_from(["", "k", "M", "G"]),
    st.sampled_from(["steps", "tokens", "h", "epochs", "flops"]),
)
def test_any_amount_survives_formatting(amount, multiple, unit):
    factor = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[multiple] * (3600 if unit == "h" else 1)
    for text in (f"{amount!r}{multiple} {unit}", f"{amount!r} {multiple}{unit}"):
        assert Budget.parse(text).amount == pytest.approx(amount * factor)


@given(st.text(max_size=20))
def test_any_text_is_parsed_or_refused(text):
    try:
        budget = Budget.parse(text)
    except ValueError:
        return
    assert budget.amount > 0 and math.isfinite(budget.amount)


@given(st.floats(0.01, 100), st.integers(1, 500), st.integers(1, 5000))
def test_epochs_become_just_enough_steps(epochs, batch_size, samples):
    budget = Budget(epochs, "epochs").in_steps(batch_size, samples)
    assert budget.unit == "steps" and budget.amount >= 1
    assert budget.amount * batch_size >= epochs * samples - 1e-6
    assert budget.amount == 1 or (budget.amount - 1) * batch_size < epochs * samples


def test_other_units_stay_and_the_fraction_is_of_the_budgets_unit():
    usage = Usage(seconds=30, tokens=400, steps=5, flops=1e9)
    for text, fraction in (("1 min", 0.5), ("800 tokens", 0.5), ("10 steps", 0.5), ("1e9 flops", 1.0)):
        budget = Budget.parse(text)
        assert budget.in_steps(3, 7) == budget and budget.fraction_done(usage) == fraction
    with pytest.raises(ValueError, match="epochs"):
        Budget.parse("1 epoch").fraction_done(usage)
