"""The contract of every adaptation, with every task and family that it supports, trained by the training loop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.contracts.test_tasks import alike

from headstart.adaptation.base import BaseAdaptation
from headstart.core import registry
from headstart.core.contracts import Adaptation, ReplaySource, Task
from headstart.core.data import Feature, InputSpec, ParameterGroup
from headstart.stages.finetune.learner import TaskLearner, count_trainable, predict
from headstart.tasks.source import CheckpointFolder
from headstart.training.callbacks import Callback, default_callbacks
from headstart.training.loop import Loop, RunInfo
from headstart.training.phases import Phase
from headstart.training.settings import TrainingSettings

STEPS, ROWS, LENGTH = 12, 8, 24
STARTS_AT_CHECKPOINT = {
    "full", "features", "top_layers", "gradual_unfreezing", "layerwise_decay", "l2_start", "rehearsal", "lora", "ia3",
    "bitfit", "adapters", "distillation",
}  # fmt: skip
"""Methods whose model has the outputs of the checkpoint before training."""


@dataclass
class Combination:
    """An adaptation, a task and a checkpoint."""

    name: str
    adaptation: Adaptation
    task: Task
    source: CheckpointFolder
    spec: InputSpec
    train: list[Feature]
    validation: list[Feature]
    gold: list[Any]
    rehearsal: Callable[[Path], ReplaySource]

    def adapt(self, seed: int = 0) -> transformers.PreTrainedModel:
        source = CheckpointFolder(self.source.path, self.task, seed, self.rehearsal)
        model = self.adaptation.adapt(source)
        self.task.prepare_head(model)
        return model

    def plain(self) -> transformers.PreTrainedModel:
        """The checkpoint with the task's head, without the adaptation."""
        model = CheckpointFolder(self.source.path, self.task, 0).pretrained()
        self.task.prepare_head(model)
        return model

    def outputs(self, model) -> list[Any]:
        model.eval()
        with torch.no_grad():
            return self.task.predict(model, self.task.collate(self.validation[:8], self.spec))

    def loss(self, model) -> float:
        """The mean loss over the training rows, without dropout."""
        batch = self.task.collate(self.train, self.spec)
        model.eval()
        with torch.no_grad():
            return self.task.loss(model, batch).item() / self.task.weight(batch)


@dataclass
class Trained:
    """A model after training and before `finish`, and its state before training."""

    model: transformers.PreTrainedModel
    before: dict[str, torch.Tensor]
    outputs_before: list[Any]
    trainable: set[str]
    groups: list[ParameterGroup]
    changed_at: dict[str, int]
    """The step at which each parameter first changed."""
    first_loss: float
    last_loss: float
    result: Any


@pytest.fixture(scope="session")
def combination(request, make_task_case, checkpoint, toy_pretraining, tmp_path_factory) -> Combination:
    adaptation, task_name, variant, family, kind = request.param
    case = make_task_case(task_name, variant)
    source = CheckpointFolder(checkpoint(family, kind), case.task, seed=0)
    settings = {"name": adaptation}
    if "teacher" in registry.resolve("adaptations", adaptation).Config.model_fields:
        settings["teacher"] = str(tmp_path_factory.mktemp("teacher"))
        teacher = CheckpointFolder(checkpoint(family, kind), case.task, seed=1).pretrained()
        # A teacher that was fine-tuned knows at least the frequencies of the labels.
        case.task.prepare_head(teacher)
        teacher.save_pretrained(settings["teacher"])
    config = registry.resolve("adaptations", adaptation).Config.model_validate(settings)
    spec, held_out = source.input_spec(LENGTH), case.validation.take(range(8))
    return Combination(
        name=adaptation,
        adaptation=registry.build("adaptations", config),
        task=case.task,
        source=source,
        spec=spec,
        train=case.task.encode(case.train.take(range(ROWS)), spec, training=True),
        validation=case.task.encode(held_out, spec),
        gold=list(held_out.labels),
        rehearsal=toy_pretraining(family),
    )


@pytest.fixture(scope="session")
def trained(combination, tmp_path_factory) -> Trained:
    model = combination.adapt()
    learner = TaskLearner(
        model,
        combination.task,
        combination.adaptation,
        combination.spec,
        combination.train,
        combination.validation,
        combination.gold,
    )
    if not count_trainable(model):
        pytest.skip("this adaptation trains nothing")
    settings = TrainingSettings(
        budget=f"{STEPS} steps", learning_rate=1e-3, precision="fp32", lr_scheduler_type="constant", eval_count=1,
        logging_steps=1,
    )  # fmt: skip
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    groups = combination.adaptation.groups(model)
    outputs, first_loss = combination.outputs(model), combination.loss(model)
    changed_at: dict[str, int] = {}

    class Watch(Callback):
        def on_step_end(self, loop: Loop, result: Any) -> None:
            for name, parameter in model.named_parameters():
                if name not in changed_at and not torch.equal(parameter, before[name]):
                    changed_at[name] = loop.progress.step

    run = RunInfo(tmp_path_factory.mktemp("run"), "contract")
    phases = [Phase(0.0, learner, len(combination.train))]
    result = Loop(learner, settings, run, phases, callbacks=[*default_callbacks(settings), Watch()]).run()
    last_loss = combination.loss(model)
    return Trained(model, before, outputs, trainable, groups, changed_at, first_loss, last_loss, result)


