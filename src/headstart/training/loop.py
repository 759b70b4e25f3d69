"""The training loop, for pre-training and fine-tuning alike. It steps a learner and knows no method's name."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from headstart.core.contracts import BatchSource, Learner
from headstart.core.data import Batch, Sample
from headstart.core.log import logger
from headstart.training import compilation, optimizer, precision, schedule
from headstart.training.batches import StepBatches, batches_from
from headstart.training.budget import Budget, Usage
from headstart.training.callbacks import Callback, default_callbacks
from headstart.training.checkpoint import CheckpointStore, Progress, TrainState
from headstart.training.freezing import Freezing
from headstart.training.guard import NanGuard
from headstart.training.interruption import StopSignal
from headstart.training.loss_scale import LossScale
from headstart.training.phases import Phase, Phases, with_batch_warmup
from headstart.training.recomputation import recompute_layers
from headstart.training.saving import saver_of
from headstart.training.settings import TrainingSettings
from headstart.training.step import Gradients, TrainStep
from headstart.training.world import World


@dataclass(frozen=True)
class RunInfo:
    """Identity of the run that a loop belongs to."""

    folder: Path
    """Receives `checkpoints/` and `logs/`."""
    fingerprint: str
    """Ties checkpoints to the recipe and its inputs."""
    seed: int = 0


@dataclass(frozen=True)
class StepResult:
    """Mean loss, gradient norm before clipping, and learning rate of one step.

    On an accelerator, `loss` and `norm` wait for the step to end.
    """

    gradients: Gradients
    learning_rate: float

    @property
    def loss(self) -> float:
        """The mean loss over all processes."""
        return float(self.gradients.loss)

    @property
    def norm(self) -> float:
        """The gradient norm before clipping."""
        return float(self.gradients.norm)


@dataclass
class TrainResult:
    """What `Loop.run` returns."""

    progress: Progress
    validation: dict[str, float] = field(default_factory=dict)
    """Metrics of the final weights on held-out data."""
    resumed_from: int = 0


class Loop:
    """Steps a learner until its budget is used up; it can be stopped and resumed at any step.

    `progress` holds the counters, `best` the best weights if they are kept, and `validation` the metrics of the
    current weights (None if they have not been evaluated). A callback sets `should_stop` to end the run early.
    """

    def __init__(
        self,
        learner: Learner,
        settings: TrainingSettings,
        run: RunInfo,
        phases: Sequence[Phase],
        *,
        callbacks: Sequence[Callback] | None = None,
        world: World | None = None,
    ) -> None:
        """Set up phases, budget, optimizer and callbacks.

        Epochs of the budget are counted in the first phase. Without `callbacks`, the loop uses `default_callbacks`.
        Every process of a `world` runs the loop on its part of each batch; rank 0 evaluates and writes.
        """
        self.learner, self.settings, self.run_info, self.world = learner, settings, run, world or World()
        self.logs = run.folder / "logs"
        self.callbacks = default_callbacks(settings) if callbacks is None else list(callbacks)
        self.phases = Phases(with_batch_warmup(phases, settings.batch_warmup_ratio, settings.batch_warmup_start))
        self.phases.require_valid(self.world, settings)
        self.budget = Budget.parse(settings.budget).in_steps(phases[0].batch_size, len(phases[0].feed))
        if settings.activation_checkpointing == "full":
            recompute_layers(learner.module)
        if settings.torch_compile:
            compilation.compile_layers(learner.module, precision.default_device(settings.device).type)
        self.train_step = TrainStep(learner, settings, run.seed, self.world)
        groups = learner.parameter_groups()
        self.optimizer = self.train_step.optimizer = optimizer.build(learner.module, groups, settings)
        self.freezing = Freezing(learner.module, groups)
        self.guard = NanGuard(self.logs if self.world.is_main else None, settings.stop_after_bad_steps)
        self.stop_signal = StopSignal(run.folder if self.world.is_main else None)
        self.checkpoints = CheckpointStore(
            run.folder / "checkpoints", run.fingerprint, settings.save_total_limit, settings.save_keep_steps, self.world
        )
        self.saver = saver_of(self.checkpoints, settings.async_save)
        self.progress = Progress()
        self.best: dict[str, torch.Tensor] = {}
        self.validation: dict[str, float] | None = None
        self.should_stop = False
        self.paused = 0.0
        self._trained = {name for group in groups for name in group.names}
        self._stop: bool | None = None
        self._unread: list[tuple[int, Gradients, Callable[[], list[Sample]], BatchSource]] = []
        self._started = time.monotonic()

    def restore(self) -> list[str]:
        """Load the newest checkpoint that verifies, if there is one; return messages about those that do not."""
        restored = self.checkpoints.restore(self.learner.module, self.optimizer)
        if restored is None:
            return []
        self.progress, self.best = restored.progress, restored.best
        if self.train_step.loss_scale is not None:
            scale, steps = self.progress.loss_scale, self.progress.loss_scale_steps
            self.train_step.loss_scale = LossScale(self.train_step.device, scale, steps)
        for message in restored.skipped if self.world.is_main else ():
            logger.warning("skipped a damaged checkpoint: %s", message)
        return restored.skipped

    def run(self) -> TrainResult:
        """Train until the budget is used up or a callback stops the run.

        If a stop is requested (see `StopSignal`), the loop finishes its step, saves, and raises `Stopped`.
        """
        resumed_from, self.should_stop = self.progress.step, False
        self.guard.resume(resumed_from)
        self._started = time.monotonic() - self.progress.seconds
        try:
            self._notify("on_train_begin")
            with self.stop_signal:
                for micro_batches in self._batches():
                    self._notify("on_step_end", self._step(micro_batches))
                    if self.stop_requested():
                        raise self.stop_signal.acknowledge(self.world.all_gather(self.stop_signal.reason))
            self.synchronize()
            self.freezing.update(1.0, math.inf)
            self._notify("on_train_end")
            self.saver.wait()
            self.train_step.parallel.gather()
        finally:
            self.saver.close()
            for callback in self.callbacks:
                callback.close()
        return TrainResult(self.progress, self.validation or {}, resumed_from)

    def fraction_done(self) -> float:
        """Return the used fraction of the budget: 0 at the start, 1 or more at the end."""
        p = self.progress
        return self.budget.fraction_done(Usage(p.seconds, p.tokens, p.step, p.flops))

    def stop_requested(self) -> bool:
        """Return True if the run was asked to stop; checked once per step, so that all callers agree."""
        if self._stop is None:
            self._stop = self.stop_signal.requested()
        return self._stop

    def synchronize(self) -> None:
        """Read the losses and gradient norms of the last steps from an accelerator, once for all, and check them.

        Called before a log entry and a checkpoint, so that the host waits for the device only then. Steps with a NaN
        or Inf have changed no weights. On a CPU every step has been checked.
        """
        if (scale := self.train_step.loss_scale) is not None:
            self.progress.loss_scale, self.progress.loss_scale_steps = scale.state
        unread, self._unread = self._unread, []
        if not unread:
            return
        values = [
            torch.stack(
                [torch.as_tensor(value, device=self.train_step.device).float() for value in (g.loss, g.norm, g.scale)]
            )
            for _, g, _, _ in unread
        ]
        for (step, _, samples, feed), row in zip(unread, torch.stack(values).tolist(), strict=True):
            loss, norm, scale = row
            self.progress.recent.append(loss)
            self._may_step(loss, norm, scale, samples, feed, step)

    def log(self, values: Mapping[str, float]) -> None:
        """Pass the values of a log entry to all callbacks."""
        self._notify("on_log", values)

    def evaluate(self) -> None:
        """Evaluate the current weights, log the metrics, and pass them to all callbacks."""
        self.synchronize()
        with self._paused():
            self.validation = self.validate()
        if self.validation:
            self.log({f"validation/{name}": value for name, value in self.validation.items()})
            self._notify("on_evaluate", self.validation)
            self._synchronize_clock()

    def validate(self) -> dict[str, float]:
        """Return metrics on held-out data: computed on rank 0, or on all ranks if the module is sharded."""
        parallel = self.train_step.parallel
        if not self.world.is_main and not parallel.sharded:
            return self.world.broadcast({})
        with self.train_step.eager(), parallel.evaluating(), self.train_step.autocast():
            metrics = self.learner.validate()
        return self.world.broadcast(metrics)

    def save(self, wait: bool = True) -> Path:
        """Write a checkpoint of the current step and return its path.

        Without `wait` and with `training.async_save`, it is written in the background, while training continues.
        """
        self.synchronize()
        self._notify("on_save_begin")
        self._synchronize_clock()
        train_state = TrainState(self.learner.module, self.optimizer, self.progress, self.best)
        with self._paused():
            return self.saver.save(
                train_state, self.train_step.parallel.sharded, partial(self._notify, "on_save"), wait
            )

    def trained_weights(self) -> dict[str, torch.Tensor]:
        """Return a copy of the trained weights, on the CPU."""
        weights = self.learner.module.state_dict()
        return {name: weights[name].detach().cpu().clone() for name in weights if name in self._trained}

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Load a copy that `trained_weights` made."""
        self.learner.module.load_state_dict(weights, strict=False)
        self.validation = None

    def step_batches(self) -> tuple[int, StepBatches]:
        """Return the next step as the current feed counts, and the batches of its phase."""
        progress, phase = self.progress, self.phases.current(self.progress)
        micro = self.settings.micro_batch_for(phase.batch_size, self.phases.all[0].batch_size)
        batches = StepBatches(
            phase.feed, phase.samples, min(phase.samples, micro), self.run_info.seed,
            self.phases.feed_before(progress), self.world.rank, self.world.size,
        )  # fmt: skip
        return self.phases.feed_step(progress), batches

    def _batches(self) -> Iterator[list[Batch]]:
        """Yield the micro-batches of each step until the budget is used up or a callback stops the run."""
        reader: Iterator[list[Batch]] | None = None
        pin = precision.pins_memory(self.train_step.device)
        while self.fraction_done() < 1 and not self.should_stop:
            if self.freezing.update(self.fraction_done(), self.progress.plateaus):
                self.train_step.parallel.wrap()
            if self.phases.enter(self.progress, self.fraction_done()) or reader is None:
                # A new reader, because the old one has prefetched batches of the previous phase.
                if reader is not None and self.settings.torch_compile:
                    compilation.forget_shapes()
                reader = batches_from(*self.step_batches(), self.settings.dataloader_num_workers, pin)
            yield next(reader)

    def _step(self, micro_batches: Sequence[Batch]) -> StepResult:
        """Compute gradients and step the optimizer, unless the loss or a gradient is NaN or Inf."""
        progress, phase = self.progress, self.phases.current(self.progress)
        factor = schedule.rate_factor(self.fraction_done(), self.settings.lr_scheduler_type, self.settings.warmup_ratio)
        rate = self.settings.learning_rate * factor
        optimizer.set_rate(self.optimizer, rate)
        gradients = self.train_step.gradients(micro_batches, progress.step, self.stop_signal.requested, self._seconds)
        step, batches = self.step_batches()
        samples = partial(batches.samples, step)
        if isinstance(gradients.loss, torch.Tensor):
            is_finite = torch.isfinite(gradients.loss) & torch.isfinite(torch.as_tensor(gradients.norm))
            optimizer.step_unless(self.optimizer, (~is_finite).float())
            self._unread.append((progress.step, gradients, samples, phase.feed))
        else:
            if self._may_step(gradients.loss, float(gradients.norm), float(gradients.scale), samples, phase.feed):
                self.optimizer.step()
            progress.recent.append(gradients.loss)
        if self.train_step.loss_scale is not None:
            loss, norm = torch.as_tensor(gradients.loss), torch.as_tensor(gradients.norm)
            self.train_step.loss_scale.update((torch.isfinite(loss) & ~torch.isfinite(norm)).float())
        self.optimizer.zero_grad()
        progress.step += 1
        progress.samples += phase.samples
        progress.tokens += gradients.tokens
        progress.flops += phase.flops_in(self.freezing.stage) * gradients.tokens
        progress.seconds = gradients.seconds
        self.validation = None
        if len(self._unread) >= self.settings.logging_steps:
            self.synchronize()
        # Several processes have agreed during the step; a single one checks again after its callbacks.
        self._stop = gradients.stop or (None if self.world.size == 1 else False)
        return StepResult(gradients, rate)

    def _may_step(
        self, loss: float, norm: float, scale: float, samples: Callable[[], list[Sample]], feed: BatchSource,
        step: int | None = None,
    ) -> bool:  # fmt: skip
        """Return True if the optimizer may step.

        Gradients that overflow although the loss is finite are the loss scale's fault, which is then halved. If they
        overflow without a scale, or the loss is not finite, the step is a bad one.
        """
        if scale > 1 and math.isfinite(loss) and not math.isfinite(norm):
            self.progress.skipped_steps += 1
            return False
        return self.guard.check(self.progress, loss, norm, samples, partial(self._row_losses, feed, samples), step)

    def _row_losses(self, feed: BatchSource, samples: Callable[[], list[Sample]]) -> dict[Sample, float]:
        return self.train_step.row_losses(feed, samples())

    def _notify(self, point: str, *arguments: object) -> None:
        for callback in self.callbacks:
            getattr(callback, point)(self, *arguments)

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Count the time of the block as time in which nothing is trained."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.paused += time.monotonic() - start

    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _synchronize_clock(self) -> None:
        self.progress.seconds = self.world.broadcast(self._seconds())
