"""The contract of several tasks with one body: every adaptation, and every task beside another one of its family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.contracts.conftest import TaskCase, built, has_head, reason_against, settings_of

from headstart.backbones.layouts import kinds
from headstart.core import registry
from headstart.core.data import Sample
from headstart.core.errors import RecipeError
from headstart.stages.finetune.learner import TaskLearner
from headstart.stages.multitask.learner import MultitaskLearner
from headstart.stages.multitask.sharing import have_one_head
from headstart.tasks.source import CheckpointFolder, unwrap_peft

WITH_ONE_TEACHER = "distillation"
FAMILY_FOR = {
    adaptation: next(
        (f for f in built("tasks", "classify").families if reason_against(adaptation, "classify", f) is None), ""
    )
    for adaptation in registry.names("adaptations")
}
TRAINING = [adaptation for adaptation, family in FAMILY_FOR.items() if family]
LEARNING = [name for name in registry.names("tasks") if built("tasks", name).learns]


def kind_for(tasks: list[str], family: str) -> str | None:
    """The first layout that has the heads of all tasks."""
    return next(kind for kind in kinds(family) if all(has_head(task, family, kind) for task in tasks))


@pytest.fixture
def learner_of(make_task_case, checkpoint, toy_pretraining) -> Callable[..., TaskLearner]:
    def make(adaptation: str, task: str, variant: str, family: str, kind: str | None) -> TaskLearner:
        case: TaskCase = make_task_case(task, variant)
        source = CheckpointFolder(checkpoint(family, kind), case.task, 0, toy_pretraining(family))
        method: Any = registry.build("adaptations", settings_of("adaptations", adaptation))
        model = method.adapt(source)
        case.task.prepare_head(model)
        spec, held_out = source.input_spec(24), case.validation.take(range(4))
        train = case.task.encode(case.train.take(range(8)), spec, training=True)
        return TaskLearner(
            model, case.task, method, spec, train, case.task.encode(held_out, spec), list(held_out.labels)
        )

    return make


def joined(learners: dict[str, TaskLearner]) -> MultitaskLearner:
    one_head = have_one_head([learner.task for learner in learners.values()], next(iter(learners.values())).spec.family)
    return MultitaskLearner(
        learners, dict.fromkeys(learners, 1 / len(learners)), dict.fromkeys(learners, 1.0), one_head
    )


def check(learner: MultitaskLearner) -> None:
    """A batch of both tasks has the sum of their losses, and trains the shared parameters and those of each head."""
    samples = [Sample(0, 0), Sample(0, 1), Sample(0, len(learner) - 1)]
    batch = learner.batch(samples)
    learner.module.eval()
    loss = learner.module(batch)
    parts = {"first": samples[:2], "second": [Sample(0, len(learner.learners["second"]) - 1)]}
    alone = [learner.learners[name].batch(rows) for name, rows in parts.items()]
    factors = learner.module.method.factors
    expected = sum(factors[name] * learner.learners[name].module(part) for name, part in zip(parts, alone, strict=True))
    assert float(loss) == pytest.approx(float(expected), rel=1e-3, abs=1e-4)
    assert learner.weight(batch) > 0 and learner.tokens(batch) > 0
    names = [name for group in learner.parameter_groups() for name in group.names]
    trained = {name for name, parameter in learner.module.named_parameters() if parameter.requires_grad}
    assert len(names) == len(set(names)) and set(names) == trained
    loss.backward()
    networks = [dict(learner.model[name].named_parameters()) for name in parts]
    both = {id(p) for p in networks[0].values()} & {id(p) for p in networks[1].values()}
    shared = [p for p in networks[0].values() if id(p) in both and p.requires_grad]
    assert any(p.grad is not None and p.grad.any() for p in shared)


@pytest.mark.parametrize("adaptation", TRAINING)
def test_an_adaptation_trains_what_tasks_share_or_is_refused(adaptation, learner_of):
    family = FAMILY_FOR[adaptation]
    if adaptation == WITH_ONE_TEACHER:
        pytest.skip("a run of several tasks refuses it: each task needs its own teacher")
    kind = kind_for(["classify"], family)
    learners = {
        "first": learner_of(adaptation, "classify", "", family, kind),
        "second": learner_of(adaptation, "classify", "pair", family, kind),
    }
    bodies = [unwrap_peft(learner.model).base_model for learner in learners.values()]
    trains_body = any(parameter.requires_grad for parameter in bodies[0].parameters())
    try:
        learner = joined(learners)
    except RecipeError as refusal:
        assert not trains_body and "share" in str(refusal)
        return
    assert trains_body
    check(learner)


@pytest.mark.parametrize("task", LEARNING)
def test_a_task_can_be_trained_beside_another(task, learner_of):
    family = built("tasks", task).families[0]
    other = "classify" if family in built("tasks", "classify").families else task
    kind = kind_for([task, other], family)
    learners = {
        "first": learner_of("full", task, "", family, kind),
        "second": learner_of("full", other, "", family, kind),
    }
    learner = joined(learners)
    # Without another task that has a head, there is one network.
    assert learner.one_head == (task == other != "classify")
    check(learner)


def test_text_to_text_tasks_are_one_batch_of_one_network(learner_of):
    kind = kind_for(["text_to_text"], "encoder-decoder")
    learner = joined({
        "first": learner_of("full", "text_to_text", "", "encoder-decoder", kind),
        "second": learner_of("full", "text_to_text", "text", "encoder-decoder", kind),
    })  # fmt: skip
    first, second = learner.learners.values()
    batch = learner.batch([Sample(0, 0), Sample(0, len(first)), Sample(0, len(first) + 1)])
    assert {key.partition("/")[0] for key in batch} == {"first"} and batch["first/input_ids"].shape[0] == 3
    ids = dict(first.model.named_parameters())
    assert all(ids[name] is parameter for name, parameter in second.model.named_parameters())
    assert learner.weight(batch) == float((batch["first/labels"] != -100).sum())
    assert torch.isfinite(learner.module(batch))
