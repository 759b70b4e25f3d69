"""Perplexity and bits per byte: sums over texts, not means of means."""

from __future__ import annotations

import math

import pytest

from headstart.evaluation.likelihood import bits_per_byte, perplexity

TEXTS = [{"nats": 10.0, "tokens": 4, "bytes": 20}, {"nats": 2.0, "tokens": 2, "bytes": 4}]


def test_long_texts_weigh_more():
    assert perplexity([None] * 2, TEXTS) == pytest.approx(math.exp(12 / 6))
    assert bits_per_byte([None] * 2, TEXTS) == pytest.approx(12 / math.log(2) / 24)


def test_a_certain_byte_costs_zero_bits_and_a_uniform_byte_eight():
    assert bits_per_byte([None], [{"nats": 0.0, "tokens": 1, "bytes": 1}]) == 0
    assert bits_per_byte([None], [{"nats": math.log(256), "tokens": 1, "bytes": 1}]) == pytest.approx(8)


def test_empty_texts_and_very_bad_models_give_finite_numbers():
    assert perplexity([None], [{"nats": 0.0, "tokens": 0, "bytes": 0}]) == 1
    assert math.isfinite(perplexity([None], [{"nats": 1e9, "tokens": 1, "bytes": 1}]))
