"""Sharded data parallelism: each process holds a part of the module (torch's FSDP2)."""

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
    """A module whose weights, gradients and optimizer state are sharded over all processes.

    A layer's weights are gathered while it runs and released after it; weights outside the repeated layers (embeddings,
    head) are gathered while the module runs. All processes must start with the same weights.
    """

    sharded = True

    def __init__(self, module: torch.nn.Module, world: World) -> None:
        """Shard the module: one FSDP unit per repeated layer, and one for the rest."""
        require_untied(module)
        self.module, self.world = module, world
        mesh = init_device_mesh(next(module.parameters()).device.type, (world.size,))
        for layer in list(_layers(module)):
            fully_shard(layer, mesh=mesh)
        self.root: FSDPModule = fully_shard(module, mesh=mesh)
        if hasattr(module, "measure"):
            register_fsdp_forward_method(module, "measure")

    def wrap(self) -> None:
        """Do nothing: FSDP2 allows the set of trained parameters to change."""

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Return the summed loss of a batch; all processes must call this together."""
        loss: torch.Tensor = self.module(batch)
        return loss

    def accumulating(self, last: bool) -> AbstractContextManager[None]:
        """Return the context of one micro-batch; gradients are synchronized in the last one of a step."""
        self.root.set_requires_gradient_sync(last)
        return nullcontext()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Return the context in which all processes evaluate the same held-out data together."""
        try:
            yield
        finally:
            # Without a backward pass the weights outside the layers would stay gathered.
            self.root.reshard()

    def gather(self) -> None:
        """Gather the whole module in every process, for saving; it cannot be trained afterwards."""
        whole: dict[int, torch.nn.Parameter] = {}
        for part in self.module.modules():
            for name, parameter in part.named_parameters(recurse=False):
                if isinstance(parameter, DTensor):
                    if id(parameter) not in whole:
                        whole[id(parameter)] = torch.nn.Parameter(parameter.full_tensor().detach())
                    setattr(part, name, whole[id(parameter)])


def _layers(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the repeated layers, only the outermost ones: a layer of T5 is itself a list of layers."""
    for child in module.children():
        if isinstance(child, torch.nn.ModuleList):
            yield from child
        else:
            yield from _layers(child)


def require_untied(module: torch.nn.Module) -> None:
    """Raise if two layers share a weight, or a layer and the rest do: sharding would make two weights of it."""
    layer_of = {part: layer for layer in _layers(module) for part in layer.modules()}
    owner_of: dict[torch.nn.Parameter, torch.nn.Module | None] = {}
    for part in module.modules():
        layer = layer_of.get(part)
        if any(owner_of.setdefault(parameter, layer) is not layer for parameter in part.parameters(recurse=False)):
            raise RecipeError(
                "`training.parallel` is fsdp, but layers of this network share weights",
                allowed="FSDP shards each layer separately, so shared weights would be trained as two copies",
                do="Set `training.parallel` to ddp, or `backbone.tie` to false",
            )


def require_even(batch_size: int, world: World, optim: str) -> None:
    """Raise unless the batch divides evenly: every process needs the others in each of its forward passes."""
    if batch_size % world.size:
        raise RecipeError(
            f"one step reads {batch_size} samples, which {world.size} processes cannot share evenly",
            allowed="`training.parallel: fsdp` needs the same number of samples in each process",
            do="Change `training.batch_tokens`, or set `training.parallel` to ddp",
        )
    if optim == "muon":
        raise RecipeError(
            "`training.optim` is muon, but `training.parallel` is fsdp",
            allowed="Muon orthogonalizes whole matrices, and under FSDP no process holds one",
            do="Set `training.parallel` to ddp, or `training.optim` to adamw",
        )
