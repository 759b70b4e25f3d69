"""A forecast times the loop that the run will use, and leaves nothing behind."""

from __future__ import annotations

import pytest

import headstart
from headstart.stages.plan import forecast as plan
from headstart.stages.plan import trial
from headstart.training import compilation
from headstart.training.loop import Loop


@pytest.fixture
def timed(monkeypatch):
    """Keep every loop that is run, and every trial that is made of it."""
    loops, trials = [], []
    run, time_steps = Loop.run, trial.time_steps
    monkeypatch.setattr(Loop, "run", lambda loop: loops.append(loop) or run(loop))
    monkeypatch.setattr(
        plan, "time_steps", lambda *given, **more: trials.append(time_steps(*given, **more)) or trials[-1]
    )
    return loops, trials


def test_the_step_of_the_run_is_timed(way, recipe_of, timed, monkeypatch):
    compiled = []
    monkeypatch.setattr(compilation, "compile_layers", lambda module, device: compiled.append(module))
    headstart.plan(recipe_of["pretrain"](way), "training.optim=muon", "training.torch_compile=true")
    (loop,), (result,) = timed
    assert type(loop.optimizer).__name__ == "Muon" and compiled == [loop.learner.module]
    assert loop.progress.step == trial.STEPS + 2 and loop.validation is None
    assert result.tokens_per_second > 0 and 0 < result.cores <= 1
    assert result.flops_per_token == loop.phases.all[0].flops_per_token > 0


def test_texts_of_different_length_are_timed_over_whole_windows(way, recipe_of, timed):
    headstart.plan(recipe_of["finetune"](way, compare_with=[]))
    (loop,), (result,) = timed
    lengths = loop.learner.lengths
    assert loop.progress.step == 2 * trial.STEPS
    assert min(lengths) < result.tokens_per_sample <= max(lengths)


@pytest.mark.parametrize(("cores", "shown"), [(0.3, True), (0.97, False)])
def test_a_busy_machine_is_reported(way, recipe_of, cores, shown):
    forecast = headstart.plan(recipe_of["pretrain"](way))
    assert ("busy machine" in plan.render({**forecast, "cores": cores})) == shown


def test_cpu_time_does_not_apply_to_a_gpu():
    watch = trial.Stopwatch(clock=[0.0, 1.0, 2.0], cpu_time=[0.0, 0.1, 0.2], tokens=[0, 1, 2])
    assert trial.core_fraction(watch, 0, "cpu") < 1.0
    assert trial.core_fraction(watch, 0, "cuda") == 1.0
