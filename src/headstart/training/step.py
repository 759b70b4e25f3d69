"""One update: the gradients of a global batch, spread over micro-batches and processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor

from headstart.core.contracts import BatchSource, Learner
from headstart.core.data import Batch, Sample
from headstart.core.randomness import integer
from headstart.training import precision
from headstart.training.replicas import Replicas
from headstart.training.settings import TrainingSettings
from headstart.training.sharding import Sharded
from headstart.training.world import World


@dataclass(frozen=True)
class Gradients:
    """What a global batch gave: its mean loss, the norm of its gradients before clipping, the tokens it read."""

    loss: float
    norm: float
    tokens: int
    stop: bool
    """Whether any process was asked to stop."""
    seconds: float
    """What the leader's clock says."""


class TrainStep:
    """Runs a learner forwards and backwards on the share of a global batch that falls to this process."""

    def __init__(self, learner: Learner, settings: TrainingSettings, seed: int, world: World) -> None:
        """Move the module to its device and spread it over the processes."""
        self.learner, self.settings, self.seed, self.world = learner, settings, seed, world
        self.device = precision.default_device()
        self.precision = precision.resolve(settings.precision, self.device)
        if self.device.type == "cuda":
            # Sums by atomic additions differ from run to run; a processor's do not.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
        learner.module.to(self.device)
        shards = settings.parallel == "fsdp" and world.size > 1
        self.spread = Sharded(learner.module, world) if shards else Replicas(learner.module, world)
        self._noise = f"dropout of rank {world.rank}" if world.rank else "dropout"

    def gradients(
        self, micro_batches: Sequence[Batch], step: int, stop: Callable[[], bool], clock: Callable[[], float]
    ) -> Gradients:
        """Accumulate the gradients of the global batch, divided once by its whole weight, and clip them."""
        module, world = self.learner.module, self.world
        module.train()
        (weight,) = world.total(sum(self.learner.weight(batch) for batch in micro_batches))
        total, tokens = 0.0, 0
        for number, batch in enumerate(micro_batches):
            # Dropout draws from torch's global generator: seeding it by step makes the noise a pure function too.
            torch.manual_seed(integer(self.seed, step, number, self._noise))
            with self.spread.accumulating(last=number == len(micro_batches) - 1):
                with self.autocast():
                    loss = self.spread(self._on_device(batch)) / max(weight, 1.0)
                # Gradients of several processes are averaged, and each has divided by the weight of all.
                (loss * world.size).backward()
            total += loss.item()
            tokens += self.learner.tokens(batch)
        found = torch.nn.utils.clip_grad_norm_(module.parameters(), self.settings.max_grad_norm)
        norm = float(found.full_tensor() if isinstance(found, DTensor) else found)
        said = world.total(total, tokens, stop(), clock() if world.leads else 0.0)
        return Gradients(said[0], norm, int(said[1]), said[2] > 0, said[3])

    def row_losses(self, feed: BatchSource, samples: Sequence[Sample]) -> dict[Sample, float]:
        """Return the loss per prediction of each row by itself, without dropout, in this process alone.

        Empty where no process can run the module by itself.
        """
        found: dict[Sample, float] = {}
        if self.spread.sharded:
            return found
        self.learner.module.eval()
        with torch.no_grad(), self.eager(), self.autocast():
            for sample in samples:
                batch = feed.batch([sample])
                loss = self.learner.module(self._on_device(batch))
                found[sample] = float(loss) / max(self.learner.weight(batch), 1.0)
        return found

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which forward passes take place."""
        return precision.autocast(self.precision, self.device)

    def eager(self) -> AbstractContextManager[object]:
        """Return a context for shapes that come once: compiling for them costs more than it gives."""
        return torch.compiler.set_stance("force_eager") if self.settings.torch_compile else nullcontext()

    def _on_device(self, batch: Batch) -> Batch:
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}
