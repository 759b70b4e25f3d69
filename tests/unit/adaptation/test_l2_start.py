"""L2-SP: the size of the penalty and its effect on training."""

from __future__ import annotations

import pytest
import torch

from headstart.adaptation.l2_start import L2Start
from headstart.stages.finetune.recipe import FinetuneTraining, settings_of


def test_the_penalty_is_half_the_squared_distance_from_the_start(given_of):
    given = given_of("bert")
    method = L2Start(L2Start.Config(pull=0.4, pull_new=0.0))
    model = method.adapt(given.source)
    assert method.penalty(model).item() == 0
    embeddings = model.bert.embeddings.word_embeddings.weight
    with torch.no_grad():
        embeddings[:2, :3] += 0.5
        model.classifier.weight += 1
    assert method.penalty(model).item() == pytest.approx(0.4 / 2 * 6 * 0.25, rel=1e-4)
    batch = given.batch(0, 1, 2)
    model.eval()
    extra = method.loss(given.task, model, batch) - given.task.loss(model, batch)
    assert extra.item() == pytest.approx(3 * method.penalty(model).item(), rel=1e-3)


def test_new_parameters_are_pulled_toward_zero(given_of):
    source = given_of("modernbert").source
    method = L2Start(L2Start.Config(pull=0.0, pull_new=0.2))
    model = method.adapt(source)
    assert source.new_parameters() == {"classifier.weight", "classifier.bias"}
    expected = 0.1 * sum(model.get_parameter(name).square().sum().item() for name in source.new_parameters())
    assert method.penalty(model).item() == pytest.approx(expected, rel=1e-4)


def test_a_strong_pull_keeps_the_body_near_its_start(given_of):
    given = given_of("modernbert")

    def distance(pull: float) -> float:
        method = L2Start(L2Start.Config(pull=pull))
        model = method.adapt(given.source).eval()
        start = [p.detach().clone() for p in model.base_model.parameters()]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
        for step in range(15):
            method.loss(given.task, model, given.batch(step % 4, 5, 7)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return sum((p - s).square().sum().item() for p, s in zip(model.base_model.parameters(), start, strict=True))

    assert distance(10.0) < 0.5 * distance(0.0)


def test_weight_decay_is_off_by_default():
    training = FinetuneTraining(weight_decay=0.1)
    assert settings_of(training, L2Start.Config()).weight_decay == 0.0
    assert settings_of(training, L2Start.Config(weight_decay=None)).weight_decay == 0.1
