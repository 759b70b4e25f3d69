"""Parameters that stay frozen until a fraction of the budget is used (gradual unfreezing)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headstart.core.data import ParameterGroup
from headstart.core.errors import RecipeError


class Freezing:
    """Freezes each parameter group until its start; which groups are frozen depends only on the used fraction.

    The optimizer skips a parameter without gradient: no update, no weight decay, no step count.
    """

    def __init__(self, module: torch.nn.Module, groups: Sequence[ParameterGroup]) -> None:
        """Take the groups of trainable parameters; raise if none of them is trained from the start."""
        by_name = dict(module.named_parameters())
        self.late = [(group.starts, [by_name[name] for name in group.names]) for group in groups if group.starts > 0]
        if self.late and all(group.starts > 0 for group in groups):
            raise RecipeError(
                f"no parameter is trained before {min(starts for starts, _ in self.late):.0%} of the budget is used",
                allowed="At least one parameter group must be trained from the start",
                do="Give the head or the last layers a start of 0",
            )

    def update(self, fraction: float) -> bool:
        """Unfreeze the groups whose start has passed and freeze the others; return True if anything changed."""
        changed = False
        for starts, parameters in self.late:
            trains = fraction >= starts - 1e-9
            for parameter in parameters:
                changed |= parameter.requires_grad != trains
                parameter.requires_grad_(trains)
        return changed
