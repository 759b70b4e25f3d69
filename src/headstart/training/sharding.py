"""Sharded data parallelism: each process holds a part of the module (torch's FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from headstart.core.data import Batch
from headstart.core.errors import RecipeError
from headstart.training.deferred import compute
from headstart.training.settings import TrainingSettings
from headstart.training.world import World, keep_alive


class Sharded:
    """A module whose weights, gradients and optimizer state are sharded over all processes, or within groups of them.

    With groups (HSDP), each group holds the whole module, and gradients are also summed over the groups. A layer's
    weights are gathered while it runs and released after it; weights outside the repeated layers (embeddings, head) are
    gathered while the module runs. All processes must start with the same weights; those of a module that is `deferred`
    are computed and sharded layer by layer.
    """

    sharded = True

    def __init__(self, module: torch.nn.Module, world: World, settings: TrainingSettings, device: torch.device) -> None:
        """Shard the module: one FSDP unit per repeated layer, and one for the rest."""
        require_untied(module, settings.parallel)
        self.module, self.world = module, world
        mesh = mesh_of(device.type, world, settings)
        policy = _policy(settings)
        for layer in list(_layers(module)):
            compute(layer, device)
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        compute(module, device)
        # The inputs of the root are those of a batch, whose weights and targets keep their format.
        self.root: FSDPModule = fully_shard(module, mesh=mesh, mp_policy=replace(policy, cast_forward_inputs=False))
        for method in ("measure", "run"):
            if hasattr(module, method):
                register_fsdp_forward_method(module, method)

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


def _policy(settings: TrainingSettings) -> MixedPrecisionPolicy:
    """Return the number formats in which weights are gathered and gradients are added up."""
    return MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if settings.gather_dtype == "bf16" else None,
        reduce_dtype=torch.bfloat16 if settings.reduce_dtype == "bf16" else torch.float32,
    )


def shard_size(world: World, settings: TrainingSettings) -> int:
    """Return the number of processes that hold one copy of the weights."""
    return world.size if settings.parallel == "fsdp" else settings.shard_size or world.local_size


def mesh_of(device_type: str, world: World, settings: TrainingSettings) -> DeviceMesh:
    """Return the processes as a mesh: one dimension `shard`, or `replicate` × `shard` if there are several groups.

    Ranks of one machine are consecutive, so that a group of its processes exchanges weights inside the machine.
    """
    size = shard_size(world, settings)
    if size == world.size:
        return init_device_mesh(device_type, (size,), mesh_dim_names=("shard",))
    mesh = init_device_mesh(device_type, (world.size // size, size), mesh_dim_names=("replicate", "shard"))
    for group in mesh.get_all_groups():
        keep_alive(group)
    return mesh


def require_untied(module: torch.nn.Module, parallel: str) -> None:
    """Raise if two layers share a weight, or a layer and the rest do: sharding would make two weights of it."""
    layer_of = {part: layer for layer in _layers(module) for part in layer.modules()}
    owner_of: dict[torch.nn.Parameter, torch.nn.Module | None] = {}
    for part in module.modules():
        layer = layer_of.get(part)
        if any(owner_of.setdefault(parameter, layer) is not layer for parameter in part.parameters(recurse=False)):
            raise RecipeError(
                f"`training.parallel` is {parallel}, but layers of this network share weights",
                allowed="FSDP shards each layer separately, so shared weights would be trained as two copies",
                do="Set `training.parallel` to ddp, or `backbone.tie` to false",
            )


def require_even(batch_size: int, world: World, settings: TrainingSettings) -> None:
    """Raise unless processes and batch divide evenly: every process needs the others in each of its forward passes."""
    size = shard_size(world, settings)
    if world.size % size:
        raise RecipeError(
            f"{world.size} processes cannot be divided into groups of {size}",
            allowed="Under `training.parallel: hsdp`, groups of `training.shard_size` processes hold the network",
            do=f"Set `training.shard_size` to a divisor of {world.size}",
        )
    if batch_size % world.size:
        raise RecipeError(
            f"one step reads {batch_size} samples, which {world.size} processes cannot share evenly",
            allowed=f"`training.parallel: {settings.parallel}` needs the same number of samples in each process",
            do="Change `training.batch_tokens`, or set `training.parallel` to ddp",
        )
