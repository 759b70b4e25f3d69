"""The network of the objectives on sentence pairs, and its head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import AlbertForPreTraining, BertForPreTraining, PreTrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN

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


def pooler_settings(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the settings of a `SentenceHead` whose pooler is that of the network's own classifiers.

    Fine-tuning can then start from the pooler that was trained. BERT and ALBERT have it in their body.
    """
    match config.model_type:
        case "roberta":
            return {"pooler": "classifier", "activation": "tanh"}
        case "electra":
            return {"pooler": "classifier", "activation": "gelu"}
        case "deberta-v2":
            return {"pooler": "pooler", "activation": config.pooler_hidden_act}
        case "modernbert" if not config.norm_bias:
            activation, bias = config.classifier_activation, config.classifier_bias
            return {"pooler": "head", "activation": activation, "bias": bias, "norm": True, "norm_eps": config.norm_eps}
    return {}


class SentenceHead(Head):
    """A classifier of sentence pairs that reads the hidden state of [CLS]: a pooler and a linear layer."""

    def __init__(self, config: HeadConfig) -> None:
        """Create the pooler and the linear layer."""
        super().__init__(config)
        self.dense = torch.nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)
        self.activation = ACT2FN[config.activation]
        self.norm = torch.nn.LayerNorm(config.hidden_size, config.norm_eps, bias=False) if config.norm else None
        self.out = torch.nn.Linear(config.hidden_size, config.output_size)
        self.post_init()

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """Return logits of shape (rows, 2) for states of shape (rows, hidden)."""
        pooled = self.activation(self.dense(state))
        logits: torch.Tensor = self.out(pooled if self.norm is None else self.norm(pooled))
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
