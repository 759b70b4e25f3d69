"""Data parallelism: each process holds the whole module (torch's DistributedDataParallel)."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from headstart.core.data import Batch
from headstart.training.settings import TrainingSettings
from headstart.training.world import World


class Replicas:
    """The whole module in every process; called with a batch, it returns this process's summed loss."""

    sharded = False

    def __init__(self, module: torch.nn.Module, world: World, settings: TrainingSettings) -> None:
        """Wrap the module in DDP if there are several processes, which broadcasts the weights of rank 0."""
        self.module, self.world, self.settings = module, world, settings
        self.wrapped: DistributedDataParallel | None = None
        self.wrap()

    def wrap(self) -> None:
        """Wrap the module again, as DDP requires when the set of trained parameters changes."""
        if self.world.size == 1:
            return
        # Layers are compiled one by one inside the wrapper: dynamo must not split them at bucket boundaries.
        torch._dynamo.config.optimize_ddp = False
        self.wrapped = None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
            self.wrapped = DistributedDataParallel(
                self.module, broadcast_buffers=False, gradient_as_bucket_view=True,
                find_unused_parameters=may_leave_unused(self.module),
            )  # fmt: skip
        if self.settings.reduce_dtype == "bf16":
            # DDP knows torch's hook by its name and accepts it with NCCL only; gloo can do it too.
            self.wrapped.register_comm_hook(None, lambda group, bucket: bf16_compress_hook(group, bucket))  # noqa: PLW0108

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Return the summed loss of a batch."""
        loss: torch.Tensor = self.module(batch) if self.wrapped is None else self.wrapped(batch)
        return loss

    def accumulating(self, last: bool) -> AbstractContextManager[None]:
        """Return the context of one micro-batch; gradients are synchronized in the last one of a step."""
        return nullcontext() if last or self.wrapped is None else self.wrapped.no_sync()

    def evaluating(self) -> AbstractContextManager[None]:
        """Return the context in which rank 0 evaluates, with the threads of the ranks that wait for it."""
        return self.world.all_threads()

    def gather(self) -> None:
        """Do nothing: every process holds the whole module."""


def may_leave_unused(module: torch.nn.Module) -> bool:
    """Return True if a step may leave parameters without a gradient, for which DDP then searches the graph.

    A member of a mixture may have no row in this process's part of a batch. On a CPU the search is always made: without
    it, DDP changes its buckets after the first step, and with them the order of sums, which a resumed run would repeat.
    """
    on_cpu = next(module.parameters()).device.type == "cpu"
    return on_cpu or not getattr(getattr(module, "method", None), "same_passes", True)
