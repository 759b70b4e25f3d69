"""Weights and optimizer state as tensors, named after the parameters they belong to.

Names instead of positions: a name means the same tensor in one process and in several, whole or sharded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from headstart.core.errors import ArtifactError

_MODEL, _OPTIMIZER, _BEST = "model.", "optimizer.state.", "best."


def collect(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer, best: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the tensors to save by name; tied weights, which are one tensor, appear under their first name only."""
    tensors = {_MODEL + name: value.detach() for name, value in _weights(module).items()}
    for name, parameter in module.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"{type(optimizer).__name__} stores {key} as {type(value).__name__}, not as a tensor")
            tensors[f"{_OPTIMIZER}{name}.{key}"] = value
    return tensors | {_BEST + name: value for name, value in best.items()}


def empty_like(
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    shapes: Mapping[str, tuple[torch.Size, torch.dtype]],
    where: str,
) -> dict[str, torch.Tensor]:
    """Return empty tensors to load into, each sharded like the parameter it belongs to."""
    tensors = {_MODEL + name: torch.empty_like(value) for name, value in _weights(module).items()}
    missing = sorted(set(tensors) - set(shapes))
    if missing:
        raise ArtifactError(
            f"{where} lacks {missing[0]} and {len(missing) - 1} more tensors", do="Delete it to start again"
        )
    parameters = dict(module.named_parameters())
    for name, (shape, kind) in shapes.items():
        if name.startswith(_OPTIMIZER):
            parameter = parameters.get(_owner(name))
            if parameter is not None and parameter.shape == shape:
                tensors[name] = torch.empty_like(parameter, dtype=kind)
            elif parameter is not None:
                # The step count: a fused optimizer needs it on the device of the parameter.
                device = parameter.device if any(g.get("fused") for g in optimizer.param_groups) else "cpu"
                tensors[name] = torch.empty(shape, dtype=kind, device=device)
        elif name.startswith(_BEST):
            parameter = parameters.get(name.removeprefix(_BEST))
            like = parameter if parameter is not None and parameter.shape == shape else torch.empty(shape)
            tensors[name] = torch.empty_like(like, dtype=kind, device="cpu")
    return tensors


@torch.no_grad()
def assign(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Copy loaded tensors into module and optimizer, and return the best weights so far."""
    for name, value in _weights(module).items():
        value.copy_(tensors[_MODEL + name])
    optimizer.state.clear()
    parameters = dict(module.named_parameters())
    for name, value in tensors.items():
        if name.startswith(_OPTIMIZER):
            # A parameter that was never updated has no state.
            optimizer.state[parameters[_owner(name)]][name.rpartition(".")[2]] = value
    return {name.removeprefix(_BEST): value for name, value in tensors.items() if name.startswith(_BEST)}


def _owner(name: str) -> str:
    """Return the name of the parameter that an entry of the optimizer state belongs to."""
    return name.removeprefix(_OPTIMIZER).rpartition(".")[0]


def _weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and persistent buffers, each under the first of its names."""
    return dict(_without_tied(module.state_dict(keep_vars=True)))


def _without_tied(named: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    seen: set[int] = set()
    for name, value in named.items():
        if id(value) not in seen:
            seen.add(id(value))
            yield name, value
