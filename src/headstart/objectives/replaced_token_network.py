"""The two networks of replaced-token detection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from headstart.objectives.outputs import LossAndLogits
from headstart.objectives.positions import gather_slots

if TYPE_CHECKING:
    from headstart.objectives.replaced_token import ReplacedToken


class GeneratorAndDiscriminator(torch.nn.Module):
    """Two networks with shared embeddings; a call with the collator's output returns their mean loss.

    Trainer cannot save checkpoints of a module with shared weights: set `save_strategy="no"`, and save each network in
    `ReplacedToken.parts` with `save_pretrained`.
    """

    def __init__(self, objective: ReplacedToken, generator: PreTrainedModel, discriminator: PreTrainedModel) -> None:
        """Share the discriminator's token, position and segment embeddings with the generator, as in the paper.

        The layer norm after them is not shared. The generator's output layer is tied to the token embeddings.
        """
        super().__init__()
        self.objective, self.generator, self.discriminator = objective, generator, discriminator
        embeddings: Any = discriminator.base_model.embeddings
        for name, table in embeddings.named_children():
            if isinstance(table, torch.nn.Embedding):
                setattr(generator.base_model.embeddings, name, table)
        generator.tie_weights()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        labels: torch.Tensor,
        draws: torch.Tensor,
        ordinary: torch.Tensor,
        barred: torch.Tensor,
    ) -> LossAndLogits:
        """Return the mean loss and the discriminator's logits (rows, length), from the collator's output."""
        batch = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "originals": torch.where(labels != -100, labels, input_ids),
            **gather_slots(labels),
            "draws": draws,
            "ordinary": ordinary,
            "barred": barred,
        }
        output = self.objective.predict(self, batch)
        total = self.objective.total_loss(output, batch)
        return LossAndLogits(loss=total / batch["weights"].sum().clamp(min=1), logits=output.discriminator_logits)
