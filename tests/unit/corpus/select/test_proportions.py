"""Proportions of sources and languages, and choices by hash."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("daft", reason="the corpus engine is missing; pip install 'headstart[corpus]'")

from headstart.corpus.select.proportions import rates, uniform


def test_rates_keep_the_scarcest_group_whole() -> None:
    sizes = {("a", "en"): 1000, ("b", "en"): 100}
    assert rates(sizes, {"a": 1, "b": 1}, None) == pytest.approx({("a", "en"): 0.1, ("b", "en"): 1.0})
    assert rates(sizes, {"a": None, "b": None}, None) == pytest.approx({("a", "en"): 1.0, ("b", "en"): 1.0})
    languages = {("a", "en"): 10_000, ("a", "pt"): 100}
    lifted = rates(languages, {"a": None}, 0.5)
    kept = {group: languages[group] * rate for group, rate in lifted.items()}
    assert kept["a", "en"] / kept["a", "pt"] == pytest.approx((10_000 / 100) ** 0.5)
    assert max(lifted.values()) == pytest.approx(1.0)
    assert rates({("a", "en"): 0}, {"a": 1.0}, 0.3) == {("a", "en"): 1.0}


def test_the_exponent_applies_to_a_language_across_sources() -> None:
    apart = rates({("a", "en"): 10_000, ("b", "pt"): 100}, {"a": None, "b": None}, 0.5)
    assert apart == pytest.approx({("a", "en"): 0.1, ("b", "pt"): 1.0})
    spread = rates({("a", "en"): 6_000, ("b", "en"): 4_000, ("b", "pt"): 100}, {"a": None, "b": None}, 0.5)
    assert spread == pytest.approx({("a", "en"): 0.1, ("b", "en"): 0.1, ("b", "pt"): 1.0})


def test_numbers_are_uniform_and_depend_on_key_seed_and_purpose_alone() -> None:
    keys = np.random.default_rng(0).integers(0, 2**63, 100_000).astype(np.uint64)
    drawn = uniform(keys, 0, "validation")
    assert drawn.min() >= 0 and drawn.max() < 1
    assert np.histogram(drawn, bins=20, range=(0, 1))[0] == pytest.approx(np.full(20, 5000), rel=0.06)
    assert (uniform(keys[::-1], 0, "validation")[::-1] == drawn).all()
    for other in (uniform(keys, 1, "validation"), uniform(keys, 0, "mixture")):
        assert abs(np.corrcoef(drawn, other)[0, 1]) < 0.02
