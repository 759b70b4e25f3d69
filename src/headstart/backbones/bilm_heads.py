"""Models with a head on the biLM: language modeling in both directions, sequence and token classification."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_outputs import CausalLMOutput, SequenceClassifierOutput, TokenClassifierOutput

from headstart.backbones.bilm_model import BiLMConfig, BiLMModel, BiLMPreTrainedModel


class BiLMForPreTraining(BiLMPreTrainedModel):
    """The biLM with one output layer that both directions share."""

    _tied_weights_keys = {"head.weight": "bilm.tokens.weight"}  # noqa: RUF012

    def __init__(self, config: BiLMConfig) -> None:
        """Create body and head; layers are not mixed, because the top layer predicts."""
        super().__init__(config)
        self.bilm = BiLMModel(config, mixes=False)
        self.head = nn.Linear(config.hidden_size // 2, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """Return the output layer."""
        return self.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the output layer."""
        self.head = new_embeddings  # type: ignore[assignment]

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **inputs: Any,
    ) -> CausalLMOutput:
        """Return logits of shape (rows, positions, 2, vocabulary): of the next token and of the previous one.

        `labels` are the tokens themselves, -100 where nothing is predicted; the loss is the mean over all predictions.
        """
        output = self.bilm(input_ids, attention_mask, **inputs)
        logits = self.head(output.last_hidden_state.unflatten(-1, (2, -1)))
        loss: Any = None
        if labels is not None:
            forward, backward = logits[:, :-1, 0], logits[:, 1:, 1]
            targets = torch.cat([labels[:, 1:], labels[:, :-1]]).flatten()
            loss = F.cross_entropy(torch.cat([forward, backward]).flatten(0, 1).float(), targets)
        return CausalLMOutput(loss=loss, logits=logits, hidden_states=output.hidden_states)


class BiLMClassifier(BiLMPreTrainedModel):
    """Base class of the classifiers: dropout and a linear layer on the mixture of layers."""

    def __init__(self, config: BiLMConfig) -> None:
        """Create body and head."""
        super().__init__(config)
        self.num_labels = int(config.num_labels or 0)
        self.bilm = BiLMModel(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(self.pooled_states(config) * config.hidden_size, self.num_labels)
        self.post_init()

    def pooled_states(self, config: BiLMConfig) -> int:
        """Return how many states of the hidden size the linear layer reads side by side."""
        return 1

    def classify(self, states: torch.Tensor) -> torch.Tensor:
        """Return the logits of hidden states, shape (…, labels)."""
        logits: torch.Tensor = self.classifier(self.dropout(states))
        return logits


class BiLMForSequenceClassification(BiLMClassifier):
    """A linear classifier on the mixture of layers, pooled over the tokens of a text."""

    def pooled_states(self, config: BiLMConfig) -> int:
        """Return 3 for the last state, the maximum and the mean, otherwise 1."""
        return 3 if config.classifier_pooling == "concat" else 1

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **inputs: Any,
    ) -> SequenceClassifierOutput:
        """Return logits of shape (rows, labels), and the loss if labels are given."""
        output = self.bilm(input_ids, attention_mask, **inputs)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        logits = self.classify(pooled(output.last_hidden_state, mask, self.config.classifier_pooling))
        loss = None if labels is None else self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=output.hidden_states)


def pooled(states: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """Return one vector for each text: the mean of its states or, for "concat", last state, maximum and mean.

    Args:
        states: hidden states, (rows, positions, hidden): the forward direction, then the backward one.
        mask: 1 for tokens, 0 for padding, (rows, positions).
        pooling: "mean" or "concat".
    """
    is_token = mask.unsqueeze(-1)
    mean = (states * is_token).sum(1) / is_token.sum(1)
    if pooling == "mean":
        return mean
    # The backward direction has read the whole text at its first token.
    rows, last = torch.arange(len(states), device=states.device), mask.shape[1] - 1 - mask.flip(1).argmax(1)
    ahead, back = states.chunk(2, dim=-1)
    ends = torch.cat([ahead[rows, last], back[rows, mask.argmax(1)]], dim=-1)
    largest = states.masked_fill(is_token == 0, torch.finfo(states.dtype).min).amax(1)
    return torch.cat([ends, largest, mean], dim=-1)


class BiLMForTokenClassification(BiLMClassifier):
    """A linear classifier on the mixture of layers at each token."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **inputs: Any,
    ) -> TokenClassifierOutput:
        """Return logits of shape (rows, positions, labels), and the loss if labels (-100: none) are given."""
        output = self.bilm(input_ids, attention_mask, **inputs)
        logits = self.classify(output.last_hidden_state)
        loss: Any = None if labels is None else F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return TokenClassifierOutput(loss=loss, logits=logits, hidden_states=output.hidden_states)
