"""Muon and AdamW as one optimizer: the same steps as torch's two optimizers, and the same bits after a resume."""

from __future__ import annotations

import signal

import pytest
import torch

from headstart.training import optimizer, precision
from headstart.training.muon import Muon, layer_matrices, orthogonalized


def learner_of(toy):
    """Return the toy learner with its hidden matrix in a stack of layers."""
    learner = toy.Learner()
    learner.module.layers = torch.nn.ModuleList([learner.module.hidden])
    return learner


def test_only_matrices_of_repeated_layers_are_orthogonal(toy):
    learner = learner_of(toy)
    assert [id(p) for p in layer_matrices(learner.module)] == [id(learner.module.hidden.weight)]
    built = optimizer.build(
        learner.module, learner.parameter_groups(), toy.settings(optim="muon", muon_scale=7.0, learning_rate=0.01)
    )
    assert isinstance(built, Muon)
    optimizer.set_rate(built, 0.01)
    rates = {id(p): group["lr"] for group in built.param_groups for p in group["params"]}
    assert rates.keys() == {id(p) for p in learner.module.parameters()}
    assert rates[id(learner.module.hidden.weight)] == pytest.approx(0.07)
    assert rates[id(learner.module.embedding.weight)] == pytest.approx(0.01)


def test_bf16_steps_equal_those_of_torchs_two_optimizers(toy, monkeypatch):
    monkeypatch.setattr(precision, "has_fast_bf16", lambda device: True)
    ours, theirs = learner_of(toy), learner_of(toy)
    settings = toy.settings(optim="muon", learning_rate=0.01, weight_decay=0.1)
    built = optimizer.build(ours.module, ours.parameter_groups(), settings)
    optimizer.set_rate(built, 0.01)
    matrix = theirs.module.hidden.weight
    rest = [p for p in theirs.module.parameters() if p is not matrix]
    pair = [
        torch.optim.Muon([matrix], lr=0.03, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(
            [
                {"params": [p for p in rest if p.ndim >= 2], "weight_decay": 0.1},
                {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=0.01, betas=(settings.adam_beta1, settings.adam_beta2), eps=settings.adam_epsilon, fused=True,
        ),
    ]  # fmt: skip
    for step in range(3):
        for module in (ours.module, theirs.module):
            for number, parameter in enumerate(module.parameters()):
                torch.manual_seed(100 * step + number)
                parameter.grad = torch.randn_like(parameter)
        built.step()
        for part in pair:
            part.step()
    for ours_p, theirs_p in zip(ours.module.parameters(), theirs.module.parameters(), strict=True):
        assert torch.equal(ours_p, theirs_p)


@pytest.mark.parametrize("shape", [(24, 24), (24, 30), (24, 120), (120, 24)])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_singular_values_come_near_one_and_directions_stay(shape, kind):
    torch.manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    values = torch.logspace(0, -1.5, len(right))
    result = left.mT @ orthogonalized((left * values) @ right, kind).float() @ right.mT
    assert ((result.diagonal() > 0.6) & (result.diagonal() < 1.3)).all()
    assert (result - result.diagonal().diag()).abs().max() < (0.1 if kind == torch.bfloat16 else 1e-3)


@pytest.mark.parametrize("shape", [(40, 200), (200, 40)])
def test_iterating_on_the_gram_matrix_equals_the_plain_iteration(shape, monkeypatch):
    # A gradient is nearly singular: most of it is in a few directions.
    torch.manual_seed(0)
    matrix = torch.randn(shape[0], 3) @ torch.randn(3, shape[1]) + 1e-4 * torch.randn(shape)
    short = orthogonalized(matrix, torch.float32)
    monkeypatch.setattr("headstart.training.muon._LONG", float("inf"))
    exact = orthogonalized(matrix.double(), torch.float64)
    assert (short - exact).norm() < 2e-3 * exact.norm()
    assert (short - orthogonalized(matrix, torch.float32)).norm() < 2e-3 * exact.norm()


def test_a_matrix_without_a_gradient_does_not_change(toy):
    learner = learner_of(toy)
    built = optimizer.build(learner.module, learner.parameter_groups(), toy.settings(optim="muon"))
    before = learner.module.hidden.weight.clone()
    built.step()
    assert torch.equal(learner.module.hidden.weight, before)


def test_an_interrupted_run_gives_the_same_bits(toy, tmp_path):
    given = {"optim": "muon", "budget": "8 steps"}
    smooth, rough = learner_of(toy), learner_of(toy)
    toy.train(tmp_path / "smooth", smooth, **given)
    with pytest.raises(KeyboardInterrupt):
        toy.train(tmp_path / "rough", learner_of(toy), toy.At(3, lambda: signal.raise_signal(signal.SIGINT)), **given)
    _, outcome = toy.train(tmp_path / "rough", rough, **given)
    assert outcome.resumed_from == 3
    toy.assert_same(toy.weights(rough), toy.weights(smooth))
