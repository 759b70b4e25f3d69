"""Weights and optimizer state as named tensors, by the names of the parameters they belong to.

Never by position: the same names stand for the same tensors in one process and in many, whole or sharded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from headstart.core.errors import ArtifactError

_MODEL, _OPTIMISER, _BEST = "model.", "optimizer.state.", "best."


def collect(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer, best: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return everything to be saved; of tied weights, which are one tensor, the first name alone."""
    tensors = {_MODEL + name: value.detach() for name, value in _weights(module).items()}
    for name, parameter in module.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"{type(optimizer).__name__} keeps {key} as {type(value).__name__}, not as a tensor")
            tensors[f"{_OPTIMISER}{name}.{key}"] = value
    return tensors | {_BEST + name: value for name, value in best.items()}


def wanted(
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    shapes: Mapping[str, tuple[torch.Size, torch.dtype]],
    where: str,
) -> dict[str, torch.Tensor]:
    """Return empty tensors to load into, each laid out over the processes like the parameter it belongs to."""
    tensors = {_MODEL + name: torch.empty_like(value) for name, value in _weights(module).items()}
    missing = sorted(set(tensors) - set(shapes))
    if missing:
        raise ArtifactError(
            f"{where} lacks {missing[0]} and {len(missing) - 1} more tensors", do="Delete it to start anew"
        )
    parameters = dict(module.named_parameters())
    for name, (shape, kind) in shapes.items():
        if name.startswith(_OPTIMISER):
            parameter = parameters.get(_owner(name))
            if parameter is not None and parameter.shape == shape:
                tensors[name] = torch.empty_like(parameter, dtype=kind)
            elif parameter is not None:
                # The count of steps: a fused update wants it where the parameter is.
                device = parameter.device if any(g.get("fused") for g in optimizer.param_groups) else "cpu"
                tensors[name] = torch.empty(shape, dtype=kind, device=device)
        elif name.startswith(_BEST):
            tensors[name] = torch.empty(shape, dtype=kind)
    return tensors


@torch.no_grad()
def put_back(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Give the module and the optimizer what was loaded, and return the best weights so far."""
    for name, value in _weights(module).items():
        value.copy_(tensors[_MODEL + name])
    optimizer.state.clear()
    parameters = dict(module.named_parameters())
    for name, value in tensors.items():
        if name.startswith(_OPTIMISER):
            # A parameter that no update has reached has no state.
            optimizer.state[parameters[_owner(name)]][name.rpartition(".")[2]] = value
    return {name.removeprefix(_BEST): value for name, value in tensors.items() if name.startswith(_BEST)}


def _owner(name: str) -> str:
    """Return the parameter that an entry of the optimizer's state belongs to."""
    return name.removeprefix(_OPTIMISER).rpartition(".")[0]


def _weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and kept buffers by the first of their names."""
    return dict(_first(module.state_dict(keep_vars=True)))


def _first(named: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    seen: set[int] = set()
    for name, value in named.items():
        if id(value) not in seen:
            seen.add(id(value))
            yield name, value
