"""Short rows first, long ones later: each phase reads its own batches, and a resume continues in them."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from headstart.core.data import MixtureComponent
from headstart.core.errors import RecipeError
from headstart.training import compilation
from headstart.training.batches import global_batch
from headstart.training.callbacks import Callback
from headstart.training.checkpoint import Progress
from headstart.training.phases import Phase, Phases, with_batch_warmup


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Seen:
    """Records the shape of every batch that the loop counts."""

    def __init__(self, learner) -> None:
        self.shapes: list[tuple[int, int]] = []
        tokens = learner.tokens

        def count(batch):
            self.shapes.append(tuple(batch["ids"].shape))
            return tokens(batch)

        learner.tokens = count


def longer(toy, start: float = 0.5) -> list[Phase]:
    """Return a phase with rows twice as long, half as many per batch, and half as many per epoch."""
    return [Phase(start, toy.Learner(size=10, length=12), 4, flops_per_token=3.0)]


def test_each_phase_reads_its_own_rows_and_costs_its_own_flops(toy, tmp_path):
    learner = toy.Learner()
    seen = Seen(learner)
    _, outcome = toy.train(tmp_path, learner, later=longer(toy), micro_batch_size=None)
    assert seen.shapes == [(8, 6)] * 6 + [(4, 12)] * 6
    progress = outcome.progress
    assert progress.phases == [0, 6] and progress.step == 12
    assert (progress.tokens, progress.samples) == (12 * 48, 6 * 8 + 6 * 4)
    assert progress.flops == 2.0 * 6 * 48 + 3.0 * 6 * 48


def test_each_phase_compiles_for_its_own_shapes(toy, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(compilation, "compile_layers", lambda module, device: calls.append("compiled"))
    monkeypatch.setattr(compilation, "forget_shapes", lambda: calls.append("forgot"))
    toy.train(tmp_path / "one", toy.Learner(), torch_compile=True)
    assert calls == ["compiled"]
    toy.train(tmp_path / "two", toy.Learner(), later=longer(toy), torch_compile=True, micro_batch_size=None)
    assert calls == ["compiled", "compiled", "forgot"]


def test_a_forward_pass_holds_as_many_tokens_in_every_phase(toy, tmp_path):
    learner = toy.Learner()
    seen = Seen(learner)
    toy.train(tmp_path, learner, later=longer(toy), micro_batch_size=4)
    assert Counter(seen.shapes) == {(4, 6): 12, (2, 12): 12}


@pytest.mark.parametrize(
    "given",
    [{}, {"budget": "500 tokens"}, {"budget": "1300 flops"}, {"budget": "5 epochs"}, {"dataloader_num_workers": 2}],
)
def test_a_run_stopped_on_either_side_of_the_switch_gives_the_same_bits(toy, tmp_path, given):
    smooth, rough = toy.Learner(), toy.Learner()
    _, expected = toy.train(tmp_path / "smooth", smooth, later=longer(toy), **given)
    switch = expected.progress.phases[1]
    assert 3 < switch < expected.progress.step - 2
    for step in (switch - 1, switch, switch + 2):
        with pytest.raises(KeyboardInterrupt):
            toy.train(tmp_path / "rough", toy.Learner(), toy.At(step, interrupt), later=longer(toy), **given)
    _, outcome = toy.train(tmp_path / "rough", rough, later=longer(toy), **given)
    assert outcome.resumed_from == switch + 2
    assert toy.curve(tmp_path / "rough") == toy.curve(tmp_path / "smooth")
    toy.assert_same(toy.weights(rough), toy.weights(smooth))
    assert outcome.progress.phases == expected.progress.phases and outcome.progress.flops == expected.progress.flops


def test_under_a_budget_of_time_the_step_of_the_switch_is_saved(toy, tmp_path):
    """The step of the switch depends on the clock, so the checkpoint records it."""
    given = {"budget": "2 s", "later": longer(toy, 0.25)}
    stopped = []

    class InTheSecondPhase(Callback):
        def on_log(self, loop, values):
            step, phases = loop.progress.step, loop.progress.phases
            if phases[1:] and step >= phases[1] + 3 and not stopped:
                stopped.append(step)
                interrupt()

    loop = toy.loop(tmp_path, toy.Learner(), InTheSecondPhase(), **given)
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    again = toy.loop(tmp_path, toy.Learner(), **given)
    again.restore()
    assert again.progress.phases == loop.progress.phases
    feed, taken, batches = given["later"][0].feed, again.progress.step - again.progress.phases[1], []
    batch = feed.batch
    feed.batch = lambda samples: batches.append(list(samples)) or batch(samples)
    outcome = again.run()
    assert batches[0] == global_batch(feed, taken, 4, 5)[: len(batches[0])]
    assert outcome.progress.phases == loop.progress.phases and outcome.progress.step > stopped[0]


def test_a_length_that_returns_continues_where_it_stopped(toy):
    short, long = toy.Learner(), toy.Learner(length=12)
    phases = Phases([Phase(0.0, short, 8), Phase(0.25, long, 4), Phase(0.75, short, 8)])
    progress, steps = Progress(), []
    for step in range(16):
        progress.step = step
        phases.enter(progress, step / 16)
        steps.append((phases.current(progress).feed is short, phases.feed_step(progress)))
    assert steps == [(True, n) for n in range(4)] + [(False, n) for n in range(8)] + [(True, n) for n in range(4, 8)]


def test_the_batch_size_doubles_over_a_fraction_of_the_budget(toy):
    short, long = toy.Learner(), toy.Learner(length=12)
    phases = with_batch_warmup([Phase(0.0, short, 8), Phase(0.15, long, 4)], ratio=0.2, start=0.25)
    assert [(p.start, p.samples, p.feed is long) for p in phases] == [
        (0.0, 2, False), (0.1, 4, False), (0.15, 2, True), (0.2, 4, True)
    ]  # fmt: skip
    assert [p.samples for p in with_batch_warmup([Phase(0.0, short, 100)], 0.3, 0.1)] == [10, 20, 40, 80, 100]
    assert with_batch_warmup([Phase(0.0, short, 8)], 0.0, 0.25) == [Phase(0.0, short, 8)]


@pytest.mark.parametrize("parts", [(), (MixtureComponent(12, 0.7), MixtureComponent(8, 0.3))])
def test_growing_batches_read_the_same_samples_as_constant_ones(toy, parts):
    """The order of the samples does not depend on the batch sizes."""
    feed = toy.Learner()
    feed.parts = parts
    phases, progress, seen = Phases(with_batch_warmup([Phase(0.0, feed, 8)], 0.5, 0.25)), Progress(), []
    for step in range(16):
        progress.step = step
        phases.enter(progress, step / 16)
        phase = phases.current(progress)
        seen += global_batch(feed, phases.feed_step(progress), phase.samples, 5, phases.feed_before(progress))
    assert len(seen) == 4 * 2 + 4 * 4 + 8 * 8
    assert seen == [sample for step in range(11) for sample in global_batch(feed, step, 8, 5)]


@pytest.mark.parametrize("given", [{}, {"budget": "500 tokens", "later": True}, {"dataloader_num_workers": 2}])
def test_a_run_stopped_during_batch_warmup_gives_the_same_bits(toy, tmp_path, given):
    def options():
        own = {"batch_warmup_ratio": 0.5, "batch_warmup_start": 0.25, "micro_batch_size": None, **given}
        return {**own, "later": longer(toy, 0.3)} if own.pop("later", False) else own

    smooth, rough = toy.Learner(), toy.Learner()
    seen = Seen(smooth)
    _, expected = toy.train(tmp_path / "smooth", smooth, **options())
    assert {rows for rows, length in seen.shapes if length == 6} == {2, 4} | ({8} if "later" not in given else set())
    switch = expected.progress.phases[1]
    for step in (switch - 1, switch, switch + 1):
        with pytest.raises(KeyboardInterrupt):
            toy.train(tmp_path / "rough", toy.Learner(), toy.At(step, interrupt), **options())
    _, outcome = toy.train(tmp_path / "rough", rough, **options())
    assert outcome.resumed_from == switch + 1
    assert toy.curve(tmp_path / "rough") == toy.curve(tmp_path / "smooth")
    toy.assert_same(toy.weights(rough), toy.weights(smooth))
    assert outcome.progress.samples == expected.progress.samples == sum(rows for rows, _ in seen.shapes)


def test_a_forward_pass_keeps_its_size_during_batch_warmup(toy, tmp_path):
    learner = toy.Learner()
    seen = Seen(learner)
    toy.train(tmp_path, learner, batch_warmup_ratio=0.5, batch_warmup_start=0.25, micro_batch_size=2)
    assert set(seen.shapes) == {(2, 6)} and len(seen.shapes) == 3 * 1 + 3 * 2 + 6 * 4


def test_batch_warmup_needs_unsorted_texts_and_a_budget_without_epochs(toy, tmp_path):
    with pytest.raises(RecipeError, match="sorted by length"):
        toy.loop(tmp_path, toy.Learner(lengths=[1] * 20), batch_warmup_ratio=0.1)
    with pytest.raises(ValueError, match="'2 epochs'"):
        toy.loop(tmp_path, toy.Learner(), batch_warmup_ratio=0.1, budget="2 epochs")


def test_a_phase_too_short_for_a_step_is_skipped(toy):
    learner = toy.Learner()
    phases = Phases([Phase(0.0, learner, 8), Phase(0.5, toy.Learner(), 8), Phase(0.51, toy.Learner(), 8)])
    progress = Progress(step=3)
    assert phases.enter(progress, 0.6) and progress.phases == [0, 3, 3]
    assert [steps for _, steps in phases.steps_of(progress)] == [3, 0, 0]
    assert not phases.enter(progress, 1.2)


def test_a_switch_is_on_time_despite_floating_point_sums():
    feed = object()
    phases = Phases([Phase(0.0, feed, 1), Phase(0.1 + 0.2, feed, 1)])
    assert phases.enter(Progress(step=3), 3 / 10)


def test_old_checkpoints_without_phases_are_in_the_first():
    assert Progress(step=700).phases == [0]
