"""Parameters that stay as they are until a share of the budget is spent (gradual unfreezing)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headstart.core.data import ParameterGroup
from headstart.core.errors import RecipeError


class Freezing:
    """Holds back the groups of parameters whose start has not come; which those are depends on the share alone.

    A parameter without gradient is passed over by the optimizer: no update, no decay, no count of steps.
    """

    def __init__(self, module: torch.nn.Module, groups: Sequence[ParameterGroup]) -> None:
        """Take the groups of trainable parameters; raises where nothing would move at first."""
        by_name = dict(module.named_parameters())
        self.late = [(group.starts, [by_name[name] for name in group.names]) for group in groups if group.starts > 0]
        if self.late and all(group.starts > 0 for group in groups):
            raise RecipeError(
                f"nothing is trained before {min(starts for starts, _ in self.late):.0%} of the budget is spent",
                allowed="At least one group of parameters moves from the start",
                do="Let the head, or the last layers, begin at once",
            )

    def follow(self, share: float) -> bool:
        """Free the groups whose start has come and hold the others; say whether that changed anything."""
        changed = False
        for starts, parameters in self.late:
            moves = share >= starts - 1e-9
            for parameter in parameters:
                changed |= parameter.requires_grad != moves
                parameter.requires_grad_(moves)
        return changed
