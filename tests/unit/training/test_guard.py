"""Bad numbers change no weight, and what they came from is written down by its rows."""

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
from headstart.training.guard import DivergedError, NanGuard, read


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def judged(guard, progress, loss, norm=1.0, rows=None):
    return guard.admits(progress, loss, norm, lambda: [Sample(0, 3), Sample(1, 4)], lambda: rows or {})


class OneBadRow:
    """A learner one of whose rows gives a loss that is no number."""

    def __new__(cls, toy, bad=(7,), value=float("nan")):
        made = toy.Learner()
        batch = made.batch

        def poisoned(samples):
            found = dict(batch(samples))
            found["poison"] = torch.tensor([value if sample.index in bad else 0.0 for sample in samples])
            return found

        made.batch = poisoned
        return made


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_the_batch_is_named_by_its_samples_and_the_row_that_is_to_blame_by_itself(toy, tmp_path, value):
    _, outcome = toy.train(tmp_path, OneBadRow(toy, value=value))
    lines = read(tmp_path / "logs" / "quarantine.jsonl")
    bad = [step for step in range(12) if any(s.index == 7 for s in samples_of_step(step, 8, 20, 5))]
    assert [line["step"] for line in lines] == [step + 1 for step in bad] and len(bad) > 2
    for line, step in zip(lines, bad, strict=True):
        assert line["samples"] == [[s.epoch, s.index] for s in samples_of_step(step, 8, 20, 5)]
        assert {row["index"] for row in line["rows"]} == {7}
    assert outcome.progress.step == 12 and outcome.progress.bad_steps == 0


def test_a_row_that_is_bad_by_itself_is_what_the_advice_speaks_of(toy, tmp_path):
    with pytest.raises(DivergedError, match=r"rows 7.*bad by themselves.*quarantine\.jsonl"):
        toy.train(tmp_path, OneBadRow(toy), stop_after_bad_steps=1)


def test_what_was_written_after_the_checkpoint_is_not_written_twice(toy, tmp_path):
    toy.train(tmp_path / "smooth", OneBadRow(toy))
    expected = (tmp_path / "smooth" / "logs" / "quarantine.jsonl").read_text()
    with pytest.raises(KeyboardInterrupt):
        toy.train(tmp_path / "rough", OneBadRow(toy), toy.At(3, interrupt))
    path = tmp_path / "rough" / "logs" / "quarantine.jsonl"
    path.write_text(path.read_text() + json.dumps({"step": 9}) + "\n" + '{"step": 1')
    toy.train(tmp_path / "rough", OneBadRow(toy))
    assert path.read_text() == expected


def test_a_spike_is_told_from_noise_and_named_by_its_worst_rows(tmp_path):
    guard, progress = NanGuard(tmp_path, 20), Progress(step=50)
    for number in range(40):
        assert judged(guard, progress, 3 + 0.05 * math.sin(number))
    rows = {Sample(0, place): float(place) for place in range(8)}
    assert judged(guard, progress, 3.06) and not (tmp_path / "spikes.jsonl").exists()
    assert judged(guard, progress, 5.0, rows=rows), "a spike is learnt from all the same"
    (line,) = read(tmp_path / "spikes.jsonl")
    assert line["step"] == 51 and line["loss"] == 5.0 and line["loss_deviations"] > 6
    assert [row["index"] for row in line["rows"]] == [7, 6, 5, 4, 3] and line["samples"] == [[0, 3], [1, 4]]


def test_a_gradient_that_stands_out_is_a_spike_too_and_rows_are_not_sought_at_every_step(tmp_path):
    guard, progress = NanGuard(tmp_path, 20), Progress(step=50)
    for number in range(40):
        judged(guard, progress, 3.0, 1 + number % 3)
    for step in (60, 61, 300):
        progress.step = step
        judged(guard, progress, 3.0, 50.0, rows={Sample(0, 1): 1.0})
    lines = read(tmp_path / "spikes.jsonl")
    assert [len(line["rows"]) for line in lines] == [1, 0, 1] and "gradient_norm_deviations" in lines[0]


def test_bad_numbers_stay_out_of_the_window_and_it_does_not_grow(tmp_path):
    guard, progress = NanGuard(tmp_path, 1000), Progress()
    for number in range(300):
        judged(guard, progress, float("nan") if number % 3 == 0 else 2.0)
    assert len(progress.window) == 128 and all(math.isfinite(loss) for loss, _ in progress.window)


def test_the_window_survives_a_resume(toy, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        toy.train(tmp_path, toy.Learner(), toy.At(5, interrupt))
    loop = toy.loop(tmp_path, toy.Learner())
    loop.restore()
    assert len(loop.progress.window) == 5 and isinstance(loop.progress.window[0], tuple)


def test_a_process_that_does_not_write_judges_alike_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    progress = Progress()
    assert not judged(NanGuard(None, 20), progress, float("nan")) and progress.bad_steps == 1
    assert not list(tmp_path.iterdir())
