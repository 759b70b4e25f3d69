"""Distances between a student and its teacher, against torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaModel

from headstart.core.distillation_losses import (
    attention_scores,
    cosine_distance,
    layer_map,
    soft_label_loss,
    soft_target_loss,
    squared_distance,
)
from headstart.core.errors import RecipeError


def test_soft_targets_are_the_divergence_of_softened_predictions():
    student, teacher = torch.randn(7, 11), torch.randn(7, 11)
    expected = 9 * F.kl_div((student / 3).log_softmax(-1), (teacher / 3).softmax(-1), reduction="none").sum(-1)
    torch.testing.assert_close(soft_target_loss(student, teacher, 3.0), expected)
    torch.testing.assert_close(soft_target_loss(teacher, teacher, 3.0), torch.zeros(7))


def test_the_gradient_keeps_its_size_as_the_temperature_rises():
    sizes = []
    for temperature in (4.0, 40.0):
        student = torch.zeros(1, 5, requires_grad=True)
        soft_target_loss(student, torch.tensor([[1.0, 0.0, 0.0, 0.0, -1.0]]), temperature).sum().backward()
        sizes.append(student.grad.norm().item())
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)


def test_angles_and_squares():
    student, teacher = torch.randn(3, 4, 8), torch.randn(3, 4, 8)
    torch.testing.assert_close(cosine_distance(student, teacher), 1 - F.cosine_similarity(student, teacher, dim=-1))
    assert cosine_distance(3 * teacher, teacher).abs().max() < 1e-6
    expected = F.mse_loss(student, teacher, reduction="none").mean(-1)
    torch.testing.assert_close(squared_distance(student, teacher), expected)


def test_scores_of_heads_that_share_keys_are_those_of_each_head():
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    model = LlamaModel(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()
    ids = torch.arange(3, 15)[None]
    plain = model(input_ids=ids).last_hidden_state
    with attention_scores(model):
        output = model(input_ids=ids, output_attentions=True)
    assert torch.allclose(output.last_hidden_state, plain, atol=1e-5)
    assert [scores.shape for scores in output.attentions] == [(1, 4, 12, 12)] * 2


def test_layers_are_mapped_evenly_or_as_given():
    assert layer_map(4, 12) == [3, 6, 9, 12]
    assert layer_map(6, 12) == [2, 4, 6, 8, 10, 12]
    assert layer_map(3, 3) == [1, 2, 3]
    assert layer_map(2, 12, [1, 12]) == [1, 12]
    for student, teacher, layers in ((4, 2, None), (2, 12, [1]), (2, 12, [0, 5]), (2, 12, [5, 13])):
        with pytest.raises(RecipeError):
            layer_map(student, teacher, layers)


def test_labels_that_do_not_exclude_each_other_are_compared_one_by_one():
    """With one label, it is the loss of two classes, of which the other one has the logit 0."""
    student, teacher = torch.tensor([[2.0], [-1.0]]), torch.tensor([[0.5], [-3.0]])
    zeros = torch.zeros_like(student)
    expected = soft_target_loss(torch.cat([student, zeros], 1), torch.cat([teacher, zeros], 1), 2.0)
    torch.testing.assert_close(soft_label_loss(student, teacher, 2.0), expected)
    assert soft_label_loss(teacher, teacher, 2.0).abs().max() < 1e-6
