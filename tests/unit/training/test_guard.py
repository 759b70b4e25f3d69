"""A NaN or Inf changes no weights, and the rows that caused it are recorded."""

from __future__ import annotations

import json
import math
import os
import signal

import pytest
import torch

from headstart.core.data import Sample
from headstart.training.batches import samples_of_step
from headstart.training.checkpoint import Progress
from headstart.training.guard import DivergedError, NanGuard
from headstart.training.jsonl import read_jsonl


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def check(guard, progress, loss, norm=1.0, rows=None):
    return guard.check(progress, loss, norm, lambda: [Sample(0, 3), Sample(1, 4)], lambda: rows or {})


class OneBadRow:
    """A learner with rows whose loss is NaN or Inf."""

    def __new__(cls, toy, bad=(7,), value=float("nan")):
        learner = toy.Learner()
        batch = learner.batch

        def poisoned(samples):
            poison = torch.tensor([value if sample.index in bad else 0.0 for sample in samples])
            return {**batch(samples), "poison": poison}

        learner.batch = poisoned
        return learner


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_step_is_recorded_with_its_samples_and_the_bad_row(toy, tmp_path, value):
    _, outcome = toy.train(tmp_path, OneBadRow(toy, value=value))
    lines = read_jsonl(tmp_path / "logs" / "quarantine.jsonl")
    bad = [step for step in range(12) if any(s.index == 7 for s in samples_of_step(step, 8, 20, 5))]
    assert [line["step"] for line in lines] == [step + 1 for step in bad] and len(bad) > 2
    for line, step in zip(lines, bad, strict=True):
        assert line["samples"] == [[s.epoch, s.index] for s in samples_of_step(step, 8, 20, 5)]
        assert {row["index"] for row in line["rows"]} == {7}
    assert outcome.progress.step == 12 and outcome.progress.bad_steps == 0


@pytest.mark.parametrize("optim", ["adamw", "muon"])
def test_values_that_are_read_at_log_entries_give_the_same_weights_and_records(toy, tmp_path, optim):
    """As on an accelerator: bad steps are skipped by a flag on the device, and recorded later."""
    learners = {}
    for name in ("at once", "later"):
        learners[name] = OneBadRow(toy)
        loop = toy.loop(tmp_path / name, learners[name], optim=optim, logging_steps=4)
        loop.train_step.on_host = name == "at once"
        assert loop.run().progress.bad_steps == 0
    torch.testing.assert_close(toy.weights(learners["later"]), toy.weights(learners["at once"]), rtol=1e-5, atol=1e-7)
    once, later = (read_jsonl(tmp_path / name / "logs" / "quarantine.jsonl") for name in learners)
    assert len(once) > 2 and [line["step"] for line in later] == [line["step"] for line in once]
    assert [line["samples"] for line in later] == [line["samples"] for line in once]


def test_the_error_names_the_bad_row(toy, tmp_path):
    with pytest.raises(DivergedError, match=r"Check rows 7, whose own loss is NaN or Inf.*quarantine\.jsonl"):
        toy.train(tmp_path, OneBadRow(toy), stop_after_bad_steps=1)


def test_a_resumed_run_records_no_step_twice(toy, tmp_path):
    toy.train(tmp_path / "smooth", OneBadRow(toy))
    expected = (tmp_path / "smooth" / "logs" / "quarantine.jsonl").read_text()
    with pytest.raises(KeyboardInterrupt):
        toy.train(tmp_path / "rough", OneBadRow(toy), toy.At(3, interrupt))
    path = tmp_path / "rough" / "logs" / "quarantine.jsonl"
    path.write_text(path.read_text() + json.dumps({"step": 9}) + "\n" + '{"step": 1')
    toy.train(tmp_path / "rough", OneBadRow(toy))
    assert path.read_text() == expected


def test_a_spike_is_distinguished_from_noise_and_recorded_with_its_worst_rows(tmp_path):
    guard, progress = NanGuard(tmp_path, 20), Progress(step=50)
    for number in range(40):
        assert check(guard, progress, 3 + 0.05 * math.sin(number))
    rows = {Sample(0, i): float(i) for i in range(8)}
    assert check(guard, progress, 3.06) and not (tmp_path / "spikes.jsonl").exists()
    assert check(guard, progress, 5.0, rows=rows), "a spike is still learned from"
    (line,) = read_jsonl(tmp_path / "spikes.jsonl")
    assert line["step"] == 51 and line["loss"] == 5.0 and line["loss_deviations"] > 6
    assert [row["index"] for row in line["rows"]] == [7, 6, 5, 4, 3] and line["samples"] == [[0, 3], [1, 4]]


def test_a_gradient_spike_counts_too_and_rows_are_not_searched_at_every_step(tmp_path):
    guard, progress = NanGuard(tmp_path, 20), Progress(step=50)
    for number in range(40):
        check(guard, progress, 3.0, 1 + number % 3)
    for step in (60, 61, 300):
        progress.step = step
        check(guard, progress, 3.0, 50.0, rows={Sample(0, 1): 1.0})
    lines = read_jsonl(tmp_path / "spikes.jsonl")
    assert [len(line["rows"]) for line in lines] == [1, 0, 1] and "gradient_norm_deviations" in lines[0]


def test_the_window_excludes_bad_steps_and_has_a_fixed_size(tmp_path):
    guard, progress = NanGuard(tmp_path, 1000), Progress()
    for number in range(300):
        check(guard, progress, float("nan") if number % 3 == 0 else 2.0)
    assert len(progress.window) == 128 and all(math.isfinite(loss) for loss, _ in progress.window)


def test_the_window_survives_a_resume(toy, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        toy.train(tmp_path, toy.Learner(), toy.At(5, interrupt))
    loop = toy.loop(tmp_path, toy.Learner())
    loop.restore()
    assert len(loop.progress.window) == 5 and isinstance(loop.progress.window[0], tuple)


def test_a_rank_that_does_not_write_decides_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    progress = Progress()
    assert not check(NanGuard(None, 20), progress, float("nan")) and progress.bad_steps == 1
    assert not list(tmp_path.iterdir())
