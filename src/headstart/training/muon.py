"""Muon for the matrices of repeated layers and AdamW for all other parameters, as one optimizer.

torch has both, but not the pair as one optimizer with one state for checkpoints and one schedule. torch's Muon also
orthogonalizes in bf16 on every machine, which took 3.8 of the 7.0 seconds of a small encoder's step on a CPU without
bf16 in hardware. Here it takes a fifth of a step (docs/lab-notes.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate
from transformers.pytorch_utils import Conv1D

from headstart.training import precision

_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5
_LONG = 1.5
"""Aspect ratio above which iterating on the square Gram matrix of the short side is cheaper."""


class Muon(torch.optim.Optimizer):
    """Orthogonalized momentum for parameter groups with `orthogonal: True`, AdamW for the others.

    Jordan 2024, Muon. Liu et al. 2025, Muon is Scalable, for the scale of the updates, which matches AdamW's.
    """

    def __init__(
        self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float, momentum: float
    ) -> None:
        """Take parameter groups as torch's optimizers do, each with a flag `orthogonal`."""
        self.momentum = momentum
        rest = [group for group in groups if not group["orthogonal"]]
        self._adamw = torch.optim.AdamW(rest, lr=lr, betas=betas, eps=eps, fused=True) if rest else None
        matrices = [group for group in groups if group["orthogonal"]]
        super().__init__(matrices + (self._adamw.param_groups if self._adamw else []), {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None, "a closure would be evaluated twice"
        found_inf = getattr(self, "found_inf", None)  # see `optimizer.step_unless`
        for group in self.param_groups:
            if group["orthogonal"]:
                for matrix in group["params"]:
                    self._update(matrix, group["lr"], group["weight_decay"], found_inf)
        if self._adamw is not None:
            # Loading a state replaces these attributes; AdamW must use the current ones.
            self._adamw.state = self.state
            self._adamw.param_groups = [group for group in self.param_groups if not group["orthogonal"]]
            self._adamw.grad_scale, self._adamw.found_inf = None, found_inf  # type: ignore[attr-defined]
            self._adamw.step()

    def _update(self, matrix: torch.Tensor, rate: float, decay: float, found_inf: torch.Tensor | None) -> None:
        if matrix.grad is None:
            return
        state = self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix.grad)
        scale = rate * 0.2 * math.sqrt(max(matrix.shape))
        if found_inf is not None:
            # A selection, because the product of a NaN and zero is a NaN.
            before, skips = state["momentum_buffer"], found_inf.bool()
            moving = before.lerp(matrix.grad, 1 - self.momentum)
            update = _orthogonalized(matrix.grad.lerp(moving, self.momentum))
            before.copy_(torch.where(skips, before, moving))
            matrix.copy_(torch.where(skips, matrix, matrix * (1 - rate * decay) - scale * update))
            return
        moving = state["momentum_buffer"].lerp_(matrix.grad, 1 - self.momentum)
        update = _orthogonalized(matrix.grad.lerp(moving, self.momentum))
        matrix.mul_(1 - rate * decay)
        matrix.add_(update, alpha=-scale)


def _orthogonalized(matrix: torch.Tensor) -> torch.Tensor:
    """Return `orthogonalized` of a matrix; a sharded one is gathered in each process, which keeps its part."""
    if not isinstance(matrix, DTensor):
        return orthogonalized(matrix)
    mesh = matrix.device_mesh
    whole = DTensor.from_local(orthogonalized(matrix.full_tensor()), mesh, [Replicate()] * mesh.ndim, run_check=False)
    return whole.redistribute(placements=matrix.placements)


def orthogonalized(matrix: torch.Tensor, number_format: torch.dtype | None = None) -> torch.Tensor:
    """Return the matrix with all singular values near 1, by the Newton-Schulz iteration.

    Computed in `number_format`; by default bf16 if the hardware supports it, else fp32. fp32 is precise enough to
    iterate on the Gram matrix X·Xᵀ of a long matrix's short side and to multiply the matrix itself once at the end.
    """
    if number_format is None:
        number_format = precision.dtype(precision.resolve("auto", matrix.device))
    transposed = matrix.shape[0] > matrix.shape[1]
    wide = (matrix.mT if transposed else matrix).to(number_format)
    wide = wide / wide.norm().clamp(min=1e-7)
    if number_format != torch.bfloat16 and wide.shape[1] >= _LONG * wide.shape[0]:
        wide = _factor(wide @ wide.mT) @ wide
    else:
        for _ in range(_ITERATIONS):
            wide = torch.addmm(wide, _polynomial(wide @ wide.mT), wide, beta=_A)
    return wide.mT if transposed else wide


def _polynomial(square: torch.Tensor) -> torch.Tensor:
    return torch.addmm(square, square, square, beta=_B, alpha=_C)


def _factor(square: torch.Tensor) -> torch.Tensor:
    """Return the product of the factors of all iterations, computed from the Gram matrix X·Xᵀ."""
    product = factor = _iteration_factor(square)
    for _ in range(_ITERATIONS - 1):
        square = factor @ square @ factor
        factor = _iteration_factor(square)
        product = factor @ product
    return product


def _iteration_factor(square: torch.Tensor) -> torch.Tensor:
    """Return the factor of one iteration."""
    factor = _polynomial(square)
    factor.diagonal().add_(_A)
    return factor


def layer_matrices(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield the weight matrices of linear layers inside repeated layers: no embeddings, no heads."""
    for stack in module.modules():
        if isinstance(stack, torch.nn.ModuleList):
            for part in stack.modules():
                if isinstance(part, torch.nn.Linear | Conv1D):
                    yield part.weight
