"""Every adaptation with every task and backbone that fit, trained by the loop itself."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from headstart.core import registry
from headstart.core.contracts import Adaptation, Task
from headstart.stages.adapt import TaskLearner
from headstart.tasks.source import CheckpointFolder
from headstart.training.loop import Loop
from headstart.training.settings import TrainingSettings


@dataclass
class Fitting:
    """An adaptation, a task and a checkpoint; `trained` holds what a few steps through the loop left."""

    adaptation: Adaptation
    task: Task
    source: CheckpointFolder
    encoded: list[dict[str, Any]]
    validation: list[dict[str, Any]]
    gold: list[Any]
    pad: int

    def adapt(self) -> transformers.PreTrainedModel:
        model = self.adaptation.adapt(self.source)
        self.task.prepare_head(model)
        return model

    def logits(self, model) -> torch.Tensor:
        model.eval()
        with torch.no_grad():
            return self.task.logits(model, self.task.collate(self.validation[:8], self.pad))


@dataclass
class Trained:
    """A model after training and before `finish`, and what it was before."""

    model: transformers.PreTrainedModel
    before: dict[str, torch.Tensor]
    trainable: set[str]
    first_loss: float
    last_loss: float
    outcome: Any


@pytest.fixture(scope="session")
def fitting(request, make_task_case, checkpoint, tmp_path_factory) -> Fitting:
    adaptation, task_name, variant, family, kind = request.param
    case = make_task_case(task_name, variant)
    source = CheckpointFolder(checkpoint(family, kind), case.task, seed=0)
    tokenizer = source.tokenizer()
    settings = {"name": adaptation}
    if "teacher" in registry.resolve("adaptations", adaptation).Config.model_fields:
        settings["teacher"] = str(tmp_path_factory.mktemp("teacher"))
        teacher = CheckpointFolder(checkpoint(family, kind), case.task, seed=1).pretrained()
        teacher.save_pretrained(settings["teacher"])
    config = registry.resolve("adaptations", adaptation).Config.model_validate(settings)
    return Fitting(
        adaptation=registry.build("adaptations", config),
        task=case.task,
        source=source,
        encoded=case.task.encode(case.train, tokenizer, 48),
        validation=case.task.encode(case.validation.take(range(10)), tokenizer, 48),
        gold=list(case.validation.labels[:10]),
        pad=tokenizer.pad_token_id,
    )


@pytest.fixture(scope="session")
def trained(fitting, tmp_path_factory) -> Trained:
    model = fitting.adapt()
    learner = TaskLearner(
        model, fitting.task, fitting.adaptation, fitting.encoded, fitting.validation, fitting.gold, fitting.pad
    )
    settings = TrainingSettings(
        budget="16 steps", learning_rate=1e-3, precision="fp32", lr_scheduler_type="constant", evaluations=2
    )
    loop = Loop(
        learner,
        settings,
        batch_size=len(fitting.encoded),
        seed=0,
        folder=tmp_path_factory.mktemp("run"),
        fingerprint="contract",
    )
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    first = loss_of(fitting, model)
    outcome = loop.run()
    return Trained(model, before, trainable, first, loss_of(fitting, model), outcome)


def loss_of(fitting, model):
    """The mean loss over the training rows, without dropout."""
    model.eval()
    with torch.no_grad():
        return fitting.task.loss(model, fitting.task.collate(fitting.encoded, fitting.pad)).item() / len(
            fitting.encoded
        )


def test_it_keeps_the_protocol(fitting):
    assert isinstance(fitting.adaptation, Adaptation)


def test_groups_name_exactly_what_is_trainable(fitting):
    model = fitting.adapt()
    named = [name for group in fitting.adaptation.groups(model) for name in group.names]
    assert len(named) == len(set(named)), "a parameter in two groups would be stepped twice"
    assert set(named) == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert named


def test_starting_weights_follow_the_seed(fitting):
    first, again = (fitting.adapt().state_dict() for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = copy.copy(fitting)
    other.source = CheckpointFolder(fitting.source.path, fitting.task, seed=1)
    assert any(not torch.equal(first[name], value) for name, value in other.adapt().state_dict().items())


def test_training_moves_what_is_trainable_and_nothing_else(fitting, trained):
    assert trained.outcome.progress.step == 16
    after = dict(trained.model.named_parameters())
    assert after.keys() == trained.before.keys()
    changed = {name for name, parameter in after.items() if not torch.equal(parameter, trained.before[name])}
    assert not changed - trained.trainable, "frozen parameters moved"
    assert changed
    assert all(parameter.isfinite().all() for parameter in after.values())


def test_training_lowers_the_loss(fitting, trained):
    assert np.isfinite(trained.last_loss)
    # One position of a frozen body that nobody trained says little of a text: there any fall will do.
    share = 0.99 if trained.trainable == trained.before.keys() else 1.0
    assert trained.last_loss < share * trained.first_loss
    assert set(trained.outcome.validation) == set(fitting.task.metrics())


def test_predictions_repeat(fitting, trained):
    assert torch.equal(fitting.logits(trained.model), fitting.logits(trained.model))


def test_a_finished_model_is_plain_hugging_face(fitting, trained, tmp_path):
    expected = fitting.logits(trained.model)
    finished = fitting.adaptation.finish(copy.deepcopy(trained.model))
    torch.testing.assert_close(fitting.logits(finished), expected, atol=1e-5, rtol=1e-5)
    finished.save_pretrained(str(tmp_path))
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".bin", ".pt", ".pkl", ".py")]
    auto = getattr(transformers, fitting.task.auto_class)
    loaded, info = auto.from_pretrained(str(tmp_path), output_loading_info=True)
    assert not any(info.values()), info
    torch.testing.assert_close(fitting.logits(loaded), expected, atol=1e-5, rtol=1e-5)
    found, wanted = (fitting.task.decode(logits.numpy()) for logits in (fitting.logits(loaded), expected))
    assert found == pytest.approx(wanted, abs=1e-4) if isinstance(wanted[0], float) else found == wanted
