"""The gradients of one step: a global batch, split into micro-batches and over processes."""

from __future__ import annotations

import gc
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial

import torch
from torch.distributed.tensor import DTensor

from headstart.core.contracts import BatchSource, Learner
from headstart.core.data import Batch, Sample
from headstart.core.errors import RecipeError, ResourceError
from headstart.core.randomness import integer
from headstart.training import memory, precision
from headstart.training.deferred import is_deferred
from headstart.training.devices import peak_flops
from headstart.training.loss_scale import LossScale
from headstart.training.memory import StepMemory
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
    scale: float | torch.Tensor = 1.0
    """What the loss was multiplied by, for fp16; the loss and the norm above are without it."""


class TrainStep:
    """Runs forward and backward passes of a learner on this process's part of a global batch."""

    def __init__(self, learner: Learner, settings: TrainingSettings, seed: int, world: World) -> None:
        """Move the module to its device and wrap it for data parallelism."""
        self.learner, self.settings, self.seed, self.world = learner, settings, seed, world
        self.device = precision.default_device(settings.device)
        self.precision = precision.resolve(settings.precision, self.device)
        precision.set_tf32(settings.tf32, self.device)
        self.loss_scale = LossScale(self.device) if self.precision == "fp16" else None
        self.optimizer: torch.optim.Optimizer | None = None
        """Set by the loop, for the memory that its state takes."""
        self.on_host = self.device.type == "cpu"
        """True if values of a step can be read without waiting for a device."""
        if self.device.type == "cuda":
            # On a GPU, atomic additions make sums differ from run to run; on a CPU they do not.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
        if not is_deferred(learner.module):
            learner.module.to(self.device)
        shards = settings.shards_weights and world.size > 1
        if shards and settings.gather_dtype == "bf16" and self.precision != "bf16":
            raise RecipeError(
                f"`training.gather_dtype` is bf16, but the run computes in {self.precision}",
                allowed="Weights that are gathered in bf16 are computed with in bf16",
                do="Set `training.precision` to bf16, or `training.gather_dtype` to fp32",
            )
        if shards:
            self.parallel: Sharded | Replicas = Sharded(learner.module, world, settings, self.device)
        else:
            self.parallel = Replicas(learner.module, world, settings)

    @property
    def peak_flops(self) -> float | None:
        """Return the peak FLOP/s of the devices of all processes together; None if it is not known."""
        tf32 = self.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
        peak = peak_flops(precision.device_name(self.device), self.precision, tf32)
        return None if peak is None else peak * self.world.size

    def gradients(
        self, micro_batches: Sequence[Batch], step: int, stop: Callable[[], bool], clock: Callable[[], float]
    ) -> Gradients:
        """Accumulate the gradients of the global batch, divided once by its total weight, and clip them."""
        module, world = self.learner.module, self.world
        module.train()
        (weight,) = world.all_reduce_sum(sum(map(self.learner.weight, micro_batches)), in_step=True)
        total: float | torch.Tensor = 0.0
        tokens = 0
        # A power of two, which changes no digit of the gradients.
        factor = world.size if self.loss_scale is None else self.loss_scale.scale * world.size
        for number, batch in enumerate(micro_batches):
            # Dropout uses torch's global generator: seeding it by step and micro-batch, as `StepBatches` numbers them
            # over all processes, makes dropout a pure function too.
            torch.manual_seed(integer(self.seed, step, world.rank + number * world.size, "dropout"))
            with self.parallel.accumulating(last=number == len(micro_batches) - 1), self._explained(batch):
                with self.autocast():
                    loss = self.parallel(self._on_device(batch)) / max(weight, 1.0)
                # DDP and FSDP average gradients, and each process has divided by the total weight.
                (loss * factor).backward()
            total = total + (loss.item() if self.on_host else loss.detach())
            tokens += self.learner.tokens(batch)
        scale: float | torch.Tensor = 1.0
        if self.loss_scale is not None:
            self.loss_scale.unscale(module.parameters())
            scale = self.loss_scale.scale.clone()
        clipped = torch.nn.utils.clip_grad_norm_(module.parameters(), self.settings.max_grad_norm)
        norm = clipped.full_tensor() if isinstance(clipped, DTensor) else clipped
        if isinstance(total, torch.Tensor) and world.size > 1:
            torch.distributed.all_reduce(total)
        on_host = 0.0 if isinstance(total, torch.Tensor) else total
        seconds = clock() if world.is_main else 0.0
        sums = world.all_reduce_sum(on_host, tokens, stop(), seconds, in_step=True)
        if isinstance(total, torch.Tensor):
            return Gradients(total, norm, int(sums[1]), sums[2] > 0, sums[3], scale)
        return Gradients(sums[0], float(norm), int(sums[1]), sums[2] > 0, sums[3], float(scale))

    def row_losses(self, feed: BatchSource, samples: Sequence[Sample]) -> dict[Sample, float]:
        """Return the loss per prediction of each row separately, without dropout, computed in this process.

        Empty under FSDP, where no single process can run the module. The other processes wait meanwhile, so after a
        tenth of `training.ddp_timeout` the remaining rows are left out.
        """
        end = time.monotonic() + self.settings.ddp_timeout / 10
        losses: dict[Sample, float] = {}
        if self.parallel.sharded:
            return losses
        self.learner.module.eval()
        with torch.no_grad(), self.eager(), self.autocast():
            for sample in samples:
                if time.monotonic() > end:
                    break
                batch = feed.batch([sample])
                loss = self.learner.module(self._on_device(batch))
                losses[sample] = float(loss) / max(self.learner.weight(batch), 1.0)
        return losses

    def memory(self, batch_of: Callable[[int], Batch]) -> StepMemory:
        """Measure the memory of a step with batches of one and two rows; no weights are changed."""

        def forward(samples: int) -> torch.Tensor:
            with self.autocast():
                loss: torch.Tensor = self.learner.module(self._on_device(batch_of(samples)))
            return loss

        with self.eager():
            return memory.measure(self.learner.module, self.optimizer, forward)

    @contextmanager
    def _explained(self, batch: Batch) -> Iterator[None]:
        """Explain an error about memory, or about an operation that the number format lacks on this device."""
        try:
            yield
            return
        except (RuntimeError, MemoryError) as error:
            failed = error
            # The traceback holds the tensors of the pass that failed.
            traceback.clear_frames(error.__traceback__)
        if memory.is_out_of_memory(failed):
            raise self._out_of_memory(batch) from failed
        if isinstance(failed, RuntimeError):
            explained = precision.missing_kernel(failed, self.precision, self.device)
            if explained is not None:
                raise explained from failed
        raise failed

    def _out_of_memory(self, batch: Batch) -> ResourceError:
        """Return the error for a step that did not fit, with the micro-batch that would."""
        gc.collect()
        free, needs = memory.free_bytes(self.device), None
        samples = max(len(tensor) for tensor in batch.values() if tensor.ndim)
        if not self.parallel.sharded:
            # Whatever goes wrong here, the memory is the cause that is reported.
            with suppress(Exception):
                needs = self.memory(partial(memory.first_rows, batch))
        return memory.advice(needs, samples, free, precision.device_name(self.device))

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
