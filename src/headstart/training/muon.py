"""Muon for the matrices of repeated layers and AdamW for all else, as one optimiser.

torch has both; what it has not is the pair under one state, which is what a checkpoint saves and a schedule sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum where a parameter group says `orthogonal`, AdamW in the other groups.

    Jordan 2024, Muon; Liu et al. 2025, Muon is Scalable, for the size of its updates, which is AdamW's.
    """

    def __init__(
        self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float, momentum: float
    ) -> None:
        """Take groups as torch's optimisers do, each with a flag `orthogonal`."""
        chosen, rest = ([g for g in groups if g["orthogonal"] == flag] for flag in (True, False))
        self._parts: dict[bool, torch.optim.Optimizer] = {}
        if chosen:
            self._parts[True] = torch.optim.Muon(chosen, lr=lr, momentum=momentum, adjust_lr_fn="match_rms_adamw")
        if rest:
            self._parts[False] = torch.optim.AdamW(rest, lr=lr, betas=betas, eps=eps, fused=True)
        super().__init__([group for part in self._parts.values() for group in part.param_groups], {})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None, "a closure would be evaluated twice"
        for orthogonal, part in self._parts.items():
            # Loading a state replaces these; the parts must see what is there now.
            part.state = self.state
            part.param_groups = [group for group in self.param_groups if group["orthogonal"] == orthogonal]
            part.step()


def layer_matrices(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield the weight matrices of linear maps inside repeated layers: neither embeddings nor heads."""
    for stack in module.modules():
        if isinstance(stack, torch.nn.ModuleList):
            for part in stack.modules():
                if isinstance(part, torch.nn.Linear | Conv1D):
                    yield part.weight
