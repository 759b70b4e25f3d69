"""The loop steps exactly, stops cleanly, and resumes to the same bits."""

from __future__ import annotations

import math
import os
import signal
import subprocess
from types import SimpleNamespace

import pytest
import torch

from headstart.core.errors import RecipeError
from headstart.training.batches import samples_of_step
from headstart.training.callbacks import Callback
from headstart.training.guard import DivergedError

DISTURBANCES = [
    pytest.param({}, id="plain"),
    pytest.param({"logging_steps": 5}, id="log of several steps"),
    pytest.param({"budget": "500 tokens", "lr_scheduler_type": "cosine"}, id="tokens"),
    pytest.param({"budget": "4 epochs", "keep_best": True, "eval_count": 4}, id="best of epochs"),
    pytest.param({"precision": "bf16", "weight_decay": 0.3}, id="bf16"),
]


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Results(Callback):
    """Keeps the result of every step."""

    def __init__(self) -> None:
        self.all = []

    def on_step_end(self, loop, result) -> None:
        self.all.append(result)


@pytest.mark.parametrize("given", DISTURBANCES)
@pytest.mark.parametrize("by_length", [False, True])
def test_a_run_interrupted_several_times_gives_the_same_bits(toy, tmp_path, given, by_length):
    def learner():
        return toy.Learner(lengths=[index % 5 for index in range(20)] if by_length else None)

    smooth, rough = learner(), learner()
    _, expected = toy.train(tmp_path / "smooth", smooth, **given)
    stops = [s for s in (1, 2, 5, 9) if given.get("logging_steps", 1) == 1 or s == 5]
    for step in stops:
        rough = learner()
        with pytest.raises(KeyboardInterrupt):
            toy.train(tmp_path / "rough", rough, toy.At(step, interrupt), **given)
    rough = learner()
    _, outcome = toy.train(tmp_path / "rough", rough, **given)
    assert outcome.resumed_from == stops[-1]
    assert toy.curve(tmp_path / "rough") == toy.curve(tmp_path / "smooth")
    toy.assert_same(toy.weights(rough), toy.weights(smooth))
    assert outcome.validation == expected.validation
    a, b = outcome.progress, expected.progress
    assert (a.step, a.tokens, a.samples, a.flops, a.best_step) == (b.step, b.tokens, b.samples, b.flops, b.best_step)


@pytest.mark.parametrize("moment", range(1, 9))
def test_an_interrupt_in_the_middle_of_a_step_waits_for_its_end(toy, tmp_path, moment):
    """Three micro-batches make a step; the interrupt comes while one of them is counted."""
    smooth, rough, after = toy.Learner(), toy.Learner(), toy.Learner()
    toy.train(tmp_path / "smooth", smooth, logging_steps=4)
    calls = []

    def count():
        calls.append(1)
        if len(calls) == moment:
            interrupt()

    rough.on_tokens = count
    with pytest.raises(KeyboardInterrupt):
        toy.train(tmp_path / "rough", rough, logging_steps=4)
    _, outcome = toy.train(tmp_path / "rough", after, logging_steps=4)
    assert outcome.resumed_from == math.ceil(moment / 3)
    assert toy.curve(tmp_path / "rough") == toy.curve(tmp_path / "smooth")
    toy.assert_same(toy.weights(after), toy.weights(smooth))


_KILLED = """
import os, pathlib, runpy, signal, sys
toy = runpy.run_path(sys.argv[1])
folder, step, moment = pathlib.Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
import torch
torch.set_num_threads(1)
def die():
    os.kill(os.getpid(), signal.SIGKILL)
if moment == "while saving":
    rename = os.rename
    def torn(staging, target):
        if pathlib.Path(target).name == f"step-{step:09d}":
            die()
        rename(staging, target)
    os.rename = torn
callbacks = [toy["At"](step, die)] if moment == "while logging" else []
toy["train"](folder, toy["ToyLearner"](), *callbacks, save_interval_minutes=1e-9)
"""


@pytest.mark.parametrize(("step", "moment"), [(7, "while logging"), (4, "while saving")])
def test_a_killed_run_gives_the_same_bits(toy, tmp_path, step, moment):
    smooth, after = toy.Learner(), toy.Learner()
    toy.train(tmp_path / "smooth", smooth)
    rough = tmp_path / "rough"
    command = [toy.python, "-c", _KILLED, toy.source, rough, str(step), moment]
    killed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    _, outcome = toy.train(rough, after)
    assert outcome.resumed_from == step - 1
    assert toy.curve(rough) == toy.curve(tmp_path / "smooth")
    toy.assert_same(toy.weights(after), toy.weights(smooth))


