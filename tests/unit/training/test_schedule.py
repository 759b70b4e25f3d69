"""The shape of the learning rate over the budget."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.training.schedule import SLANT_RATIO, TRAPEZOID_DECAY, rate_factor

FALLING = ("linear", "cosine", "trapezoid")
KINDS = (*FALLING, "constant")


@pytest.mark.parametrize("kind", KINDS)
def test_warmup_rises_from_zero_to_one(kind):
    assert rate_factor(0.0, kind, 0.1) == 0
    assert rate_factor(0.05, kind, 0.1) == pytest.approx(0.5)
    assert rate_factor(0.1, kind, 0.1) == 1
    assert rate_factor(0.0, kind, 0.0) == 1


@pytest.mark.parametrize("kind", FALLING)
def test_the_rate_ends_at_zero(kind):
    assert rate_factor(1.0, kind, 0.1) == pytest.approx(0, abs=1e-12)
    assert rate_factor(1.7, kind, 0.1) == pytest.approx(0, abs=1e-12)


def test_the_middle_of_each_shape():
    assert rate_factor(0.55, "linear", 0.1) == pytest.approx(0.5)
    assert rate_factor(0.55, "cosine", 0.1) == pytest.approx(0.5)
    assert rate_factor(0.55, "trapezoid", 0.1) == 1
    assert rate_factor(1 - TRAPEZOID_DECAY / 2, "trapezoid", 0.1) == pytest.approx(0.5)
    assert rate_factor(1.0, "constant", 0.1) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("warmup", [0, 0.01, 0.06, 0.5, 0.8, 0.9, 0.99])
def test_the_rate_stays_in_range_and_is_continuous(kind, warmup):
    rates = [rate_factor(i / 10_000, kind, warmup) for i in range(10_001)]
    assert min(rates) >= 0 and max(rates) == 1
    steepest = max(1 / warmup if warmup else 0, 1.6 / (1 - warmup), 1 / TRAPEZOID_DECAY)
    assert max(abs(a - b) for a, b in pairwise(rates)) <= steepest / 10_000 + 1e-9


@given(st.sampled_from(FALLING), st.floats(0, 0.99), st.floats(0, 1), st.floats(0, 1))
def test_the_rate_only_falls_after_warmup(kind, warmup, a, b):
    early, late = sorted(warmup + (1 - warmup) * part for part in (a, b))
    assert rate_factor(early, kind, warmup) >= rate_factor(late, kind, warmup) - 1e-12


@pytest.mark.parametrize("cut_frac", [0.1, 0.25])
def test_the_slanted_triangle_matches_ulmfit(cut_frac):
    """Equation 3 of the paper over 1,000 steps, with its ratio of 32."""
    total = 1000
    cut = int(total * cut_frac)
    for step in range(total + 1):
        part = step / cut if step < cut else 1 - (step - cut) / (cut * (1 / cut_frac - 1))
        expected = (1 + part * (SLANT_RATIO - 1)) / SLANT_RATIO
        assert rate_factor(step / total, "slanted_triangular", cut_frac) == pytest.approx(expected)
    assert rate_factor(0, "slanted_triangular", cut_frac) == rate_factor(1, "slanted_triangular", cut_frac) == 1 / 32


def test_an_unknown_shape_is_refused():
    with pytest.raises(ValueError, match="unknown schedule"):
        rate_factor(0.5, "step", 0.1)
