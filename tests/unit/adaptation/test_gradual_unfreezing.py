"""Gradual unfreezing: which layers train at each step, and their learning rates."""

from __future__ import annotations

import pytest
import torch

from headstart.adaptation.gradual_unfreezing import GradualUnfreezing
from headstart.adaptation.layers import levels
from headstart.stages.finetune.learner import TaskLearner, build_loop
from headstart.stages.finetune.recipe import FinetuneTraining, settings_of
from headstart.training.callbacks import Callback, default_callbacks
from headstart.training.loop import Loop, RunInfo
from headstart.training.phases import Phase


def test_groups_start_from_the_top_at_equal_steps_with_falling_rates(given_of):
    method = GradualUnfreezing()
    model = method.adapt(given_of("bert").source)
    groups = method.groups(model)
    assert [sorted({levels(model)[name] for name in group.names}) for group in groups] == [[3], [2], [1], [0]]
    assert [group.starts for group in groups] == pytest.approx([0, 0.5 / 3, 1 / 3, 0.5])
    assert [group.lr_scale for group in groups] == pytest.approx([1, 1 / 2.6, 1 / 2.6**2, 1 / 2.6**3])


def test_its_schedule_replaces_that_of_the_recipe():
    training = FinetuneTraining(lr_scheduler_type="cosine", warmup_ratio=0.3)
    own = settings_of(training, GradualUnfreezing.Config())
    assert (own.lr_scheduler_type, own.warmup_ratio) == ("slanted_triangular", 0.1)
    kept = settings_of(training, GradualUnfreezing.Config(lr_scheduler_type=None, warmup_ratio=None))
    assert (kept.lr_scheduler_type, kept.warmup_ratio) == ("cosine", 0.3)


def test_the_loop_unfreezes_one_layer_at_each_stage(given_of, tmp_path):
    """Twelve steps, all layers unfrozen after half: the head from the first step, then a layer every second step."""
    given = given_of("modernbert")
    method = GradualUnfreezing()
    model = method.adapt(given.source)
    level_of = levels(model)
    learner = TaskLearner(model, given.task, method, given.spec, given.encoded, given.encoded, ["yes", "no"] * 12)
    training = FinetuneTraining(
        budget="12 steps", batch_size=8, logging_steps=1, eval_count=0, precision="fp32", weight_decay=0.1
    )
    settings = settings_of(training, method.config)
    last = {name: p.detach().clone() for name, p in model.named_parameters()}
    changed: list[set[int]] = []

    class Watch(Callback):
        def on_step_end(self, loop, result):
            changed.append({level_of[n] for n, p in model.named_parameters() if not torch.equal(p, last[n])})
            last.update({n: p.detach().clone() for n, p in model.named_parameters()})

    callbacks = [*default_callbacks(settings), Watch()]
    Loop(learner, settings, RunInfo(tmp_path, "test"), [Phase(0.0, learner, 8)], callbacks=callbacks).run()
    head = 3
    assert changed[:12] == [{head}] * 2 + [{head, 2}] * 2 + [{head, 2, 1}] * 2 + [{head, 2, 1, 0}] * 6


def learner_of(given, **settings):
    method = GradualUnfreezing(GradualUnfreezing.Config(**settings))
    model = method.adapt(given.source)
    labels = ["yes", "no"] * 12
    learner = TaskLearner(model, given.task, method, given.spec, given.encoded, given.encoded, labels)
    training = FinetuneTraining(budget="12 steps", batch_size=8, eval_count=6, precision="fp32")
    return learner, settings_of(training, method.config)


def test_flops_are_counted_for_each_stage_of_unfreezing(given_of, tmp_path):
    """A step that trains the head alone has no backward pass through the layers."""
    learner, settings = learner_of(given_of("modernbert"))
    loop = build_loop(learner, settings, 8, RunInfo(tmp_path, "test"))
    stages, everything = loop.phases.all[0].flops_by_stage, loop.phases.all[0].flops_per_token
    # Whether the embeddings train changes no product: their gradient is a sum.
    assert stages[0] < stages[1] < stages[2] <= stages[3] == pytest.approx(everything)
    assert stages[0] < 0.5 * everything
    steps: list[tuple[int, float]] = []

    class Watch(Callback):
        before = (0, 0.0)

        def on_step_end(self, loop, result):
            tokens, flops = loop.progress.tokens - self.before[0], loop.progress.flops - self.before[1]
            self.before = (loop.progress.tokens, loop.progress.flops)
            steps.append((loop.freezing.stage, flops / tokens))

    loop.callbacks.append(Watch())
    loop.run()
    assert [stage for stage, _ in steps] == [0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 3, 3]
    assert [per_token for _, per_token in steps] == pytest.approx([stages[stage] for stage, _ in steps])


def test_a_layer_is_unfrozen_after_each_evaluation_that_does_not_improve(given_of, tmp_path):
    learner, settings = learner_of(given_of("modernbert"), unfreeze="plateau")
    groups = learner.parameter_groups()
    assert [group.plateaus for group in groups] == [0, 1, 2, 3] and not any(group.starts for group in groups)
    scores = iter([0.5, 0.5, 0.6, 0.6, 0.1, 0.7, 0.7])  # the last one is that of the best weights
    learner.validate = lambda: {"accuracy": next(scores)}
    loop = build_loop(learner, settings, 8, RunInfo(tmp_path, "test"))
    stages = []

    class Watch(Callback):
        def on_step_end(self, loop, result):
            stages.append(loop.freezing.stage)

    loop.callbacks.append(Watch())
    loop.run()
    # Two steps per evaluation; the second, fourth and fifth evaluation do not improve.
    assert stages == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3]
    assert loop.progress.plateaus == 3 and all(p.requires_grad for p in learner.model.parameters())


def test_the_way_of_unfreezing_is_left_out_of_recipes_at_its_default():
    assert "unfreeze" not in GradualUnfreezing.Config().model_dump()
    assert GradualUnfreezing.Config(unfreeze="plateau").model_dump()["unfreeze"] == "plateau"