def test_dropout_is_on_and_differs_by_step(toy, tmp_path):
    """Without this the tests above would prove little."""
    with_dropout, without = toy.Learner(dropout=0.3), toy.Learner(dropout=0.0)
    toy.train(tmp_path / "a", with_dropout)
    toy.train(tmp_path / "b", without)
    assert toy.curve(tmp_path / "a") != toy.curve(tmp_path / "b")


def test_the_global_generator_changes_nothing(toy, tmp_path):
    torch.manual_seed(1)
    toy.train(tmp_path / "a", toy.Learner())
    torch.manual_seed(2)
    toy.train(tmp_path / "b", toy.Learner())
    assert toy.curve(tmp_path / "a") == toy.curve(tmp_path / "b")


@pytest.mark.parametrize("micro", [1, 3, 7])
def test_accumulation_equals_one_large_batch(toy, tmp_path, micro):
    """Micro-batches hold different numbers of predictions, so averaging their means would be wrong."""

    def gradients(size):
        learner, results, kept = toy.Learner(dropout=0.0), Results(), {}
        loop = toy.loop(
            tmp_path / str(size), learner, results, budget="1 step", micro_batch_size=size, max_grad_norm=1e9
        )

        def keep():
            kept.update({n: p.grad.clone() for n, p in learner.module.named_parameters() if p.grad is not None})

        loop.optimizer.step = keep
        loop.run()
        return results.all[0].loss, results.all[0].norm, kept

    (loss, norm, gradient), (one_loss, one_norm, one_gradient) = gradients(micro), gradients(8)
    assert loss == pytest.approx(one_loss, rel=1e-6) and norm == pytest.approx(one_norm, rel=1e-5)
    for name in one_gradient:
        assert torch.allclose(gradient[name], one_gradient[name], rtol=1e-4, atol=1e-7), name


def test_the_loss_is_the_mean_over_predictions(toy, tmp_path):
    learner = toy.Learner(dropout=0.0)
    batch = learner.batch(samples_of_step(0, 8, 20, 5))
    with torch.no_grad():
        by_hand = float(learner.module(batch)) / learner.weight(batch)
    toy.train(tmp_path, learner)
    assert dict(toy.curve(tmp_path)[0])["loss"] == pytest.approx(by_hand, rel=1e-6)


def test_training_learns(toy, tmp_path):
    toy.train(tmp_path, toy.Learner(dropout=0.0), budget="60 steps")
    losses = [dict(line)["loss"] for line in toy.curve(tmp_path) if "loss" in dict(line)]
    assert losses[-1] < losses[0] / 2


def test_a_nan_loss_changes_nothing(toy, tmp_path):
    learner, results = toy.Learner(poisoned=[0, 1, 2, 3, 4]), Results()
    loop = toy.loop(tmp_path, learner, results, budget="1 step")
    before = toy.weights(learner)
    loop.run()
    assert math.isnan(results.all[0].loss) and loop.progress.bad_steps == 1 and loop.progress.step == 1
    toy.assert_same(toy.weights(learner), before)
    assert not loop.optimizer.state and all(p.grad is None for p in learner.module.parameters())


def test_a_run_survives_bad_steps_and_keeps_the_moments(toy, tmp_path):
    learner = toy.Learner(size=8, poisoned=[2, 3])
    loop, outcome = toy.train(tmp_path, learner, stop_after_bad_steps=3)
    assert outcome.progress.step == 12 and outcome.progress.bad_steps == 0
    assert all(torch.isfinite(value).all() for value in toy.weights(learner).values())
    state = loop.optimizer.state[learner.module.hidden.weight]
    assert state["step"] == 10 and torch.isfinite(state["exp_avg_sq"]).all()


def test_an_infinite_gradient_is_a_bad_step_too(toy, tmp_path):
    learner = toy.Learner()
    learner.module.hidden.weight.register_hook(lambda gradient: gradient * float("inf"))
    before = toy.weights(learner)
    with pytest.raises(DivergedError):
        toy.train(tmp_path, learner, stop_after_bad_steps=2)
    toy.assert_same(toy.weights(learner), before)


