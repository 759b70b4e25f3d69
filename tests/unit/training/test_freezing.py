"""Groups that start later stay bit-identical until then, also across a resume."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from headstart.core.data import ParameterGroup
from headstart.core.errors import RecipeError
from headstart.training.callbacks import Callback


def groups(late: float = 0.5):
    return [
        ParameterGroup(("embedding.weight", "output.bias", "idle")),
        ParameterGroup(("norm.weight", "norm.bias"), starts=0.25),
        ParameterGroup(("hidden.weight", "hidden.bias"), lr_scale=0.5, starts=late),
    ]


def learner(toy, late: float = 0.5):
    frozen = toy.Learner()
    frozen.parameter_groups = lambda: groups(late)
    return frozen


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_each_group_is_trained_from_its_start_on(toy, tmp_path):
    frozen = learner(toy)
    start = toy.weights(frozen)
    changed: dict[str, int] = {}

    class Watch(Callback):
        def on_step_end(self, loop, result):
            for name, value in frozen.module.state_dict().items():
                if name not in changed and not torch.equal(value, start[name]):
                    changed[name] = loop.progress.step

    loop, _ = toy.train(tmp_path, frozen, Watch(), weight_decay=0.5, warmup_ratio=0.0)
    assert {name: changed.get(name) for name in start} == {
        "embedding.weight": 1, "output.weight": 1, "output.bias": 1, "idle": None,
        "norm.weight": 4, "norm.bias": 4, "hidden.weight": 7, "hidden.bias": 7,
    }  # fmt: skip
    assert loop.optimizer.state[frozen.module.hidden.weight]["step"] == 6
    assert all(parameter.requires_grad for parameter in frozen.module.parameters())


@pytest.mark.parametrize("given", [{}, {"keep_best": True, "eval_count": 6}, {"budget": "500 tokens"}])
def test_a_run_stopped_before_between_and_after_the_starts_gives_the_same_bits(toy, tmp_path, given):
    smooth, rough = learner(toy), learner(toy)
    toy.train(tmp_path / "smooth", smooth, **given)
    for step in (2, 3, 5, 6, 9):
        with pytest.raises(KeyboardInterrupt):
            toy.train(tmp_path / "rough", learner(toy), toy.At(step, interrupt), **given)
    _, outcome = toy.train(tmp_path / "rough", rough, **given)
    assert outcome.resumed_from == 9
    assert toy.curve(tmp_path / "rough") == toy.curve(tmp_path / "smooth")
    toy.assert_same(toy.weights(rough), toy.weights(smooth))


def test_the_best_weights_include_groups_that_were_frozen(toy, tmp_path):
    frozen, kept = learner(toy), {}
    frozen.scores = [0.9, 0.1, 0.9]
    at_best = toy.At(6, lambda: kept.update(toy.weights(frozen)))
    _, outcome = toy.train(tmp_path, frozen, at_best, keep_best=True, eval_count=2)
    assert outcome.progress.best_step == 6
    toy.assert_same(toy.weights(frozen), kept)


def test_something_must_be_trained_from_the_start(toy, tmp_path):
    frozen = toy.Learner()
    frozen.parameter_groups = lambda: [ParameterGroup(("hidden.weight",), starts=0.3)]
    with pytest.raises(RecipeError, match="no parameter is trained before 30%"):
        toy.loop(tmp_path, frozen)


def test_a_run_that_unfreezes_on_plateaus_resumes_to_the_same_bits(toy, tmp_path):
    """The number of plateaus is part of the saved progress."""

    def plateau_learner():
        frozen = toy.Learner()
        late = [("norm.weight", "norm.bias"), ("hidden.weight", "hidden.bias")]
        later = [ParameterGroup(names, plateaus=i) for i, names in enumerate(late, start=1)]
        frozen.parameter_groups = lambda: [ParameterGroup(("embedding.weight", "output.bias", "idle")), *later]
        # Only the first evaluation improves.
        frozen.validate = lambda: {"score": 1.0}
        return frozen

    class Last(Callback):
        """Copies the weights after each step: those of the best evaluation replace them at the end."""

        def on_step_end(self, loop, result):
            self.weights = {name: value.clone() for name, value in loop.learner.module.state_dict().items()}

    given = {"keep_best": True, "eval_count": 6}
    smooth, rough = Last(), Last()
    start = toy.weights(plateau_learner())
    loop, _ = toy.train(tmp_path / "smooth", plateau_learner(), smooth, **given)
    assert loop.progress.plateaus >= 2
    assert all(not torch.equal(smooth.weights[name], start[name]) for name in ("norm.bias", "hidden.bias"))
    for step in (2, 5, 9):
        with pytest.raises(KeyboardInterrupt):
            toy.train(tmp_path / "rough", plateau_learner(), toy.At(step, interrupt), **given)
    toy.train(tmp_path / "rough", plateau_learner(), rough, **given)
    assert all(torch.equal(value, rough.weights[name]) for name, value in smooth.weights.items())
