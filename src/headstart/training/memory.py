"""The memory of a training step: what it needs, and the largest micro-batch that fits.

What a forward pass stores for the backward pass grows linearly with the number of samples. Two small micro-batches thus
tell what a large one would store, on any device and without running it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import torch
from torch.autograd.graph import saved_tensors_hooks

from headstart.core.errors import ResourceError

_MARGIN = 1.25
"""Temporary tensors of the backward pass and gaps between blocks, as a multiple of what is stored. Tested on a CPU."""
_CPU_MESSAGES = ("can't allocate memory", "not enough memory")


@dataclass(frozen=True)
class StepMemory:
    """Bytes that a step needs."""

    state: int
    """Weights, gradients and the state of the optimizer."""
    unallocated: int
    """The part of it that is allocated only in the first step."""
    fixed: float
    """Stored whatever the number of samples."""
    per_sample: float

    def of(self, samples: int) -> float:
        """Return the bytes that a step with micro-batches of some samples needs, with its state."""
        return self.state + _MARGIN * (self.fixed + self.per_sample * samples)

    def fitting(self, free: float) -> int:
        """Return the largest micro-batch that fits into the free bytes of a device that holds the weights already."""
        return max(0, int(((free - self.unallocated) / _MARGIN - self.fixed) / max(self.per_sample, 1.0)))


def measure(
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    forward: Callable[[int], torch.Tensor],
    samples: int = 2,
) -> StepMemory:
    """Count what forward passes of one and of `samples` samples store for their backward passes.

    Args:
        module: the module to train.
        optimizer: the optimizer; before its first step, two numbers per weight are assumed, as AdamW keeps.
        forward: runs the forward pass on some samples and returns the loss.
        samples: the larger number, at least 2.
    """
    parameters = list(module.parameters())
    trained = [p for p in parameters if p.requires_grad]
    size = _bytes(trained)
    states = list(optimizer.state.values()) if optimizer is not None else []
    moments = _bytes([value for state in states for value in state.values() if isinstance(value, torch.Tensor)])
    missing = _bytes([p for p in trained if p.grad is None]) + (0 if moments else 2 * size)
    one, several = (_stored(module, forward, count) for count in (1, samples))
    per_sample = max(0.0, (several - one) / (samples - 1))
    state = _bytes(parameters) + size + (moments or 2 * size)
    return StepMemory(state, missing, max(0.0, one - per_sample), per_sample)


def first_rows(batch: Mapping[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """Return the first rows of a batch, whose tensors have one entry per row."""
    return {name: tensor[:count] if tensor.ndim else tensor for name, tensor in batch.items()}


def free_bytes(device: torch.device) -> int | None:
    """Return the memory that is free on a device; None if it does not tell."""
    if device.type in ("cuda", "xpu"):
        module = getattr(torch, device.type)
        module.empty_cache()
        return int(module.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    free = psutil.virtual_memory().available
    try:
        import resource
    except ImportError:  # Windows
        return int(free)
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return int(free if limit == resource.RLIM_INFINITY else min(free, limit - psutil.Process().memory_info().vms))


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if a device, or the machine, had no memory left for a tensor."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(message in str(error) for message in _CPU_MESSAGES)
    )


def advice(memory: StepMemory | None, samples: int, free: int | None, device: str) -> ResourceError:
    """Return the error for a step that did not fit: what it needs, and the micro-batch that would fit."""
    found = f"a step with micro-batches of {samples} samples does not fit into the memory of {device}"
    checkpointing = "set `training.activation_checkpointing: full`, which stores only the input of each layer"
    if memory is None or free is None:
        return ResourceError(found, do=f"Lower `training.micro_batch_size`, or {checkpointing}")
    fits = min(memory.fitting(free), samples - 1)
    allowed = (
        f"It needs about {memory.of(samples) / 1e9:.2g} GB: {memory.state / 1e9:.2g} GB of weights, gradients and "
        f"optimizer state, and {_MARGIN * memory.per_sample / 1e6:.2g} MB per sample; {free / 1e9:.2g} GB are free "
        "without it"
    )
    if not fits:
        return ResourceError(
            found, allowed=allowed + ". Not even one sample fits",
            do=f"Choose a smaller network, shard it (`training.parallel: fsdp`), or {checkpointing}",
        )  # fmt: skip
    return ResourceError(
        found, allowed=allowed,
        do=f"Set `training.micro_batch_size` to {fits}, which fits (gradients are accumulated, so the batch of an "
        f"update stays the same), or {checkpointing}. The same command resumes from the last checkpoint",
    )  # fmt: skip


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _stored(module: torch.nn.Module, forward: Callable[[int], torch.Tensor], samples: int) -> int:
    with _counted(module) as sizes:
        loss = forward(samples)
        total = sum(sizes.values())
        del loss
    return total


@contextmanager
def _counted(module: torch.nn.Module) -> Iterator[dict[int, int]]:
    """Yield the sizes of the storages that autograd keeps, by address, without those of weights."""
    own = {p.untyped_storage().data_ptr() for p in module.parameters() if p.device.type != "meta"}
    sizes: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        yield sizes
