"""Checkpoints written in the background hold the state of their step, one at a time, and a failure ends the run."""

from __future__ import annotations

import threading

import pytest
from safetensors.torch import load_file

from headstart.core import artifact
from headstart.training.callbacks import Callback
from headstart.training.interruption import Stopped

EACH_STEP = {"save_interval_minutes": 1e-9, "save_total_limit": 20}


def tensors(checkpoint):
    (path,) = checkpoint.glob("*.safetensors")
    return load_file(path)


def test_each_checkpoint_has_the_state_of_its_step(toy, tmp_path):
    toy.train(tmp_path / "now", toy.Learner(), **EACH_STEP)
    toy.train(tmp_path / "later", toy.Learner(), async_save=True, **EACH_STEP)
    assert toy.curve(tmp_path / "later") == toy.curve(tmp_path / "now")
    names = sorted(path.name for path in (tmp_path / "later" / "checkpoints").iterdir())
    assert names == [f"step-{step:09d}" for step in range(1, 12)]
    for name in names:
        artifact.verify(tmp_path / "later" / "checkpoints" / name, "checkpoint")
        toy.assert_same(*(tensors(tmp_path / way / "checkpoints" / name) for way in ("later", "now")))


class HoldsTheWriter(Callback):
    """Keeps the thread of a checkpoint busy until a later step, and records what is saved when."""

    def __init__(self, until: int) -> None:
        self.until, self.released, self.saved = until, threading.Event(), []

    def on_step_end(self, loop, result) -> None:
        if loop.progress.step == self.until:
            self.released.set()

    def on_save(self, loop, path) -> None:
        assert self.released.wait(60), "training waits for the checkpoint"
        self.saved.append((path.name, threading.current_thread().name))


def test_training_continues_while_a_checkpoint_is_written_and_waits_for_the_last_one(toy, tmp_path):
    holder = HoldsTheWriter(until=7)
    toy.train(tmp_path, toy.Learner(), holder, async_save=True, save_keep_steps=4)
    assert holder.saved == [("step-000000004", "checkpoint"), ("step-000000008", "checkpoint")]


def test_a_run_that_is_asked_to_stop_saves_at_once(toy, tmp_path):
    class StopAtThree(Callback):
        def on_log(self, loop, values) -> None:
            if loop.progress.step == 3:
                loop.stop_signal.reason = "a test"

    holder = HoldsTheWriter(until=1)
    with pytest.raises(Stopped):
        toy.train(tmp_path, toy.Learner(), StopAtThree(), holder, async_save=True, **EACH_STEP)
    assert [name for name, _ in holder.saved] == [f"step-{step:09d}" for step in (1, 2, 3)]
    assert holder.saved[-1][1] == "MainThread"


@pytest.mark.parametrize("at_end", [False, True])
def test_a_checkpoint_that_cannot_be_written_ends_the_run(toy, tmp_path, at_end):
    (tmp_path / "checkpoints").write_text("in the way")
    last = 11 if at_end else 3
    with pytest.raises(OSError, match="checkpoints"):
        toy.train(tmp_path, toy.Learner(), async_save=True, save_keep_steps=last)
    assert len(toy.curve(tmp_path)) >= last


def test_checkpoints_at_multiples_of_a_number_of_steps_are_kept(toy, tmp_path):
    toy.train(tmp_path, toy.Learner(), save_interval_minutes=1e-9, save_total_limit=2, save_keep_steps=4)
    steps = sorted(int(path.name.removeprefix("step-")) for path in (tmp_path / "checkpoints").iterdir())
    assert steps == [4, 8, 10, 11]
