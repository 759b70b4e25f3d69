"""What stands on the biLM: the output layer that both directions share, and heads for whole texts and for tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_outputs import CausalLMOutput, SequenceClassifierOutput, TokenClassifierOutput

from headstart.backbones.bilm_model import BiLMConfig, BiLMModel, BiLMPreTrainedModel


class BiLMForPreTraining(BiLMPreTrainedModel):
    """The biLM with one output layer for both directions."""

    _tied_weights_keys = {"head.weight": "bilm.tokens.weight"}  # noqa: RUF012

    def __init__(self, config: BiLMConfig) -> None:
        """Make body and head; nothing is mixed, since the top layer alone predicts."""
        super().__init__(config)
        self.bilm = BiLMModel(config, mixes=False)
        self.head = nn.Linear(config.hidden_size // 2, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """Return the output layer."""
        return self.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Put another output layer in place."""
        self.head = new_embeddings  # type: ignore[assignment]

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **inputs: Any,
    ) -> CausalLMOutput:
        """Return logits of shape (rows, positions, 2, vocabulary): of the token after, and of the one before.

        `labels` are the tokens themselves, -100 where one is not predicted; the loss is the mean over all predictions.
        """
        output = self.bilm(input_ids, attention_mask, **inputs)
        logits = self.head(output.last_hidden_state.unflatten(-1, (2, -1)))
        loss: Any = None
        if labels is not None:
            ahead, back = logits[:, :-1, 0], logits[:, 1:, 1]
            wanted = torch.cat([labels[:, 1:], labels[:, :-1]]).flatten()
            loss = F.cross_entropy(torch.cat([ahead, back]).flatten(0, 1).float(), wanted)
        return CausalLMOutput(loss=loss, logits=logits, hidden_states=output.hidden_states)


class BiLMForSequenceClassification(BiLMPreTrainedModel):
    """The mixture of layers, averaged over a text's tokens, under a linear layer."""

    def __init__(self, config: BiLMConfig) -> None:
        """Make body and head."""
        super().__init__(config)
        self.num_labels = int(config.num_labels or 0)
        self.bilm = BiLMModel(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **inputs: Any,
    ) -> SequenceClassifierOutput:
        """Return a logit for each label, and the loss where labels are given."""
        output = self.bilm(input_ids, attention_mask, **inputs)
        real = (torch.ones_like(input_ids) if attention_mask is None else attention_mask).unsqueeze(-1)
        mean = (output.last_hidden_state * real).sum(1) / real.sum(1)
        logits = self.classifier(self.dropout(mean))
        loss = None if labels is None else self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=output.hidden_states)


class BiLMForTokenClassification(BiLMPreTrainedModel):
    """The mixture of layers at each token under a linear layer."""

    def __init__(self, config: BiLMConfig) -> None:
        """Make body and head."""
        super().__init__(config)
        self.num_labels = int(config.num_labels or 0)
        self.bilm = BiLMModel(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **inputs: Any,
    ) -> TokenClassifierOutput:
        """Return logits for each token's labels, and the loss where labels (-100: not predicted) are given."""
        output = self.bilm(input_ids, attention_mask, **inputs)
        logits = self.classifier(self.dropout(output.last_hidden_state))
        loss: Any = None if labels is None else F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return TokenClassifierOutput(loss=loss, logits=logits, hidden_states=output.hidden_states)
