"""ULMFiT's third stage: what moves at each step, and how fast."""

from __future__ import annotations

import pytest
import torch

from headstart.adaptation.gradual_unfreezing import GradualUnfreezing
from headstart.adaptation.layers import levels
from headstart.stages.finetune.cell import TaskLearner
from headstart.stages.finetune.recipe import FinetuneTraining, settings_of
from headstart.training.loop import Loop


def test_groups_begin_from_the_top_at_equal_steps_and_slow_down(given_of):
    method = GradualUnfreezing()
    model = method.adapt(given_of("bert").source)
    groups = method.groups(model)
    assert [sorted({levels(model)[name] for name in group.names}) for group in groups] == [[3], [2], [1], [0]]
    assert [group.starts for group in groups] == pytest.approx([0, 0.5 / 3, 1 / 3, 0.5])
    assert [group.lr_scale for group in groups] == pytest.approx([1, 1 / 2.6, 1 / 2.6**2, 1 / 2.6**3])


def test_its_schedule_stands_in_for_the_recipes():
    training = FinetuneTraining(lr_scheduler_type="cosine", warmup_ratio=0.3)
    mine = settings_of(training, GradualUnfreezing.Config())
    assert (mine.lr_scheduler_type, mine.warmup_ratio) == ("slanted_triangular", 0.1)
    given = settings_of(training, GradualUnfreezing.Config(lr_scheduler_type=None, warmup_ratio=None))
    assert (given.lr_scheduler_type, given.warmup_ratio) == ("cosine", 0.3)


def test_the_loop_moves_one_layer_more_at_each_stage(given_of, tmp_path):
    """Twelve steps, all free by the half: the head from the first step, then a layer every second one."""
    given = given_of("modernbert")
    method = GradualUnfreezing()
    model = method.adapt(given.source)
    known = levels(model)
    learner = TaskLearner(model, given.task, method, given.reading, given.encoded, given.encoded, ["yes", "no"] * 12)
    training = FinetuneTraining(
        budget="12 steps", batch_size=8, logging_steps=1, eval_count=0, precision="fp32", weight_decay=0.1
    )
    loop = Loop(
        learner, settings_of(training, method.config), batch_size=8, seed=0, folder=tmp_path, fingerprint="test"
    )
    last = {name: p.detach().clone() for name, p in model.named_parameters()}
    moving: list[set[int]] = []

    class Watch:
        def log(self, step, values):
            moving.append({known[n] for n, p in model.named_parameters() if not torch.equal(p, last[n])})
            last.update({n: p.detach().clone() for n, p in model.named_parameters()})

    loop.run([Watch()])
    head = 3
    assert moving[:12] == [{head}] * 2 + [{head, 2}] * 2 + [{head, 2, 1}] * 2 + [{head, 2, 1, 0}] * 6
