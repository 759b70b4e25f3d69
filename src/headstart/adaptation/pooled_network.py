"""Headstart's network with a linear layer on the mean of a body's states, for which transformers has no class.

Importing this module registers the model type "headstart_pooled" with transformers' auto classes. Its config contains
the config of the body. Stages import it when they open such a folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from headstart.adaptation.wrapping import WrappingConfig, settings_of_head


class PooledConfig(WrappingConfig):
    """The config of the body, with the labels of the head."""

    model_type = "headstart_pooled"


class PooledForSequenceClassification(PreTrainedModel):
    """One label for a text: a linear layer on the mean of the states of the text's positions."""

    config: PooledConfig
    config_class = PooledConfig
    base_model_prefix = "body"

    def __init__(self, config: PooledConfig, body: PreTrainedModel | None = None) -> None:
        """Build the body or take the given one, without its pooler, and add the linear layer."""
        super().__init__(config)
        self.body: PreTrainedModel = body if body is not None else AutoModel.from_config(config.plain())
        if getattr(self.body, "pooler", None) is not None:
            self.body.pooler = None
        self.classifier = nn.Linear(self.body.config.hidden_size, len(config.id2label or {}))
        self._returns_vectors = False
        self.post_init()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **inputs: Any) -> Any:
        """Return the logits of each text."""
        vectors = self.vectors(input_ids, attention_mask, **inputs)
        logits = vectors if self._returns_vectors else self.classifier(vectors.to(self.classifier.weight.dtype))
        return SequenceClassifierOutput(logits=logits)

    def vectors(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **inputs: Any) -> Any:
        """Return the mean of the states of each text."""
        states = self.body(input_ids=input_ids, attention_mask=attention_mask, **inputs)[0].float()
        if attention_mask is None:
            return states.mean(1)
        weights = (attention_mask / attention_mask.sum(1, keepdim=True)).to(states)
        return (states * weights[..., None]).sum(1)

    @contextmanager
    def returning_vectors(self) -> Iterator[None]:
        """Return the vectors of the texts in place of their logits, inside the context."""
        self._returns_vectors = True
        try:
            yield
        finally:
            self._returns_vectors = False

    def set_attn_implementation(self, *arguments: Any, **settings: Any) -> None:
        """Set the attention implementation of the body."""
        self.body.set_attn_implementation(*arguments, **settings)

    def _init_weights(self, module: nn.Module) -> None:
        """Keep all weights: the body and the linear layer have initialized theirs."""


def pooled(model: PreTrainedModel) -> PooledForSequenceClassification:
    """Return the body of a plain network for sequence classification, with a new head on the mean of its states."""
    body: Any = model.base_model
    config = PooledConfig(network=body.config.to_dict(), **settings_of_head(model.config))
    return PooledForSequenceClassification(config, body)


AutoConfig.register(PooledConfig.model_type, PooledConfig)
AutoModelForSequenceClassification.register(PooledConfig, PooledForSequenceClassification)
