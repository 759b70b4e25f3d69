"""The gradients of one step: a global batch, split into micro-batches and over processes."""

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
    """Mean loss of a global batch, gradient norm before clipping, and tokens read, over all processes.

    Loss and norm stay on an accelerator, so that the host need not wait for them.
    """

    loss: float | torch.Tensor
    norm: float | torch.Tensor
    tokens: int
    stop: bool
    """True if any process was asked to stop."""
    seconds: float
    """The clock of rank 0."""


class TrainStep:
    """Runs forward and backward passes of a learner on this process's part of a global batch."""

    def __init__(self, learner: Learner, settings: TrainingSettings, seed: int, world: World) -> None:
        """Move the module to its device and wrap it for data parallelism."""
        self.learner, self.settings, self.seed, self.world = learner, settings, seed, world
        self.device = precision.default_device(settings.device)
        self.precision = precision.resolve(settings.precision, self.device)
        self.on_host = self.device.type == "cpu"
        """True if values of a step can be read without waiting for a device."""
        if self.device.type == "cuda":
            # On a GPU, atomic additions make sums differ from run to run; on a CPU they do not.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
        learner.module.to(self.device)
        shards = settings.parallel == "fsdp" and world.size > 1
        self.parallel = Sharded(learner.module, world) if shards else Replicas(learner.module, world)

    def gradients(
        self, micro_batches: Sequence[Batch], step: int, stop: Callable[[], bool], clock: Callable[[], float]
    ) -> Gradients:
        """Accumulate the gradients of the global batch, divided once by its total weight, and clip them."""
        module, world = self.learner.module, self.world
        module.train()
        (weight,) = world.all_reduce_sum(sum(self.learner.weight(batch) for batch in micro_batches))
        total: float | torch.Tensor = 0.0
        tokens = 0
        for number, batch in enumerate(micro_batches):
            # Dropout uses torch's global generator: seeding it by step and micro-batch, as `StepBatches` numbers them
            # over all processes, makes dropout a pure function too.
            torch.manual_seed(integer(self.seed, step, world.rank + number * world.size, "dropout"))
            with self.parallel.accumulating(last=number == len(micro_batches) - 1):
                with self.autocast():
                    loss = self.parallel(self._on_device(batch)) / max(weight, 1.0)
                # DDP and FSDP average gradients, and each process has divided by the total weight.
                (loss * world.size).backward()
            total = total + (loss.item() if self.on_host else loss.detach())
            tokens += self.learner.tokens(batch)
        clipped = torch.nn.utils.clip_grad_norm_(module.parameters(), self.settings.max_grad_norm)
        norm = clipped.full_tensor() if isinstance(clipped, DTensor) else clipped
        if isinstance(total, torch.Tensor) and world.size > 1:
            torch.distributed.all_reduce(total)
        on_host = 0.0 if isinstance(total, torch.Tensor) else total
        sums = world.all_reduce_sum(on_host, tokens, stop(), clock() if world.is_main else 0.0)
        if isinstance(total, torch.Tensor):
            return Gradients(total, norm, int(sums[1]), sums[2] > 0, sums[3])
        return Gradients(sums[0], float(norm), int(sums[1]), sums[2] > 0, sums[3])

    def row_losses(self, feed: BatchSource, samples: Sequence[Sample]) -> dict[Sample, float]:
        """Return the loss per prediction of each row separately, without dropout, computed in this process.

        Empty under FSDP, where no single process can run the module.
        """
        losses: dict[Sample, float] = {}
        if self.parallel.sharded:
            return losses
        self.learner.module.eval()
        with torch.no_grad(), self.eager(), self.autocast():
            for sample in samples:
                batch = feed.batch([sample])
                loss = self.learner.module(self._on_device(batch))
                losses[sample] = float(loss) / max(self.learner.weight(batch), 1.0)
        return losses

    def autocast(self) -> AbstractContextManager[object]:
        """Return the autocast context for forward passes."""
        return precision.autocast(self.precision, self.device)

    def eager(self) -> AbstractContextManager[object]:
        """Return a context without compilation, for shapes that occur once."""
        return torch.compiler.set_stance("force_eager") if self.settings.torch_compile else nullcontext()

    def _on_device(self, batch: Batch) -> Batch:
        # A copy of memory that is not pinned may be read before it is complete, unless the host waits for it.
        pins = precision.pins_memory(self.device)
        return {name: t.to(self.device, non_blocking=pins and t.is_pinned()) for name, t in batch.items()}
