"""The fused cross-entropy against torch's: value and gradient in fp32 and bf16."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.objectives import cross_entropy
from headstart.objectives.cross_entropy import summed_cross_entropy


def both(logits, labels, weights, above=0.37):
    """Return (value, gradient) of Headstart's and of torch's cross-entropy."""
    actual = []
    for ours in (True, False):
        leaf = logits.clone().requires_grad_()
        if ours:
            loss = summed_cross_entropy(leaf, labels, weights)
        else:
            loss = (F.cross_entropy(leaf.float(), labels, reduction="none") * weights).sum()
        (loss * above).backward()
        actual.append((loss.detach(), leaf.grad))
    return actual


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(2, 300), st.floats(0.01, 100), st.integers(0, 10**6))
def test_value_and_gradient_equal_torchs(predictions, vocabulary, spread, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(predictions, vocabulary, generator=generator)
    labels = torch.randint(vocabulary, (predictions,), generator=generator)
    weights = torch.rand(predictions, generator=generator)
    (value, gradient), (expected, target) = both(logits, labels, weights)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, target, rtol=1e-5, atol=1e-6)


def test_result_does_not_depend_on_the_block_size(monkeypatch):
    torch.manual_seed(0)
    logits, labels, weights = torch.randn(37, 50), torch.randint(50, (37,)), torch.rand(37)
    (whole, gradient), _ = both(logits, labels, weights)
    monkeypatch.setattr(cross_entropy, "_BLOCK_SIZE", 200)
    (value, blocked), _ = both(logits, labels, weights)
    torch.testing.assert_close(value, whole)
    assert torch.equal(blocked, gradient)


def test_bf16_gradient_has_the_dtype_and_the_loss_of_an_unlikely_label_is_large():
    logits = torch.zeros(2, 8, dtype=torch.bfloat16)
    logits[0, 0] = 1000.0
    (value, gradient), (expected, target) = both(logits, torch.tensor([3, 1]), torch.ones(2))
    assert value.item() == pytest.approx(expected.item()) and value > 1000
    assert gradient.dtype == torch.bfloat16
    torch.testing.assert_close(gradient, target, rtol=1e-2, atol=1e-3)


def test_no_gradient_is_stored_without_grad_mode():
    with torch.no_grad():
        loss = summed_cross_entropy(torch.randn(3, 5), torch.tensor([0, 1, 2]), torch.ones(3))
    assert loss.grad_fn is None
