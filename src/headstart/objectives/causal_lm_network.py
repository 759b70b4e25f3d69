"""An encoder that is trained as a causal language model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from headstart.objectives.outputs import LossAndLogits

if TYPE_CHECKING:
    from headstart.objectives.causal_lm import CausalLM


class CausalEncoder(torch.nn.Module):
    """A masked-LM network that reads left to right; a call with the collator's output returns the mean loss.

    The plain network cannot be called instead: it would attend to both sides, and compare each position with its own
    token rather than the next one.
    """

    def __init__(self, objective: CausalLM, network: PreTrainedModel) -> None:
        """Store the objective and the network."""
        super().__init__()
        self.objective, self.network = objective, network

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> LossAndLogits:
        """Return the mean loss per predicted token."""
        weights = (labels != -100).float()
        batch = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels, "weights": weights}
        return LossAndLogits(loss=self.objective.loss(self, batch) / weights[:, 1:].sum().clamp(min=1))
