"""A module of which every process holds a part: torch's FSDP2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from headstart.core.data import Batch
from headstart.core.errors import RecipeError
from headstart.training.world import World


class Sharded:
    """A module whose weights, gradients and optimizer state are spread over the processes of a world.

    A layer's weights are gathered while it runs and let go of after it; those outside of repeated layers (embeddings,
    head) while the module runs. The weights that each process has made must be the same.
    """

    sharded = True

    def __init__(self, module: torch.nn.Module, world: World) -> None:
        """Spread the module: each repeated layer by itself, and the rest together."""
        require_untied(module)
        self.module, self.world = module, world
        mesh = init_device_mesh(next(module.parameters()).device.type, (world.size,))
        for layer in list(_layers(module)):
            fully_shard(layer, mesh=mesh)
        self.root: FSDPModule = fully_shard(module, mesh=mesh)
        if hasattr(module, "measure"):
            register_fsdp_forward_method(module, "measure")

    def wrap(self) -> None:
        """Nothing is to be done when other parameters are trained than before."""

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Return the summed loss of a batch; all processes must call this together."""
        loss: torch.Tensor = self.module(batch)
        return loss

    def accumulating(self, last: bool) -> AbstractContextManager[None]:
        """Return the context of one micro-batch, in which gradients are exchanged if it is the last of a step."""
        self.root.set_requires_gradient_sync(last)
        return nullcontext()

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Return the context in which all processes measure the same held-out data together."""
        try:
            yield
        finally:
            # Without a backward pass the weights outside of layers would stay gathered.
            self.root.reshard()

    def gather(self) -> None:
        """Make the module whole again in every process, to be saved as it is; it is not trained after this."""
        whole: dict[int, torch.nn.Parameter] = {}
        for part in self.module.modules():
            for name, parameter in part.named_parameters(recurse=False):
                if isinstance(parameter, DTensor):
                    if id(parameter) not in whole:
                        whole[id(parameter)] = torch.nn.Parameter(parameter.full_tensor().detach())
                    setattr(part, name, whole[id(parameter)])


def _layers(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the repeated layers, outermost ones alone: a layer of T5 is itself a list of layers."""
    for child in module.children():
        if isinstance(child, torch.nn.ModuleList):
            yield from child
        else:
            yield from _layers(child)


def require_untied(module: torch.nn.Module) -> None:
    """Raise where a weight stands in two layers, or in a layer and outside of them: sharded, it would become two."""
    layer_of = {part: layer for layer in _layers(module) for part in layer.modules()}
    homes: dict[torch.nn.Parameter, torch.nn.Module | None] = {}
    for part in module.modules():
        home = layer_of.get(part)
        if any(homes.setdefault(parameter, home) is not home for parameter in part.parameters(recurse=False)):
            raise RecipeError(
                "layers of the network share weights, and training.parallel is fsdp",
                allowed="A layer's weights are sharded by themselves; those of two layers would be trained apart",
                do="Set training.parallel to ddp, or backbone.tie to false",
            )


def require_even(batch_size: int, world: World, optim: str) -> None:
    """Raise unless all processes make the same forward passes, in which each needs the others."""
    if batch_size % world.size:
        raise RecipeError(
            f"one update reads {batch_size} samples, and {world.size} processes shard the weights",
            allowed="training.parallel: fsdp needs the same number of samples in each process",
            do="Change training.batch_tokens, or set training.parallel to ddp",
        )
    if optim == "muon":
        raise RecipeError(
            "training.optim is muon and training.parallel fsdp",
            allowed="Muon orthogonalises whole matrices, and no process holds one",
            do="Set training.parallel to ddp or training.optim to adamw",
        )