@pytest.mark.parametrize("limit", [1, 4])
def test_a_run_fails_after_the_given_number_of_bad_steps(toy, tmp_path, limit):
    learner = toy.Learner(size=8, poisoned=range(3, 99))
    with pytest.raises(DivergedError, match=rf"NaN or Inf for {limit} steps in a row.*learning_rate"):
        toy.train(tmp_path, learner, stop_after_bad_steps=limit)
    assert dict(toy.curve(tmp_path)[-1])["step"] == 3 + limit - 1


def test_the_count_of_bad_steps_survives_a_resume(toy, tmp_path):
    def learner():
        return toy.Learner(size=8, poisoned=range(3, 99))

    with pytest.raises(KeyboardInterrupt):
        toy.train(tmp_path, learner(), toy.At(5, interrupt), stop_after_bad_steps=4)
    with pytest.raises(DivergedError):
        toy.train(tmp_path, learner(), stop_after_bad_steps=4)
    assert dict(toy.curve(tmp_path)[-1])["step"] == 6


def test_the_best_weights_are_the_result(toy, tmp_path):
    learner = toy.Learner()
    learner.scores = [0.1, 0.9, 0.3, 0.2, 0.9]
    kept = {}
    at_best = toy.At(6, lambda: kept.update(toy.weights(learner)))
    _, outcome = toy.train(tmp_path, learner, at_best, keep_best=True, eval_count=4)
    assert outcome.progress.best_score == 0.9 and outcome.progress.best_step == 6
    assert outcome.validation == {"score": 0.9}
    toy.assert_same(toy.weights(learner), kept)


def test_without_keep_best_the_last_weights_are_the_result(toy, tmp_path):
    learner = toy.Learner()
    learner.scores = [0.9, 0.1, 0.2]
    kept = {}
    _, outcome = toy.train(tmp_path, learner, toy.At(12, lambda: kept.update(toy.weights(learner))))
    toy.assert_same(toy.weights(learner), kept)
    assert outcome.validation == {"score": 0.2}


def test_the_result_is_evaluated_on_the_last_weights(toy, tmp_path, monkeypatch):
    """A save may use up the rest of the time after a step that was not evaluated."""
    clock = [0.0]

    def passes(seconds: float) -> float:
        clock[0] += seconds
        return clock[0]

    monkeypatch.setattr("headstart.training.loop.time", SimpleNamespace(monotonic=lambda: passes(0.001)))

    learner = toy.Learner()
    learner.scores = [0.5, 0.7]
    jumps = [toy.At(step, lambda: passes(1900)) for step in (3, 5)]
    loop = toy.loop(tmp_path, learner, *jumps, budget="1 h", eval_count=2, save_interval_minutes=1e-9)
    outcome = loop.run()
    assert outcome.progress.step == 5 and outcome.validation == {"score": 0.7}


def test_the_best_weights_survive_a_resume(toy, tmp_path):
    smooth = toy.Learner()
    smooth.scores = [0.1, 0.9, 0.3, 0.2, 0.9]
    toy.train(tmp_path / "a", smooth, keep_best=True, eval_count=4)
    rough = toy.Learner()
    rough.scores = [0.1, 0.9]
    with pytest.raises(KeyboardInterrupt):
        toy.train(tmp_path / "b", rough, toy.At(8, interrupt), keep_best=True, eval_count=4)
    rough = toy.Learner()
    rough.scores = [0.3, 0.2, 0.9]
    _, outcome = toy.train(tmp_path / "b", rough, keep_best=True, eval_count=4)
    assert outcome.progress.best_step == 6
    toy.assert_same(toy.weights(rough), toy.weights(smooth))


@pytest.mark.parametrize(
    ("scores", "patience", "last", "best"),
    [
        ([0.1, 0.9, 0.3, 0.2, 0.9], 2, 8, 4),
        ([0.1, 0.9, 0.9, 0.3, 0.9], 2, 8, 4),
        ([0.5, 0.4, 0.6, 0.3, 0.2, 0.6], 2, 10, 6),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.6], 1, 12, 12),
    ],
    ids=["stops", "an equal score is no improvement", "an improvement resets the count", "never stops early"],
)
def test_a_run_stops_when_it_is_out_of_patience(toy, tmp_path, scores, patience, last, best):
    learner = toy.Learner()
    learner.scores = list(scores)
    kept = {}
    at_best = toy.At(best, lambda: kept.update(toy.weights(learner)))
    _, outcome = toy.train(tmp_path, learner, at_best, keep_best=True, eval_count=6, early_stopping_patience=patience)
    assert (outcome.progress.step, outcome.progress.best_step) == (last, best)
    assert learner.scores == [], "the best weights are evaluated once more, and nothing after that"
    toy.assert_same(toy.weights(learner), kept)


