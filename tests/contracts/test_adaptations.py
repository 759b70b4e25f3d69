"""Every adaptation with every task and backbone that fit, trained by the loop itself."""

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

from headstart.core import registry
from headstart.core.contracts import Adaptation, ReplaySource, Task
from headstart.core.data import Feature, InputSpec, ParameterGroup
from headstart.stages.finetune.cell import TaskLearner, predict, trainable
from headstart.tasks.source import CheckpointFolder
from headstart.training.loop import Loop
from headstart.training.settings import TrainingSettings

STEPS, ROWS, LENGTH = 12, 8, 24


@dataclass
class Fitting:
    """An adaptation, a task and a checkpoint."""

    adaptation: Adaptation
    task: Task
    source: CheckpointFolder
    reading: InputSpec
    train: list[Feature]
    validation: list[Feature]
    gold: list[Any]
    rehearsal: Callable[[Path], ReplaySource]

    def adapt(self, seed: int = 0) -> transformers.PreTrainedModel:
        source = CheckpointFolder(self.source.path, self.task, seed, self.rehearsal)
        model = self.adaptation.adapt(source)
        self.task.prepare_head(model)
        return model

    def outputs(self, model) -> list[Any]:
        model.eval()
        with torch.no_grad():
            return self.task.predict(model, self.task.collate(self.validation[:8], self.reading))

    def loss(self, model) -> float:
        """The mean loss over the training rows, without dropout."""
        batch = self.task.collate(self.train, self.reading)
        model.eval()
        with torch.no_grad():
            return self.task.loss(model, batch).item() / self.task.weight(batch)


@dataclass
class Trained:
    """A model after training and before `finish`, and what it was before."""

    model: transformers.PreTrainedModel
    before: dict[str, torch.Tensor]
    trainable: set[str]
    groups: list[ParameterGroup]
    moved: dict[str, int]
    """The step at which each parameter was first seen to have changed."""
    first_loss: float
    last_loss: float
    outcome: Any


@pytest.fixture(scope="session")
def fitting(request, make_task_case, checkpoint, toy_pretraining, tmp_path_factory) -> Fitting:
    adaptation, task_name, variant, family, kind = request.param
    case = make_task_case(task_name, variant)
    source = CheckpointFolder(checkpoint(family, kind), case.task, seed=0)
    settings = {"name": adaptation}
    if "teacher" in registry.resolve("adaptations", adaptation).Config.model_fields:
        settings["teacher"] = str(tmp_path_factory.mktemp("teacher"))
        teacher = CheckpointFolder(checkpoint(family, kind), case.task, seed=1).pretrained()
        teacher.save_pretrained(settings["teacher"])
    config = registry.resolve("adaptations", adaptation).Config.model_validate(settings)
    reading, held_out = source.reading(LENGTH), case.validation.take(range(8))
    return Fitting(
        adaptation=registry.build("adaptations", config),
        task=case.task,
        source=source,
        reading=reading,
        train=case.task.encode(case.train.take(range(ROWS)), reading, training=True),
        validation=case.task.encode(held_out, reading),
        gold=list(held_out.labels),
        rehearsal=toy_pretraining(family),
    )


@pytest.fixture(scope="session")
def trained(fitting, tmp_path_factory) -> Trained:
    model = fitting.adapt()
    learner = TaskLearner(
        model, fitting.task, fitting.adaptation, fitting.reading, fitting.train, fitting.validation, fitting.gold
    )
    if not trainable(model):
        pytest.skip("this adaptation trains nothing")
    settings = TrainingSettings(
        budget=f"{STEPS} steps", learning_rate=1e-3, precision="fp32", lr_scheduler_type="constant", eval_count=1,
        logging_steps=1,
    )  # fmt: skip
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    moves = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    groups = fitting.adaptation.groups(model)
    moved: dict[str, int] = {}

    class Watch:
        def log(self, step: int, values: dict[str, float]) -> None:
            for name, parameter in model.named_parameters():
                if name not in moved and not torch.equal(parameter, before[name]):
                    moved[name] = step

    first = fitting.loss(model)
    folder = tmp_path_factory.mktemp("run")
    loop = Loop(learner, settings, batch_size=len(fitting.train), seed=0, folder=folder, fingerprint="contract")
    outcome = loop.run([Watch()])
    return Trained(model, before, moves, groups, moved, first, fitting.loss(model), outcome)


