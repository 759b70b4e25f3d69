"""The training loop, for pre-training and fine-tuning alike. It steps a learner and knows no method's name."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch

from headstart.core.contracts import Batch, Learner
from headstart.core.errors import HeadstartError, RecipeError
from headstart.core.randomness import integer
from headstart.training import checkpoint, compilation, optimiser, precision, schedule
from headstart.training.batches import batches_from
from headstart.training.budget import Budget, Spent
from headstart.training.checkpoint import Progress
from headstart.training.interruption import held_back
from headstart.training.phases import Phase, Phases
from headstart.training.progress import Tracker
from headstart.training.replicas import Replicas
from headstart.training.settings import TrainingSettings
from headstart.training.world import World


class DivergedError(HeadstartError):
    """The loss or its gradient stayed infinite or undefined for many steps."""


@dataclass
class Outcome:
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
        """Set up optimiser and budget; `folder` receives `checkpoints/`, `fingerprint` ties them to the recipe.

        With `keep_best`, the weights with the highest first value of `learner.validate()` are the result. The
        learner's own samples are read until a `later` phase begins; epochs of the budget are counted in them.
        Every process of a `world` runs the loop, on its share of each batch; the leader measures and writes.
        """
        self.learner, self.settings, self.seed = learner, settings, seed
        self.world = world or World()
        self.phases = Phases([Phase(0.0, learner, batch_size, flops_per_token), *later])
        _require_work_for_all(self.phases, self.world)
        self.budget = Budget.parse(settings.budget).in_steps(batch_size, len(learner))
        self.checkpoints, self.fingerprint = folder / "checkpoints", fingerprint
        self.keep_best = keep_best
        self.device = precision.default_device()
        self.precision = precision.resolve(settings.precision, self.device)
        learner.module.to(self.device)
        if settings.compile:
            compilation.compile_layers(learner.module)
        self.replicas = Replicas(learner.module, self.world)
        self.optimiser = optimiser.build(learner.module, learner.parameter_groups(), settings)
        self.progress = Progress()
        self.best: dict[str, torch.Tensor] = {}

    def restore(self) -> Outcome:
        """Go to the newest checkpoint that verifies, if there is one."""
        found = checkpoint.restore(self.checkpoints, self.learner.module, self.optimiser, self.fingerprint)
        if found is None:
            return Outcome(self.progress)
        self.progress, self.best, passed_over = found
        return Outcome(self.progress, resumed_from=self.progress.step, passed_over=passed_over)

    def run(self, trackers: Sequence[Tracker] = ()) -> Outcome:
        """Train until the budget is spent, measure once more, and leave the best or last weights in the module."""
        outcome = Outcome(self.progress, resumed_from=self.progress.step)
        self._start_clock()
        saved_at = self.progress.seconds
        last_log = (time.monotonic(), self.progress.tokens)
        evaluated = self._evaluation_number()
        steps: Iterator[list[Batch]] | None = None
        try:
            while self.share() < 1:
                if self.phases.enter(self.progress, self.share()) or steps is None:
                    # A new reader: what the old one has read ahead is of the phase before.
                    steps = self._batches()
                micro_batches = next(steps)
                with held_back():
                    loss, norm, rate = self._step(micro_batches)
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
                        outcome.validation = self._evaluate(trackers)
                    # By the leader's clock, like everything that all processes must decide alike.
                    if self.progress.seconds - saved_at >= 60 * self.settings.save_minutes and share < 1:
                        self.save()
                        saved_at = self.progress.seconds
        except KeyboardInterrupt:
            self.save()
            raise
        if self.keep_best and self.best:
            self.learner.module.load_state_dict(self.best, strict=False)
            outcome.validation = self._validate()
        elif not outcome.validation:
            outcome.validation = self._validate()
        return outcome

    @property
    def micro(self) -> int:
        """Return the samples of one forward pass, whose tokens are as many in every phase as in the first."""
        size, first = self.phases.current(self.progress).batch_size, self.phases.all[0].batch_size
        return self.settings.samples_together(size, first)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which this run's forward passes take place."""
        return precision.autocast(self.precision, self.device)

    def share(self) -> float:
        """Return the share of the budget that is spent."""
        p = self.progress
        return self.budget.share(Spent(p.seconds, p.tokens, p.step, p.flops))

    def save(self) -> Path:
        """Write a checkpoint now; the processes of a world hold the same weights, and the leader writes them."""
        self._tick()
        if self.world.leads:
            limit = self.settings.save_total_limit
            checkpoint.save(
                self.checkpoints, self.learner.module, self.optimiser, self.progress, self.best, self.fingerprint, limit
            )
        self.world.wait()
        return checkpoint.folder_of(self.checkpoints, self.progress)

    def _batches(self) -> Iterator[list[Batch]]:
        phase, step = self.phases.current(self.progress), self.phases.feed_step(self.progress)
        workers = self.settings.dataloader_num_workers
        world = self.world
        return batches_from(step, phase.feed, phase.batch_size, self.micro, self.seed, workers, world.rank, world.size)

    def _step(self, micro_batches: Sequence[Batch]) -> tuple[float, float, float]:
        """Accumulate the global batch, divided once by its whole weight, and update unless a number is bad."""
        module = self.learner.module
        module.train()
        (weight,) = self.world.total(sum(self.learner.weight(batch) for batch in micro_batches))
        rate = self.settings.learning_rate * schedule.rate_factor(
            self.share(), self.settings.lr_scheduler_type, self.settings.warmup_ratio
        )
        optimiser.set_rate(self.optimiser, rate)
        total, tokens = 0.0, 0
        for number, batch in enumerate(micro_batches):
            # Dropout draws from torch's global generator: seeding it by step makes the noise a pure function too.
            torch.manual_seed(integer(self.seed, self.progress.step, number, self._noise))
            on_device = {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}
            with self.replicas.accumulating(last=number == len(micro_batches) - 1):
                with self.autocast():
                    loss = self.replicas(on_device) / max(weight, 1.0)
                # Gradients of several processes are averaged, and each has divided by the weight of all.
                (loss * self.world.size).backward()
            total += loss.item()
            tokens += self.learner.tokens(batch)
        total, read = self.world.total(total, tokens)
        tokens = int(read)
        norm = float(torch.nn.utils.clip_grad_norm_(module.parameters(), self.settings.max_grad_norm))
        if math.isfinite(total) and math.isfinite(norm):
            self.optimiser.step()
            self.progress.bad_steps = 0
        else:
            self._refuse_bad_step(total, norm)
        self.optimiser.zero_grad()
        self.progress.step += 1
        phase = self.phases.current(self.progress)
        self.progress.samples += phase.batch_size
        self.progress.tokens += tokens
        self.progress.flops += phase.flops_per_token * tokens
        self._tick()
        return total, norm, rate

    def _refuse_bad_step(self, loss: float, norm: float) -> None:
        self.progress.bad_steps += 1
        count = self.progress.bad_steps
        if count >= self.settings.stop_after_bad_steps:
            raise DivergedError(
                f"loss {loss}, gradient norm {norm} at step {self.progress.step}: bad for {count} steps in a row",
                do="Lower training.learning_rate or raise training.warmup_ratio; those steps changed no weight",
            )

    def _evaluation_number(self) -> int:
        return int(min(self.share(), 1.0) * self.settings.evaluations + 1e-9)

    def _evaluate(self, trackers: Sequence[Tracker]) -> dict[str, float]:
        values = self._validate()
        if not values:
            return values
        self._log(trackers, {f"validation/{name}": value for name, value in values.items()})
        score = next(iter(values.values()))
        if self.keep_best and (self.progress.best_score is None or score > self.progress.best_score):
            self.progress.best_score, self.progress.best_step = score, self.progress.step
            trained = {name for name, p in self.learner.module.named_parameters() if p.requires_grad}
            self.best = {
                n: v.detach().cpu().clone() for n, v in self.learner.module.state_dict().items() if n in trained
            }
        self._tick()
        return values

    def _validate(self) -> dict[str, float]:
        """Measure held-out data in the leader, with the threads of those who wait for it."""
        if not self.world.leads:
            return self.world.told({})
        # Held-out batches have other shapes and no gradient: compiling for them costs more than it gives.
        stance = torch.compiler.set_stance("force_eager") if self.settings.compile else nullcontext()
        with stance, self.world.all_threads(), self.autocast():
            return self.world.told(self.learner.validate())

    def _log(self, trackers: Sequence[Tracker], values: dict[str, float]) -> None:
        for tracker in trackers:
            tracker.log(self.progress.step, values)

    def _start_clock(self) -> None:
        self._clock = time.monotonic()

    def _tick(self) -> None:
        now = time.monotonic()
        self.progress.seconds = self.world.told(self.progress.seconds + now - self._clock)
        self._clock = now

    @property
    def _noise(self) -> str:
        return f"dropout of rank {self.world.rank}" if self.world.rank else "dropout"


def _require_work_for_all(phases: Phases, world: World) -> None:
    least = min(phase.batch_size for phase in phases.all)
    if least < world.size:
        raise RecipeError(
            f"one update reads {least} samples, and {world.size} processes share them",
            allowed="Each process needs one sample of every update",
            do="Raise training.batch_tokens or batch_size, or start fewer processes",
        )