@pytest.mark.parametrize("stop", [5, 8])
def test_patience_survives_a_resume(toy, tmp_path, stop):
    """Interrupted between two evaluations, and just as it has run out of patience."""
    rough = toy.Learner()
    rough.scores = [0.9, 0.3, 0.2, 0.1][: stop // 2]
    with pytest.raises(KeyboardInterrupt):
        toy.train(tmp_path, rough, toy.At(stop, interrupt), keep_best=True, eval_count=6, early_stopping_patience=3)
    rough = toy.Learner()
    rough.scores = [0.2, 0.1, 0.9] if stop == 5 else [0.9]
    _, outcome = toy.train(tmp_path, rough, keep_best=True, eval_count=6, early_stopping_patience=3)
    assert (outcome.progress.step, outcome.progress.best_step, rough.scores) == (8, 2, [])


def test_patience_needs_best_weights_and_enough_evaluations(toy, tmp_path):
    with pytest.raises(RecipeError, match=r"`training\.early_stopping_patience` is 2.*last weights"):
        toy.loop(tmp_path, toy.Learner(), early_stopping_patience=2)
    with pytest.raises(ValueError, match="early_stopping_patience is 3, but eval_count is 3"):
        toy.settings(early_stopping_patience=3)


def test_an_interrupt_at_the_last_step_loses_nothing(toy, tmp_path):
    smooth, after = toy.Learner(), toy.Learner()
    _, expected = toy.train(tmp_path / "a", smooth)
    with pytest.raises(KeyboardInterrupt):
        toy.train(tmp_path / "b", toy.Learner(), toy.At(12, interrupt))
    _, outcome = toy.train(tmp_path / "b", after)
    assert outcome.resumed_from == 12 and outcome.validation == expected.validation
    toy.assert_same(toy.weights(after), toy.weights(smooth))
    assert toy.curve(tmp_path / "a") == toy.curve(tmp_path / "b")


@pytest.mark.parametrize(("eval_count", "steps"), [(0, [12]), (3, [4, 8, 12]), (12, list(range(1, 13)))])
def test_held_out_data_is_evaluated_eval_count_times(toy, tmp_path, eval_count, steps):
    toy.train(tmp_path, toy.Learner(), eval_count=eval_count)
    lines = map(dict, toy.curve(tmp_path))
    assert [line["step"] for line in lines if "validation/score" in line] == steps


def test_a_budget_of_time_ends_and_continues_after_a_resume(toy, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        toy.train(tmp_path, toy.Learner(), toy.At(2, interrupt), budget="0.3 s")
    _, outcome = toy.train(tmp_path, toy.Learner(), budget="0.3 s")
    assert 0.3 <= outcome.progress.seconds < 5 and outcome.progress.step > 2


def test_flops_budget_and_counts(toy, tmp_path):
    _, outcome = toy.train(tmp_path, toy.Learner(), budget="500 flops")
    assert outcome.progress.step == 6 and outcome.progress.tokens == 6 * 8 * 6
    assert outcome.progress.flops == 2.0 * outcome.progress.tokens and outcome.progress.samples == 48


def test_rates_follow_the_schedule(toy, tmp_path):
    toy.train(tmp_path, toy.Learner(), warmup_ratio=0.25)
    rates = [dict(line)["learning_rate"] for line in toy.curve(tmp_path) if "learning_rate" in dict(line)]
    assert rates[0] == 0 and rates[3] == pytest.approx(0.02) and max(rates) == rates[3]
    assert rates[-1] == pytest.approx(0.02 / 9)


def test_gradients_are_clipped(toy, tmp_path):
    learner = toy.Learner()
    before = toy.weights(learner)
    toy.train(tmp_path, learner, max_grad_norm=1e-12, adam_epsilon=1.0, weight_decay=0.0)
    for name, value in toy.weights(learner).items():
        assert torch.allclose(value, before[name], atol=1e-9)
