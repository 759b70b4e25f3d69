"""The training loop, for pre-training and fine-tuning alike. It steps a learner and knows no method's name."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from headstart.core.contracts import Learner
from headstart.core.data import Batch, Sample
from headstart.core.errors import RecipeError
from headstart.training import checkpoint, compilation, optimizer, progress, schedule
from headstart.training.batches import batches_from, global_batch
from headstart.training.budget import Budget, Usage
from headstart.training.checkpoint import Progress
from headstart.training.freezing import Freezing
from headstart.training.guard import NanGuard
from headstart.training.interruption import StopSignal
from headstart.training.phases import Phase, Phases, growing
from headstart.training.progress import Tracker
from headstart.training.settings import TrainingSettings
from headstart.training.sharding import require_even
from headstart.training.step import TrainStep
from headstart.training.world import World


@dataclass
class TrainResult:
    """What a finished loop hands back."""

    progress: Progress
    validation: dict[str, float] = field(default_factory=dict)
    resumed_from: int = 0
    passed_over: list[str] = field(default_factory=list)


class Loop:
    """Steps a learner until its budget is spent, and can be stopped and started again at any moment."""

    def __init__(
        self,
        learner: Learner,
        settings: TrainingSettings,
        *,
        batch_size: int,
        seed: int,
        folder: Path,
        fingerprint: str,
        flops_per_token: float = 0.0,
        keep_best: bool = False,
        later: Sequence[Phase] = (),
        world: World | None = None,
    ) -> None:
        """Set up optimizer and budget; `folder` receives `checkpoints/`, `fingerprint` ties them to the recipe.

        With `keep_best`, the weights with the highest first value of `learner.validate()` are the result. The
        learner's own samples are read until a `later` phase begins; epochs of the budget are counted in them.
        Every process of a `world` runs the loop, on its share of each batch; the leader measures and writes.
        """
        self.learner, self.settings, self.seed = learner, settings, seed
        self.world = world or World()
        phases = [Phase(0.0, learner, batch_size, flops_per_token), *later]
        self.phases = Phases(growing(phases, settings.batch_warmup_ratio, settings.batch_warmup_start))
        _require_work_for_all(self.phases, self.world, settings)
        self.budget = Budget.parse(settings.budget).in_steps(batch_size, len(learner))
        self.checkpoints, self.fingerprint = folder / "checkpoints", fingerprint
        if settings.early_stopping_patience is not None and not keep_best:
            raise RecipeError(
                f"training.early_stopping_patience is {settings.early_stopping_patience}, "
                "and this run keeps its last weights, not its best",
                allowed="Fine-tuning can stop early; pre-training spends its budget",
                do="Leave training.early_stopping_patience out",
            )
        self.keep_best = keep_best
        if settings.torch_compile:
            compilation.compile_layers(learner.module)
        self.stepper = TrainStep(learner, settings, seed, self.world)
        groups = learner.parameter_groups()
        self.optimizer = optimizer.build(learner.module, groups, settings)
        self.trained = {name for group in groups for name in group.names}
        self.freezing = Freezing(learner.module, groups)
        self.guard = NanGuard(folder / "logs" if self.world.leads else None, settings.stop_after_bad_steps)
        self.notice = StopSignal(folder if self.world.leads else None)
        self.progress = Progress()
        self.best: dict[str, torch.Tensor] = {}

    def restore(self) -> TrainResult:
        """Go to the newest checkpoint that verifies, if there is one, and say which were passed over."""
        found = checkpoint.restore(self.checkpoints, self.learner.module, self.optimizer, self.fingerprint, self.world)
        if found is None:
            return TrainResult(self.progress)
        self.progress, self.best, passed_over = found
        for fault in passed_over if self.world.leads else ():
            print(f"a checkpoint was passed over: {fault}", file=sys.stderr, flush=True)
        return TrainResult(self.progress, resumed_from=self.progress.step, passed_over=passed_over)

    def run(self, trackers: Sequence[Tracker] = ()) -> TrainResult:
        """Train until the budget or the patience is spent, measure once more, and leave the best or last weights.

        Asked to stop (see `StopSignal`), it finishes its step, saves, and raises `Stopped`.
        """
        outcome = TrainResult(self.progress, resumed_from=self.progress.step)
        self.guard.resume(self.progress.step)
        self._start_clock()
        saved_at = self.progress.seconds
        last_log = (time.monotonic(), self.progress.tokens)
        evaluated, measured_at = self._evaluation_number(), -1
        steps: Iterator[list[Batch]] | None = None
        with self.notice:
            while self.share() < 1 and not self._out_of_patience():
                if self.freezing.follow(self.share()):
                    self.stepper.spread.wrap()
                if self.phases.enter(self.progress, self.share()) or steps is None:
                    # A new reader: what the old one has read ahead is of the phase before.
                    if steps is not None and self.settings.torch_compile:
                        compilation.forget_shapes()
                    steps = self._batches()
                loss, norm, rate, stop = self._step(next(steps))
                recent = self.progress.recent
                recent.append(loss)
                share = self.share()
                if self.progress.step % self.settings.logging_steps == 0 or share >= 1:
                    now = time.monotonic()
                    speed = (self.progress.tokens - last_log[1]) / max(now - last_log[0], 1e-9)
                    last_log = (now, self.progress.tokens)
                    self._log(trackers, {
                        "loss": sum(recent) / len(recent), "gradient_norm": norm, "learning_rate": rate,
                        "tokens_per_second": speed, "tokens": float(self.progress.tokens), "share": share,
                    })  # fmt: skip
                    recent.clear()
                if self._evaluation_number() > evaluated or share >= 1:
                    evaluated = self._evaluation_number()
                    outcome.validation, measured_at = self._evaluate(trackers), self.progress.step
                # By the leader's clock, like everything that all processes must decide alike.
                due = self.progress.seconds - saved_at >= 60 * self.settings.save_interval_minutes and share < 1
                # Several processes have agreed on this during the step; one alone may look again.
                stop = stop or (self.world.size == 1 and self.notice.asked())
                if stop or due:
                    progress.sync(trackers)
                    self.save()
                    saved_at = self.progress.seconds
                if stop:
                    raise self.notice.obeyed()
        self.freezing.follow(1.0)
        if self.keep_best and self.best:
            self.learner.module.load_state_dict(self.best, strict=False)
            outcome.validation = self._validate()
        elif measured_at != self.progress.step:
            # A resumed run whose budget was spent, or one whose last save took the rest of its time.
            outcome.validation = self._validate()
        self.stepper.spread.gather()
        return outcome

    @property
    def micro(self) -> int:
        """Return the samples of one forward pass, whose tokens are as many in every phase as in the first."""
        phase, first = self.phases.current(self.progress), self.phases.all[0].batch_size
        return min(phase.samples, self.settings.samples_together(phase.batch_size, first))

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which this run's forward passes take place."""
        return self.stepper.autocast()

    def share(self) -> float:
        """Return the share of the budget that is spent."""
        p = self.progress
        return self.budget.share(Usage(p.seconds, p.tokens, p.step, p.flops))

    def save(self) -> Path:
        """Write a checkpoint now."""
        self._tick()
        return checkpoint.save(
            self.checkpoints, self.learner.module, self.optimizer, self.progress, self.best, self.fingerprint,
            self.settings.save_total_limit, self.world, self.stepper.spread.sharded,
        )  # fmt: skip

    def _batches(self) -> Iterator[list[Batch]]:
        phase, step = self.phases.current(self.progress), self.phases.feed_step(self.progress)
        workers, world, before = (
            self.settings.dataloader_num_workers,
            self.world,
            self.phases.feed_before(self.progress),
        )
        return batches_from(
            step, phase.feed, phase.samples, self.micro, self.seed, workers, world.rank, world.size, before
        )

    def _step(self, micro_batches: Sequence[Batch]) -> tuple[float, float, float, bool]:
        """Make one update, unless a number is bad; returns loss, gradient norm, rate, and whether to stop."""
        rate = self.settings.learning_rate * schedule.rate_factor(
            self.share(), self.settings.lr_scheduler_type, self.settings.warmup_ratio
        )
        optimizer.set_rate(self.optimizer, rate)
        found = self.stepper.gradients(micro_batches, self.progress.step, self.notice.asked, self._clock)
        phase = self.phases.current(self.progress)
        if self.guard.admits(
            self.progress, found.loss, found.norm, self._samples,
            lambda: self.stepper.row_losses(phase.feed, self._samples()),
        ):  # fmt: skip
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.progress.step += 1
        self.progress.samples += phase.samples
        self.progress.tokens += found.tokens
        self.progress.flops += phase.flops_per_token * found.tokens
        self.progress.seconds = found.seconds
        return found.loss, found.norm, rate, found.stop

    def _samples(self) -> list[Sample]:
        """Return the samples of the present step, in all processes."""
        phase, step = self.phases.current(self.progress), self.phases.feed_step(self.progress)
        return global_batch(phase.feed, step, phase.samples, self.seed, self.phases.feed_before(self.progress))

    def _evaluation_number(self) -> int:
        return int(min(self.share(), 1.0) * self.settings.eval_count + 1e-9)

    def _evaluate(self, trackers: Sequence[Tracker]) -> dict[str, float]:
        values = self._validate()
        if not values:
            return values
        self._log(trackers, {f"validation/{name}": value for name, value in values.items()})
        score = next(iter(values.values()))
        if self.keep_best and (self.progress.best_score is None or score > self.progress.best_score):
            self.progress.best_score, self.progress.best_step, self.progress.unimproved = score, self.progress.step, 0
            weights = self.learner.module.state_dict()
            self.best = {name: weights[name].detach().cpu().clone() for name in weights if name in self.trained}
        else:
            self.progress.unimproved += 1
        self._tick()
        return values

    def _out_of_patience(self) -> bool:
        return (
            self.settings.early_stopping_patience is not None
            and self.progress.unimproved >= self.settings.early_stopping_patience
        )

    def _validate(self) -> dict[str, float]:
        """Measure held-out data: in the leader, or in all processes where none holds the whole module."""
        spread = self.stepper.spread
        if not self.world.leads and not spread.sharded:
            return self.world.told({})
        with self.stepper.eager(), spread.measuring(), self.autocast():
            values = self.learner.validate()
        return self.world.told(values)

    def _log(self, trackers: Sequence[Tracker], values: dict[str, float]) -> None:
        for tracker in trackers:
            tracker.log(self.progress.step, values)

    def _start_clock(self) -> None:
        self._started = time.monotonic() - self.progress.seconds

    def _clock(self) -> float:
        return time.monotonic() - self._started

    def _tick(self) -> None:
        self.progress.seconds = self.world.told(self._clock())


def _require_work_for_all(phases: Phases, world: World, settings: TrainingSettings) -> None:
    for phase in phases.all:
        if phase.samples < world.size:
            raise RecipeError(
                f"one update reads {phase.samples} samples, and {world.size} processes share them",
                allowed="Each process needs one sample of every update",
                do="Raise training.batch_tokens or batch_size, or start fewer processes",
            )
        if settings.parallel == "fsdp" and world.size > 1:
            require_even(phase.samples, world, settings.optim)
        if phase.feed.lengths is not None:
            require_batches_of_one_size(settings)


def require_batches_of_one_size(settings: TrainingSettings) -> None:
    """Refuse batches that grow where texts are sorted by length."""
    if settings.batch_warmup_ratio:
        raise RecipeError(
            f"training.batch_warmup_ratio is {settings.batch_warmup_ratio:g}, and texts are sorted by length",
            allowed="Pre-training can start with small batches; sorting needs batches of one size",
            do="Leave training.batch_warmup_ratio out",
        )
