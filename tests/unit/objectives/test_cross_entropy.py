"""Our cross-entropy against torch's: value and gradient, in both number formats, whatever the logits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.objectives import cross_entropy
from headstart.objectives.cross_entropy import summed_cross_entropy


def both(logits, labels, weights, above=0.37):
    """(value, gradient) by ours and by torch's."""
    found = []
    for ours in (True, False):
        leaf = logits.clone().requires_grad_()
        if ours:
            loss = summed_cross_entropy(leaf, labels, weights)
        else:
            loss = (F.cross_entropy(leaf.float(), labels, reduction="none") * weights).sum()
        (loss * above).backward()
        found.append((loss.detach(), leaf.grad))
    return found


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(2, 300), st.floats(0.01, 100), st.integers(0, 10**6))
def test_value_and_gradient_are_torchs(predictions, vocabulary, spread, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(predictions, vocabulary, generator=generator)
    labels = torch.randint(vocabulary, (predictions,), generator=generator)
    weights = torch.rand(predictions, generator=generator)
    (value, gradient), (expected, wanted) = both(logits, labels, weights)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-6)


def test_rows_in_several_lots_are_those_in_one(monkeypatch):
    torch.manual_seed(0)
    logits, labels, weights = torch.randn(37, 50), torch.randint(50, (37,)), torch.rand(37)
    (whole, gradient), _ = both(logits, labels, weights)
    monkeypatch.setattr(cross_entropy, "_BLOCK_SIZE", 200)
    (value, by_lots), _ = both(logits, labels, weights)
    torch.testing.assert_close(value, whole)
    assert torch.equal(by_lots, gradient)


def test_bf16_keeps_its_format_and_an_unlikely_label_its_price():
    logits = torch.zeros(2, 8, dtype=torch.bfloat16)
    logits[0, 0] = 1000.0
    (value, gradient), (expected, wanted) = both(logits, torch.tensor([3, 1]), torch.ones(2))
    assert value.item() == pytest.approx(expected.item()) and value > 1000
    assert gradient.dtype == torch.bfloat16
    torch.testing.assert_close(gradient, wanted, rtol=1e-2, atol=1e-3)


def test_without_gradients_nothing_is_kept():
    with torch.no_grad():
        loss = summed_cross_entropy(torch.randn(3, 5), torch.tensor([0, 1, 2]), torch.ones(3))
    assert loss.grad_fn is None
