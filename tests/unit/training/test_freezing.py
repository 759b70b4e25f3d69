"""Groups that start later stay bit-identical until then, and a resume finds them as they were."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from headstart.core.data import ParameterGroup
from headstart.core.errors import RecipeError


def groups(late: float = 0.5):
    return [
        ParameterGroup(("embedding.weight", "output.bias", "idle")),
        ParameterGroup(("norm.weight", "norm.bias"), starts=0.25),
        ParameterGroup(("hidden.weight", "hidden.bias"), lr_scale=0.5, starts=late),
    ]


def learner(toy, late: float = 0.5):
    made = toy.Learner()
    made.parameter_groups = lambda: groups(late)
    return made


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_each_group_moves_from_its_share_on_and_not_before(toy, tmp_path):
    made = learner(toy)
    start = toy.weights(made)
    moved: dict[str, int] = {}

    class Watch:
        def log(self, step, values):
            for name, value in made.module.state_dict().items():
                if name not in moved and not torch.equal(value, start[name]):
                    moved[name] = step

    loop, _ = toy.train(tmp_path, made, Watch(), weight_decay=0.5, warmup_ratio=0.0)
    assert {name: moved.get(name) for name in start} == {
        "embedding.weight": 1, "output.weight": 1, "output.bias": 1, "idle": None,
        "norm.weight": 4, "norm.bias": 4, "hidden.weight": 7, "hidden.bias": 7,
    }  # fmt: skip
    assert loop.optimizer.state[made.module.hidden.weight]["step"] == 6
    assert all(parameter.requires_grad for parameter in made.module.parameters())


@pytest.mark.parametrize("given", [{}, {"keep_best": True, "eval_count": 6}, {"budget": "500 tokens"}])
def test_stopped_before_between_and_after_the_starts_a_run_gives_the_same_bits(toy, tmp_path, given):
    smooth, rough = learner(toy), learner(toy)
    toy.train(tmp_path / "smooth", smooth, **given)
    for step in (2, 3, 5, 6, 9):
        with pytest.raises(KeyboardInterrupt):
            toy.train(tmp_path / "rough", learner(toy), toy.At(step, interrupt), **given)
    _, outcome = toy.train(tmp_path / "rough", rough, **given)
    assert outcome.resumed_from == 9
    assert toy.losses(tmp_path / "rough") == toy.losses(tmp_path / "smooth")
    toy.assert_same(toy.weights(rough), toy.weights(smooth))


def test_the_best_weights_hold_what_was_frozen_then(toy, tmp_path):
    made = learner(toy)
    made.scores = [0.9, 0.1, 0.9]
    kept = {}
    _, outcome = toy.train(
        tmp_path, made, toy.At(6, lambda: kept.update(toy.weights(made))), keep_best=True, eval_count=2
    )
    assert outcome.progress.best_step == 6
    toy.assert_same(toy.weights(made), kept)


def test_something_must_move_from_the_start(toy, tmp_path):
    made = toy.Learner()
    made.parameter_groups = lambda: [ParameterGroup(("hidden.weight",), starts=0.3)]
    with pytest.raises(RecipeError, match="nothing is trained before 30%"):
        toy.loop(tmp_path, made)
