"""A module whose gradients are summed over all processes: torch's DistributedDataParallel."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel

from headstart.core.data import Batch
from headstart.training.world import World


class Replicas:
    """One module in every process of a world; called with a batch, it returns that process's summed loss."""

    sharded = False

    def __init__(self, module: torch.nn.Module, world: World) -> None:
        """Wrap the module where there are several processes; weights are the leader's from now on."""
        self.module, self.world = module, world
        self.wrapped: DistributedDataParallel | None = None
        self.wrap()

    def wrap(self) -> None:
        """Wrap the module anew, as must be done when other parameters are trained than before."""
        if self.world.size == 1:
            return
        # Layers are compiled one by one inside the wrapper: dynamo must not cut them up along its buckets.
        torch._dynamo.config.optimize_ddp = False
        self.wrapped = None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
            # A member of a mixture may have no row in this process's share of a batch, and a head of its own.
            self.wrapped = DistributedDataParallel(
                self.module, broadcast_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=True
            )

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Return the summed loss of a batch."""
        loss: torch.Tensor = self.module(batch) if self.wrapped is None else self.wrapped(batch)
        return loss

    def accumulating(self, last: bool) -> AbstractContextManager[None]:
        """Return the context of one micro-batch, in which gradients are exchanged if it is the last of a step."""
        return nullcontext() if last or self.wrapped is None else self.wrapped.no_sync()

    def measuring(self) -> AbstractContextManager[None]:
        """Return the context in which the leader measures, with the threads of those who wait for it."""
        return self.world.all_threads()

    def gather(self) -> None:
        """Nothing is to be done: the module is whole in every process."""
