"""A forecast times the loop that the run will go through, and leaves nothing behind."""

from __future__ import annotations

import pytest

import headstart
from headstart.stages.plan import forecast as plan
from headstart.stages.plan import trial
from headstart.training import compilation
from headstart.training.loop import Loop


@pytest.fixture
def loops(monkeypatch):
    """Keep every loop that is timed, before and after."""
    seen = []
    timed = trial.timed

    def keep(loop: Loop):
        found = timed(loop)
        seen.append((loop, found))
        return found

    monkeypatch.setattr(plan, "timed", keep)
    return seen


def test_what_is_timed_is_the_runs_own_step(way, recipe_of, loops, monkeypatch):
    compiled = []
    monkeypatch.setattr(compilation, "compile_layers", compiled.append)
    headstart.plan(recipe_of["pretrain"](way), "training.optim=muon", "training.torch_compile=true")
    ((loop, found),) = loops
    assert type(loop.optimizer).__name__ == "Muon" and compiled == [loop.learner.module]
    assert loop.progress.step == trial.STEPS + 2
    assert found.tokens_per_second > 0 and 0 < found.cores <= 1


def test_texts_of_differing_length_are_timed_over_whole_windows(way, recipe_of, loops):
    headstart.plan(recipe_of["finetune"](way, compare_with=[]))
    ((loop, found),) = loops
    lengths = loop.learner.lengths
    assert loop.progress.step == 2 * trial.STEPS
    assert min(lengths) < found.tokens_per_sample <= max(lengths)


@pytest.mark.parametrize(("cores", "says"), [(0.3, True), (0.97, False)])
def test_a_busy_machine_is_spoken_of(way, recipe_of, cores, says):
    found = headstart.plan(recipe_of["pretrain"](way))
    assert ("busy machine" in plan.render({**found, "cores": cores})) == says
