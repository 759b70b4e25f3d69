"""The module that the loop trains: a model together with the objective or task that computes its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from headstart.core.data import Batch


class MakesLoss(Protocol):
    """The part of an objective or a task that training uses."""

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """Return the summed loss of a model on a batch."""
        ...

    def measure(self, model: Any, batch: Batch) -> dict[str, float]:
        """Return metrics summed over the batch's predictions, `loss` first."""
        ...


class LossModule(torch.nn.Module):
    """A model under an objective or a task: called with a batch, it returns the summed loss.

    Forward pass and loss are one call of one module, as DDP and FSDP require.
    """

    def __init__(self, model: torch.nn.Module, method: MakesLoss) -> None:
        """Hold model and method; the parameters are the model's."""
        super().__init__()
        self.model, self.method = model, method

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the loss summed over the batch's predictions."""
        return self.method.loss(self.model, batch)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return `function(model, *arguments)`, with the model's weights gathered under FSDP."""
        return function(self.model, *arguments)

    def measure(self, batch: Batch) -> dict[str, float]:
        """Return metrics summed over the batch's predictions; like `forward`, it runs under FSDP as well."""
        return self.method.measure(self.model, batch)
