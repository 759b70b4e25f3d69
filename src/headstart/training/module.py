"""What the loop trains: a model under something that makes a loss of it."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from headstart.core.data import Batch


class MakesLoss(Protocol):
    """An objective or a task, as far as training sees it."""

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """Return the summed loss of a model on a batch."""
        ...


class LossModule(torch.nn.Module):
    """A model under an objective or a task: called with a batch, it returns the summed loss.

    One module, so that wrappers for several processes see forward pass and loss as one call.
    """

    def __init__(self, model: torch.nn.Module, method: MakesLoss) -> None:
        """Hold both; the parameters are the model's."""
        super().__init__()
        self.model, self.method = model, method

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the loss summed over the batch's predictions."""
        return self.method.loss(self.model, batch)

    def measure(self, batch: Batch) -> dict[str, float]:
        """Return an objective's sums over the batch's predictions; like `forward`, it may be run by many processes."""
        found: dict[str, float] = self.method.measure(self.model, batch)  # type: ignore[attr-defined]
        return found
