"""Callbacks are called at their named points, in order, and can steer the loop."""

from __future__ import annotations

import math
import os
import signal

import pytest

from headstart.training.callbacks import BestWeightsCallback, Callback, EvaluationCallback, LoggingCallback
from headstart.training.guard import DivergedError
from headstart.training.jsonl import read_jsonl
from headstart.training.loop import Loop, RunInfo
from headstart.training.phases import Phase


class Recorder(Callback):
    """Writes down every call with the step at which it came."""

    def __init__(self, name: str = "", calls: list | None = None) -> None:
        self.name, self.calls = name, [] if calls is None else calls

    def on_train_begin(self, loop) -> None:
        self.record(loop, "train begin")

    def on_step_end(self, loop, result) -> None:
        self.record(loop, "step end")

    def on_log(self, loop, values) -> None:
        self.record(loop, "log loss" if "loss" in values else "log validation")

    def on_evaluate(self, loop, metrics) -> None:
        self.record(loop, f"evaluate {list(metrics)}")

    def on_save_begin(self, loop) -> None:
        self.record(loop, "save begin")

    def on_save(self, loop, path) -> None:
        assert path.is_dir()
        self.record(loop, f"save {path.name}")

    def on_train_end(self, loop) -> None:
        self.record(loop, "train end")

    def close(self) -> None:
        self.calls.append((self.name + "close").strip())

    def record(self, loop, what: str) -> None:
        self.calls.append(f"{self.name}{loop.progress.step} {what}")


def test_every_point_is_called_in_order(toy, tmp_path):
    recorder = Recorder()
    toy.loop(tmp_path, toy.Learner(), recorder, budget="2 steps", eval_count=1, save_interval_minutes=1e-9).run()
    assert recorder.calls == [
        "0 train begin",
        "1 log loss", "1 save begin", "1 save step-000000001", "1 step end",
        "2 log loss", "2 log validation", "2 evaluate ['score']", "2 step end",
        "2 train end", "close",
    ]  # fmt: skip


def test_callbacks_are_called_in_the_order_of_the_list(toy, tmp_path):
    calls: list[str] = []
    toy.loop(tmp_path, toy.Learner(), Recorder("a ", calls), Recorder("b ", calls), budget="1 step").run()
    assert [call[0] for call in calls] == ["a", "b"] * (len(calls) // 2)


def test_a_resumed_run_begins_at_its_step(toy, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        toy.train(tmp_path, toy.Learner(), toy.At(3, lambda: os.kill(os.getpid(), signal.SIGINT)))
    recorder = Recorder()
    toy.train(tmp_path, toy.Learner(), recorder)
    assert recorder.calls[:2] == ["3 train begin", "4 log loss"]


@pytest.mark.parametrize("ends_by", ["an interrupt", "an error"])
def test_every_callback_is_closed_however_a_run_ends(toy, tmp_path, ends_by):
    recorder = Recorder()
    if ends_by == "an interrupt":
        at = toy.At(2, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            toy.train(tmp_path, toy.Learner(), at, recorder)
    else:
        with pytest.raises(DivergedError):
            toy.train(tmp_path, toy.Learner(poisoned=range(9)), recorder, stop_after_bad_steps=1)
    assert recorder.calls[-1] == "close" and not any("train end" in call for call in recorder.calls)


def test_a_callback_can_end_the_run_and_the_final_weights_are_evaluated(toy, tmp_path):
    learner = toy.Learner()
    learner.scores = [0.5]
    _, outcome = toy.train(tmp_path, learner, toy.StopAfter(2))
    assert outcome.progress.step == 2 and outcome.validation == {"score": 0.5}


def test_evaluations_that_take_longer_than_their_interval_do_not_follow_each_other(monkeypatch):
    class Clock:
        """A loop of 300 s with steps of 1 s and evaluations of 40 s."""

        seconds, steps, evaluations = 0.0, 0, 0

        def fraction_done(self) -> float:
            return self.seconds / 300

        def evaluate(self) -> None:
            self.seconds, self.evaluations = self.seconds + 40, self.evaluations + 1

    loop, callback = Clock(), EvaluationCallback(10)
    callback.on_train_begin(loop)
    while loop.fraction_done() < 1:
        loop.seconds, loop.steps = loop.seconds + 1, loop.steps + 1
        callback.on_step_end(loop, None)
    assert loop.evaluations <= 5 and loop.steps >= 100


def test_a_first_score_of_nan_is_beaten(toy, tmp_path):
    learner = toy.Learner()
    learner.scores = [math.nan, -1.0, -0.5, -0.7]
    _, outcome = toy.train(tmp_path, learner, BestWeightsCallback(), budget="4 steps", eval_count=4)
    assert (outcome.progress.best_score, outcome.progress.best_step) == (-0.5, 3)


def test_the_speed_does_not_count_evaluations(toy, tmp_path):
    class Slow(Callback):
        def on_step_end(self, loop, result) -> None:
            loop.paused += 1000.0  # as if that long had been spent in an evaluation

    toy.train(tmp_path, toy.Learner(), Slow(), budget="3 steps", logging_steps=1)
    lines = read_jsonl(tmp_path / "logs" / "metrics.jsonl")
    speeds = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
    assert len(speeds) == 3 and max(speeds[1:]) > 1e6


def test_a_callback_can_evaluate_and_save(toy, tmp_path):
    class AtStepTwo(Callback):
        def on_step_end(self, loop, result) -> None:
            if loop.progress.step == 2:
                loop.evaluate()
                loop.save()

    toy.train(tmp_path, toy.Learner(), AtStepTwo(), budget="3 steps", eval_count=0)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000000002"]
    assert [dict(line)["step"] for line in toy.curve(tmp_path) if "validation/score" in dict(line)] == [2, 3]


def test_a_loop_does_only_what_its_callbacks_do(toy, tmp_path):
    """Without an evaluation or a checkpoint callback, nothing is evaluated or saved, not even on a request to stop."""
    learner, logged = toy.Learner(), Recorder()
    learner.validate = None
    at = toy.At(2, lambda: os.kill(os.getpid(), signal.SIGINT))
    info, phases = RunInfo(tmp_path, "f"), [Phase(0.0, learner, 8)]
    loop = Loop(learner, toy.settings(), info, phases, callbacks=[LoggingCallback(1), logged, at])
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    assert loop.progress.step == 2 and list(tmp_path.iterdir()) == []
    quiet = Loop(toy.Learner(), toy.settings(), info, phases, callbacks=[])
    assert quiet.run().validation == {} and list(tmp_path.iterdir()) == []


def test_a_run_with_any_callbacks_gives_the_same_bits(toy, tmp_path):
    plain, watched = toy.Learner(), toy.Learner()
    toy.train(tmp_path / "plain", plain)
    toy.train(tmp_path / "watched", watched, Recorder(), save_interval_minutes=1e-9, eval_count=12, logging_steps=3)
    toy.assert_same(toy.weights(watched), toy.weights(plain))
