"""A few faults of every kind; `python tests/faults/run.py` does the whole number and writes the figures down."""

from __future__ import annotations

import pytest


def assert_survived(found, count: int) -> None:
    assert found.count >= count and not found.failures, "\n".join(found.failures)


@pytest.mark.parametrize("subject", ["masked_lm", "causal_lm", "encoder-decoder"])
def test_killed_at_random_moments_a_run_ends_as_an_undisturbed_one(ground, subject):
    from campaigns import kills

    assert_survived(kills.campaign(ground, 3, seed=hash(subject) % 7, subjects=(subject,)), 3)
