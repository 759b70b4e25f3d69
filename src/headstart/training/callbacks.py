"""Callbacks: what a loop does around its steps. Logging, evaluation and checkpointing are callbacks themselves.

    loop = Loop(learner, settings, run, phases, callbacks=[*default_callbacks(settings), MyCallback()])

A callback receives the loop: `loop.progress` holds step, tokens and seconds, `loop.fraction_done()` the used fraction
of the budget. It may call `loop.log`, `loop.evaluate` and `loop.save`, or set `loop.should_stop`. At each point,
callbacks are called in the order of the list. With several processes, callbacks that evaluate or save belong in the
list of every process, because all processes take part; callbacks that only report belong in that of rank 0.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.core.errors import RecipeError
from headstart.training.settings import TrainingSettings

if TYPE_CHECKING:
    from headstart.training.loop import Loop, StepResult


class Callback:
    """Base class of callbacks; every method does nothing unless a subclass overrides it."""

    def on_train_begin(self, loop: Loop) -> None:
        """Called before the first step; `loop.progress.step` is 0, or the step at which the run resumes."""

    def on_step_end(self, loop: Loop, result: StepResult) -> None:
        """Called after each step, with its loss, gradient norm and learning rate."""

    def on_log(self, loop: Loop, values: Mapping[str, float]) -> None:
        """Called with the values of each log entry; those of an evaluation are named `validation/…`."""

    def on_evaluate(self, loop: Loop, metrics: Mapping[str, float]) -> None:
        """Called after each evaluation, with its metrics; the first one is the one to select checkpoints by."""

    def on_save_begin(self, loop: Loop) -> None:
        """Called on every rank before a checkpoint is written: flush here what must be on disk by then."""

    def on_save(self, loop: Loop, path: Path) -> None:
        """Called on every rank after a checkpoint was written to `path`.

        With `training.async_save`, another thread calls this while training continues: do not use the loop's weights.
        """

    def on_train_end(self, loop: Loop) -> None:
        """Called after the last step of a run that was neither stopped nor failed."""

    def close(self) -> None:
        """Called last, after an error or a stop as well: release files and connections here."""


class LoggingCallback(Callback):
    """Logs mean loss, gradient norm, learning rate, speed and the used budget every `logging_steps` steps.

    On a device whose peak speed is known, `mfu` is the fraction of it that the FLOPs of the model use.
    """

    def __init__(self, logging_steps: int) -> None:
        """Take the number of steps between two log entries."""
        self.logging_steps = logging_steps

    def on_train_begin(self, loop: Loop) -> None:
        """Start measuring the speed."""
        self._last_time, self._last_tokens = _training_time(loop), loop.progress.tokens
        self._last_flops, self._peak = loop.progress.flops, loop.train_step.peak_flops

    def on_step_end(self, loop: Loop, result: StepResult) -> None:
        """Log if an entry is due, and at the end of the budget."""
        progress, fraction = loop.progress, loop.fraction_done()
        if progress.step % self.logging_steps and fraction < 1:
            return
        loop.synchronize()
        now = _training_time(loop)
        speed = (progress.tokens - self._last_tokens) / max(now - self._last_time, 1e-9)
        per_second = (progress.flops - self._last_flops) / max(now - self._last_time, 1e-9)
        self._last_time, self._last_tokens, self._last_flops = now, progress.tokens, progress.flops
        loop.log({
            "loss": sum(progress.recent) / len(progress.recent), "gradient_norm": result.norm,
            "learning_rate": result.learning_rate, "tokens_per_second": speed, "tokens": float(progress.tokens),
            "share": fraction,
            **({} if self._peak is None else {"mfu": per_second / self._peak}),
            **({} if loop.train_step.loss_scale is None else {"loss_scale": progress.loss_scale}),
        })  # fmt: skip
        progress.recent.clear()


def _training_time(loop: Loop) -> float:
    """Return a clock that stands still while the loop evaluates or saves."""
    return time.monotonic() - loop.paused


class EvaluationCallback(Callback):
    """Evaluates `eval_count` times over the budget, and makes sure that the final weights are evaluated."""

    def __init__(self, eval_count: int) -> None:
        """Take the number of evaluations over the whole budget."""
        self.eval_count = eval_count

    def on_train_begin(self, loop: Loop) -> None:
        """Count the evaluations that were made before a resume."""
        self._done = self._due(loop)

    def on_step_end(self, loop: Loop, result: StepResult) -> None:
        """Evaluate if an evaluation is due, and at the end of the budget."""
        if self._due(loop) > self._done or loop.fraction_done() >= 1:
            loop.evaluate()
            # Of evaluations that came due meanwhile, which a time budget allows, none is made up for.
            self._done = self._due(loop)

    def on_train_end(self, loop: Loop) -> None:
        """Evaluate weights that have not been evaluated.

        These are the best weights, which were loaded again, those of a resumed run whose budget was already used up,
        and those of a run whose last save took the rest of its time.
        """
        if loop.validation is None:
            loop.validation = loop.validate()

    def _due(self, loop: Loop) -> int:
        return int(min(loop.fraction_done(), 1.0) * self.eval_count + 1e-9)


class BestWeightsCallback(Callback):
    """Keeps the weights with the highest first metric, and loads them at the end of training."""

    def on_evaluate(self, loop: Loop, metrics: Mapping[str, float]) -> None:
        """Copy the trained weights if the score is the best so far."""
        progress, score = loop.progress, next(iter(metrics.values()))
        best = progress.best_score
        if not math.isnan(score) and (best is None or math.isnan(best) or score > best):
            progress.best_score, progress.best_step, progress.unimproved = score, progress.step, 0
            loop.best = loop.trained_weights()
        else:
            progress.unimproved += 1
            progress.plateaus += 1

    def on_train_end(self, loop: Loop) -> None:
        """Load the best weights."""
        if loop.best:
            loop.load_weights(loop.best)


class EarlyStoppingCallback(Callback):
    """Stops after `patience` evaluations in a row without improvement, as `BestWeightsCallback` counts them."""

    def __init__(self, patience: int) -> None:
        """Take the number of evaluations without improvement."""
        self.patience = patience

    def on_train_begin(self, loop: Loop) -> None:
        """Stop a resumed run at once if it had run out of patience."""
        loop.should_stop |= loop.progress.unimproved >= self.patience

    def on_evaluate(self, loop: Loop, metrics: Mapping[str, float]) -> None:
        """Stop if the run is out of patience."""
        loop.should_stop |= loop.progress.unimproved >= self.patience


class CheckpointCallback(Callback):
    """Saves a checkpoint every `minutes` minutes, at multiples of `steps`, and when the run is asked to stop."""

    def __init__(self, minutes: float, steps: int | None = None) -> None:
        """Take the minutes between two checkpoints, and the number of steps between two that are kept."""
        self.minutes, self.steps = minutes, steps

    def on_train_begin(self, loop: Loop) -> None:
        """Start counting the minutes."""
        self._saved_at = loop.progress.seconds

    def on_step_end(self, loop: Loop, result: StepResult) -> None:
        """Save if a checkpoint is due by the clock of rank 0; at the end of the budget the run publishes its result."""
        loop.saver.check()
        due = loop.progress.seconds - self._saved_at >= 60 * self.minutes
        due |= self.steps is not None and loop.progress.step % self.steps == 0
        if (due and loop.fraction_done() < 1) or loop.stop_requested():
            # A run that is asked to stop may have little time left, and ends with this checkpoint.
            loop.save(wait=loop.stop_requested())
            self._saved_at = loop.progress.seconds


def default_callbacks(settings: TrainingSettings, keep_best: bool = False) -> list[Callback]:
    """Return the callbacks that the settings ask for: logging, evaluation and checkpointing.

    With `keep_best`, the weights with the highest first metric are the result of the run.
    """
    if settings.early_stopping_patience is not None and not keep_best:
        raise RecipeError(
            f"`training.early_stopping_patience` is {settings.early_stopping_patience}, but this run keeps its last "
            "weights, not its best",
            allowed="Fine-tuning can stop early; pre-training uses its whole budget",
            do="Remove `training.early_stopping_patience`",
        )
    callbacks: list[Callback] = [LoggingCallback(settings.logging_steps)]
    if keep_best:
        # Before the evaluation, which at the end of training measures the weights that this one loads.
        callbacks.append(BestWeightsCallback())
    if settings.early_stopping_patience is not None:
        callbacks.append(EarlyStoppingCallback(settings.early_stopping_patience))
    saving = CheckpointCallback(settings.save_interval_minutes, settings.save_keep_steps)
    return [*callbacks, EvaluationCallback(settings.eval_count), saving]