def test_it_keeps_the_protocol(combination):
    assert isinstance(combination.adaptation, Adaptation)
    assert combination.adaptation.supports(combination.task, combination.source.family) is None


def test_groups_contain_exactly_the_trainable_parameters(trained):
    names = [name for group in trained.groups for name in group.names]
    assert len(names) == len(set(names)), "a parameter in two groups would be updated twice"
    assert set(names) == trained.trainable


def test_starting_weights_depend_on_the_seed_only(combination, trained):
    same, other = (dict(combination.adapt(seed).named_parameters()) for seed in (0, 1))
    assert all(torch.equal(trained.before[name], same[name]) for name in trained.before)
    if combination.task.head_settings():  # the head is new
        assert any(not torch.equal(trained.before[name], value) for name, value in other.items())


def test_the_outputs_start_at_those_of_the_checkpoint(combination, trained):
    """Methods that add nothing, or add parts that start as the identity, do not change the outputs."""
    same = all(map(alike, trained.outputs_before, combination.outputs(combination.plain())))
    if combination.name in STARTS_AT_CHECKPOINT:
        assert same
    elif combination.name == "scratch" and isinstance(trained.outputs_before[0], np.ndarray):
        assert not same, "the comparison can tell another network"


def test_training_changes_the_outputs(combination, trained):
    outputs = combination.outputs(trained.model)
    if not isinstance(outputs[0], np.ndarray):
        pytest.skip("generated ids may stay the same in a few steps")
    assert not any(map(np.array_equal, outputs, trained.outputs_before))


def test_training_changes_the_trainable_parameters_only(combination, trained):
    assert trained.result.progress.step == STEPS
    after = dict(trained.model.named_parameters())
    assert after.keys() == trained.before.keys()
    changed = {name for name, parameter in after.items() if not torch.equal(parameter, trained.before[name])}
    solves = type(combination.adaptation).solve is not BaseAdaptation.solve
    fitted = {name for name in changed if solves and name.startswith("classifier.")}
    assert not changed - trained.trainable - fitted, "frozen parameters changed"
    assert changed
    assert all(parameter.isfinite().all() for parameter in after.values())


def test_a_group_trains_from_its_start_and_not_before(trained):
    for group in trained.groups:
        first = next(step for step in range(1, STEPS + 1) if (step - 1) / STEPS >= group.starts - 1e-9)
        steps = [trained.changed_at[name] for name in group.names if name in trained.changed_at]
        assert all(step >= first for step in steps), group.names
        # One step later if the first gradient is zero: below a new module that starts as the identity.
        assert not steps or min(steps) <= first + 1, group.names


def test_training_lowers_the_loss(combination, trained):
    assert np.isfinite(trained.last_loss)
    # A frozen, untrained body carries little information, so any decrease is enough there.
    factor = 0.99 if trained.trainable == trained.before.keys() else 1.0
    assert trained.last_loss < factor * trained.first_loss
    assert set(combination.task.metrics()) <= set(trained.result.validation)


def test_a_finished_model_loads_and_predicts_the_same(combination, trained, tmp_path):
    """It loads with plain transformers, or as a peft adapter on the checkpoint that it was trained on."""
    expected = combination.outputs(trained.model)
    finished = combination.adaptation.finish(copy.deepcopy(trained.model))
    assert all(alike(one, other) for one, other in zip(combination.outputs(finished), expected, strict=True))
    finished.save_pretrained(str(tmp_path))
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".bin", ".pt", ".pkl", ".py")]
    loaded = reopened(combination, tmp_path)
    assert all(alike(one, other) for one, other in zip(combination.outputs(loaded), expected, strict=True))
    predictions, expected = (
        predict(model, combination.task, combination.validation, combination.spec) for model in (loaded, trained.model)
    )
    is_number = isinstance(expected[0], float)
    assert predictions == (pytest.approx(expected, abs=1e-4) if is_number else expected)


def reopened(combination: Combination, folder: Path) -> transformers.PreTrainedModel:
    if (folder / "adapter_config.json").is_file():
        return combination.adaptation.reopen(combination.source, folder)
    registry.import_network(folder)
    auto = getattr(transformers, combination.task.auto_class(combination.source.family))
    loaded, info = auto.from_pretrained(str(folder), output_loading_info=True)
    assert not any(info.values()), info
    return loaded
