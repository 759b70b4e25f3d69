"""The network of the objectives on sentence pairs, and its head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import AlbertForPreTraining, BertForPreTraining, PreTrainedModel

from headstart.objectives.heads import Head, HeadConfig
from headstart.objectives.outputs import LossAndLogits
from headstart.objectives.positions import gather_slots
from headstart.objectives.sentence_pairs import masked_loss, sentence_loss

if TYPE_CHECKING:
    from headstart.objectives.sentence_pairs import SentencePairs

SENTENCE_LOGITS = {
    BertForPreTraining: "seq_relationship_logits",
    AlbertForPreTraining: "sop_logits",
}
"""The transformers classes with a masked-LM head and a sentence head, and the name of the sentence head's output."""


class SentenceHead(Head):
    """A classifier of sentence pairs that reads the hidden state of [CLS]: BERT's pooler and classifier."""

    def __init__(self, config: HeadConfig) -> None:
        """Create the two layers."""
        super().__init__(config)
        self.dense = torch.nn.Linear(config.hidden_size, config.hidden_size)
        self.out = torch.nn.Linear(config.hidden_size, config.output_size)
        self.post_init()

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """Return logits of shape (rows, 2) for states of shape (rows, hidden)."""
        logits: torch.Tensor = self.out(torch.tanh(self.dense(state)))
        return logits


class PairNetwork(torch.nn.Module):
    """A classifier of sentence pairs; a call with the collator's output returns the mean loss.

    The sentence head is the network's own if transformers has one, or else a `SentenceHead`.
    """

    def __init__(self, objective: SentencePairs, network: PreTrainedModel, head: SentenceHead | None) -> None:
        """Pass segment ids to the network only if it has embeddings for them."""
        super().__init__()
        self.objective, self.network, self.head = objective, network, head
        self.uses_token_types = getattr(network.config, "type_vocab_size", 0) > 1

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor,
        sentence_labels: torch.Tensor,
        labels: torch.Tensor | None = None,
    ) -> LossAndLogits:
        """Return the mean loss and the sentence logits (rows, 2)."""
        predictions = {"weights": torch.ones_like(input_ids[:, :1]).float()} if labels is None else gather_slots(labels)
        batch = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "sentence_labels": sentence_labels,
            **predictions,
        }
        output = self.objective.predict(self, batch)
        total = masked_loss(output, batch) + sentence_loss(output, batch)
        return LossAndLogits(loss=total / batch["weights"].sum().clamp(min=1), logits=output.sentence_logits)
