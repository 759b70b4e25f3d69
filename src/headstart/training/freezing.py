"""Parameters that stay frozen until a fraction of the budget is used, or until validation stops improving."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headstart.core.data import ParameterGroup
from headstart.core.errors import RecipeError


class Freezing:
    """Freezes each parameter group until its start; which groups are frozen depends only on the progress of the run.

    The optimizer skips a parameter without gradient: no update, no weight decay, no step count.
    """

    def __init__(self, module: torch.nn.Module, groups: Sequence[ParameterGroup]) -> None:
        """Take the groups of trainable parameters; raise if none of them is trained from the start."""
        by_name = dict(module.named_parameters())
        self.late = [(group, [by_name[name] for name in group.names]) for group in groups if _is_late(group)]
        if self.late and len(self.late) == len(groups):
            raise RecipeError(
                f"no parameter is trained before {min(group.starts for group, _ in self.late):.0%} of the budget is "
                "used",
                allowed="At least one parameter group must be trained from the start",
                do="Give the head or the last layers a start of 0",
            )

    @property
    def stage(self) -> int:
        """The number of late groups that are trained now."""
        return sum(parameters[0].requires_grad for _, parameters in self.late)

    def update(self, fraction: float, plateaus: float = 0) -> bool:
        """Unfreeze the groups whose start has passed and freeze the others; return True if anything changed.

        Args:
            fraction: the used fraction of the budget.
            plateaus: the number of evaluations so far that did not improve on the best one.
        """
        return self._set([fraction >= group.starts - 1e-9 and plateaus >= group.plateaus for group, _ in self.late])

    def enter(self, stage: int) -> None:
        """Unfreeze the first `stage` late groups and freeze the others."""
        self._set([i < stage for i in range(len(self.late))])

    def _set(self, trained: Sequence[bool]) -> bool:
        changed = False
        for trains, (_, parameters) in zip(trained, self.late, strict=True):
            for parameter in parameters:
                changed |= parameter.requires_grad != trains
                parameter.requires_grad_(trains)
        return changed


def _is_late(group: ParameterGroup) -> bool:
    return group.starts > 0 or group.plateaus > 0
