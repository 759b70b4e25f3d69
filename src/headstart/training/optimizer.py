"""The optimizer over parameter groups with a learning-rate factor each, with weight decay on matrices only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headstart.core.data import ParameterGroup
from headstart.training.muon import Muon, layer_matrices
from headstart.training.settings import TrainingSettings


def build(
    module: torch.nn.Module, groups: Sequence[ParameterGroup], settings: TrainingSettings
) -> torch.optim.Optimizer:
    """Return the optimizer over the named parameters. Each group keeps its `lr_scale`; vectors have no weight decay."""
    by_name = dict(module.named_parameters())
    orthogonal = {id(matrix) for matrix in layer_matrices(module)} if settings.optim == "muon" else set()
    param_groups: list[dict[str, Any]] = []
    for group in groups:
        members = [by_name[name] for name in group.names if by_name[name].requires_grad]
        for decays, uses_muon in ((True, True), (True, False), (False, False)):
            params = [p for p in members if (p.ndim >= 2) == decays and (id(p) in orthogonal) == uses_muon]
            if params:
                decay = settings.weight_decay if decays else 0.0
                scale = group.lr_scale * (settings.muon_scale if uses_muon else 1.0)
                param_groups.append(
                    {"params": params, "weight_decay": decay, "lr_scale": scale, "orthogonal": uses_muon}
                )
    betas = (settings.adam_beta1, settings.adam_beta2)
    if settings.optim == "muon":
        return Muon(param_groups, settings.learning_rate, betas, settings.adam_epsilon, settings.muon_momentum)
    return torch.optim.AdamW(
        param_groups, lr=settings.learning_rate, betas=betas, eps=settings.adam_epsilon, fused=True
    )


def step_unless(optimizer: torch.optim.Optimizer, found_inf: torch.Tensor) -> None:
    """Step the optimizer unless `found_inf` is 1.0, a scalar on the device that the host does not wait for."""
    # The attributes that torch's GradScaler sets: fused kernels read the flag on the device.
    optimizer.grad_scale, optimizer.found_inf = None, found_inf  # type: ignore[attr-defined]
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every group to `rate` times the group's `lr_scale`."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]
