"""The network of the span-boundary objective, and its head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from headstart.objectives.heads import Head, HeadConfig
from headstart.objectives.outputs import LossAndLogits
from headstart.objectives.positions import gather_slots
from headstart.objectives.span_boundary import MAX_BOUNDARY_TARGETS, boundary_loss, masked_loss

if TYPE_CHECKING:
    from headstart.objectives.span_boundary import SpanBoundary

_POSITION_SIZE = 200


class BoundaryHead(Head):
    """Two layers over the hidden states at a span's boundaries and the position in the span.

    The network's output layer turns the result into logits.
    """

    def __init__(self, config: HeadConfig) -> None:
        """Create position embeddings of width 200 and two layers with GELU and layer norm, as in SpanBERT."""
        super().__init__(config)
        self.places = torch.nn.Embedding(MAX_BOUNDARY_TARGETS, _POSITION_SIZE)
        self.first = torch.nn.Linear(2 * config.hidden_size + _POSITION_SIZE, config.hidden_size)
        self.first_norm = torch.nn.LayerNorm(config.hidden_size)
        self.second = torch.nn.Linear(config.hidden_size, config.output_size)
        self.second_norm = torch.nn.LayerNorm(config.output_size)
        self.post_init()

    def forward(self, left: torch.Tensor, right: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Return a vector of the embedding size for each predicted token, shape (rows, slots, output_size)."""
        inner = torch.cat([left, right, self.places(position.clamp(max=MAX_BOUNDARY_TARGETS - 1))], dim=-1)
        inner = self.first_norm(F.gelu(self.first(inner)))
        return self.second_norm(F.gelu(self.second(inner)))


class NetworkAndBoundaryHead(torch.nn.Module):
    """A masked-LM network with the boundary head; a call with the collator's output returns the mean loss."""

    def __init__(self, objective: SpanBoundary, network: PreTrainedModel, head: BoundaryHead) -> None:
        """Store the objective, the network and the head."""
        super().__init__()
        self.objective, self.network, self.head = objective, network, head

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        labels: torch.Tensor,
        before: torch.Tensor,
        after: torch.Tensor,
    ) -> LossAndLogits:
        """Return the mean loss per masked token and the network's logits at the masked positions."""
        slots = gather_slots(labels)
        distances = {"before": before.gather(1, slots["positions"]), "after": after.gather(1, slots["positions"])}
        batch = {"input_ids": input_ids, "attention_mask": attention_mask, **slots, **distances}
        output = self.objective.predict(self, batch)
        total = masked_loss(output, batch) + boundary_loss(output, batch)
        return LossAndLogits(loss=total / batch["weights"].sum().clamp(min=1), logits=output.masked_logits)
