"""Muon for the matrices of repeated layers and AdamW for all else, as one optimizer.

torch has both; what it has not is the pair under one state, which is what a checkpoint saves and a schedule sets, and a
Muon for processors: torch's orthogonalises in bf16 whatever the machine, which took 3.8 of the 7.0 seconds of a small
encoder's step on a processor without bf16 in hardware. Here it takes a fifth of a step (docs/lab-notes.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from headstart.training import precision

_A, _B, _C = 3.4445, -4.7750, 2.0315
_ROUNDS = 5
_LONG = 1.5
"""From this ratio of its sides on, a matrix is cheaper to orthogonalise by way of the square of its short side."""


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum where a parameter group says `orthogonal`, AdamW in the other groups.

    Jordan 2024, Muon; Liu et al. 2025, Muon is Scalable, for the size of its updates, which is AdamW's.
    """

    def __init__(
        self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float, momentum: float
    ) -> None:
        """Take groups as torch's optimizers do, each with a flag `orthogonal`."""
        self.momentum = momentum
        rest = [group for group in groups if not group["orthogonal"]]
        self._adamw = torch.optim.AdamW(rest, lr=lr, betas=betas, eps=eps, fused=True) if rest else None
        matrices = [group for group in groups if group["orthogonal"]]
        super().__init__(matrices + (self._adamw.param_groups if self._adamw else []), {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None, "a closure would be evaluated twice"
        for group in self.param_groups:
            if group["orthogonal"]:
                for matrix in group["params"]:
                    self._turn(matrix, group["lr"], group["weight_decay"])
        if self._adamw is not None:
            # Loading a state replaces these; AdamW must see what is there now.
            self._adamw.state = self.state
            self._adamw.param_groups = [group for group in self.param_groups if not group["orthogonal"]]
            self._adamw.step()

    def _turn(self, matrix: torch.Tensor, rate: float, decay: float) -> None:
        if matrix.grad is None:
            return
        state = self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix.grad)
        moving = state["momentum_buffer"].lerp_(matrix.grad, 1 - self.momentum)
        update = orthogonalised(matrix.grad.lerp(moving, self.momentum))
        matrix.mul_(1 - rate * decay)
        matrix.add_(update, alpha=-rate * 0.2 * math.sqrt(max(matrix.shape)))


def orthogonalised(matrix: torch.Tensor, number_format: torch.dtype | None = None) -> torch.Tensor:
    """Return the matrix with all singular values near one, by Newton and Schulz's iteration.

    In bf16 where the hardware multiplies it, else in fp32, unless told. fp32 is exact enough to iterate on the square
    of a long matrix's short side, X·Xᵀ, and to multiply the matrix itself once at the end.
    """
    if number_format is None:
        number_format = precision.dtype(precision.resolve("auto", matrix.device))
    turned = matrix.shape[0] > matrix.shape[1]
    wide = (matrix.mT if turned else matrix).to(number_format)
    wide = wide / wide.norm().clamp(min=1e-7)
    if number_format != torch.bfloat16 and wide.shape[1] >= _LONG * wide.shape[0]:
        wide = _factor(wide @ wide.mT) @ wide
    else:
        for _ in range(_ROUNDS):
            wide = torch.addmm(wide, _polynomial(wide @ wide.mT), wide, beta=_A)
    return wide.mT if turned else wide


def _polynomial(square: torch.Tensor) -> torch.Tensor:
    return torch.addmm(square, square, square, beta=_B, alpha=_C)


def _factor(square: torch.Tensor) -> torch.Tensor:
    """Return the product of all rounds' factors, from the square X·Xᵀ of what they multiply."""
    product = factor = _round(square)
    for _ in range(_ROUNDS - 1):
        square = factor @ square @ factor
        factor = _round(square)
        product = factor @ product
    return product


def _round(square: torch.Tensor) -> torch.Tensor:
    """Return what one round multiplies by."""
    factor = _polynomial(square)
    factor.diagonal().add_(_A)
    return factor


def layer_matrices(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield the weight matrices of linear maps inside repeated layers: neither embeddings nor heads."""
    for stack in module.modules():
        if isinstance(stack, torch.nn.ModuleList):
            for part in stack.modules():
                if isinstance(part, torch.nn.Linear | Conv1D):
                    yield part.weight