def test_it_keeps_the_protocol(fitting):
    assert isinstance(fitting.adaptation, Adaptation)
    assert fitting.adaptation.supports(fitting.task, fitting.source.family) is None


def test_groups_name_exactly_what_is_trainable(trained):
    names = [name for group in trained.groups for name in group.names]
    assert len(names) == len(set(names)), "a parameter in two groups would be stepped twice"
    assert set(names) == trained.trainable


def test_starting_weights_follow_the_seed(fitting, trained):
    again, other = (dict(fitting.adapt(seed).named_parameters()) for seed in (0, 1))
    assert all(torch.equal(trained.before[name], again[name]) for name in trained.before)
    if fitting.task.head_settings():  # a head of its own is new
        assert any(not torch.equal(trained.before[name], value) for name, value in other.items())


def test_training_moves_what_is_trainable_and_nothing_else(trained):
    assert trained.outcome.progress.step == STEPS
    after = dict(trained.model.named_parameters())
    assert after.keys() == trained.before.keys()
    changed = {name for name, parameter in after.items() if not torch.equal(parameter, trained.before[name])}
    assert not changed - trained.trainable, "frozen parameters moved"
    assert changed
    assert all(parameter.isfinite().all() for parameter in after.values())


def test_a_group_moves_from_its_start_on_and_not_before(trained):
    for group in trained.groups:
        first = next(step for step in range(1, STEPS + 1) if (step - 1) / STEPS >= group.starts - 1e-9)
        steps = [trained.moved[name] for name in group.names if name in trained.moved]
        assert all(step >= first for step in steps), group.names
        # At once, but where a gradient is nought at first (what stands below a new part that begins as nothing).
        assert not steps or min(steps) <= first + 1, group.names


def test_training_lowers_the_loss(fitting, trained):
    assert np.isfinite(trained.last_loss)
    # One position of a frozen body that nobody trained says little of a text: there any fall will do.
    share = 0.99 if trained.trainable == trained.before.keys() else 1.0
    assert trained.last_loss < share * trained.first_loss
    assert set(fitting.task.metrics()) <= set(trained.outcome.validation)


def test_a_finished_model_loads_and_predicts_the_same(fitting, trained, tmp_path):
    """By plain transformers, or as an adapter of peft's on the checkpoint that it was trained on."""
    expected = fitting.outputs(trained.model)
    assert all(alike(one, other) for one, other in zip(fitting.outputs(trained.model), expected, strict=True))
    finished = fitting.adaptation.finish(copy.deepcopy(trained.model))
    assert all(alike(one, other) for one, other in zip(fitting.outputs(finished), expected, strict=True))
    finished.save_pretrained(str(tmp_path))
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".bin", ".pt", ".pkl", ".py")]
    loaded = reopened(fitting, tmp_path)
    assert all(alike(one, other) for one, other in zip(fitting.outputs(loaded), expected, strict=True))
    found, wanted = (
        predict(model, fitting.task, fitting.validation, fitting.reading) for model in (loaded, trained.model)
    )
    assert found == pytest.approx(wanted, abs=1e-4) if isinstance(wanted[0], float) else found == wanted


def reopened(fitting: Fitting, folder: Path) -> transformers.PreTrainedModel:
    if (folder / "adapter_config.json").is_file():
        return fitting.adaptation.reopen(fitting.source, folder)
    registry.import_network(folder)
    auto = getattr(transformers, fitting.task.auto_class(fitting.source.family))
    loaded, info = auto.from_pretrained(str(folder), output_loading_info=True)
    assert not any(info.values()), info
    return loaded
