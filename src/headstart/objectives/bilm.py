"""Bidirectional language modelling: predict each token from what is left of it, and from what is right of it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from transformers import PreTrainedModel

from headstart.core.config import Section
from headstart.core.data import Batch, Rows, Vocabulary
from headstart.objectives.base import BaseObjective
from headstart.objectives.chunked import chunked_loss


class BidirectionalLM(BaseObjective):
    """Predict every token twice, from those before it and from those after it, by one output layer.

    The loss of a token is the mean of the two, so that it compares with a causal model's. There is no chance in a
    batch, and rows are `[CLS] … [SEP]`: the first token is predicted from [CLS] and the last one from [SEP].
    """

    paper: ClassVar[str] = "Peters et al. 2018, ELMo"
    families: ClassVar[tuple[str, ...]] = ("bilm",)
    auto_class: ClassVar[str] = "AutoModelForPreTraining"

    class Config(Section):
        """How much of the output stands in memory."""

        name: Literal["bilm"] = "bilm"
        chunk: int = Field(512, ge=1, description="positions whose logits stand in memory at a time")

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Take the section of a recipe, or its settings as keywords."""
        self.config = config or BidirectionalLM.Config(**settings)

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Show the rows as they are; labels are the same tokens, but for special ones and those at a row's ends."""
        ids = torch.from_numpy(rows.ids.copy())
        counted = torch.from_numpy(~vocabulary.special[rows.ids])
        counted[:, [0, -1]] = False
        return {"input_ids": ids, "labels": ids.masked_fill(~counted, -100), "weights": counted.float()}

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy in nats, the mean of both directions, summed over the predicted tokens."""
        return chunked_loss(model.get_output_embeddings(), *self._predictions(model, batch), self.config.chunk)

    @torch.no_grad()
    def measure(self, model: PreTrainedModel, batch: Batch) -> dict[str, float]:
        """Return sums over the predicted tokens: loss in nats and correct guesses, the mean of both directions."""
        loss = hits = 0.0
        flat = (tensor.flatten(0, 1).split(self.config.chunk) for tensor in self._predictions(model, batch))
        for states, labels, weights in zip(*flat, strict=True):
            logits = model.get_output_embeddings()(states).float()
            loss += float((F.cross_entropy(logits, labels, reduction="none", ignore_index=-100) * weights).sum())
            hits += float(((logits.argmax(-1) == labels) * weights).sum())
        return {"loss": loss, "accuracy": hits}

    def _predictions(self, model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Run the network; returns the states that predict, all from the left first, with the label and weight of each.

        A token is predicted by the state one place to its left, and by the other direction's one to its right.
        """
        states = model.base_model(batch["input_ids"], attention_mask=batch.get("attention_mask")).last_hidden_state
        ahead, back = states.chunk(2, dim=-1)
        labels, weights = batch["labels"][:, 1:-1], batch["weights"][:, 1:-1] / 2
        return torch.cat([ahead[:, :-2], back[:, 2:]]), torch.cat([labels, labels]), torch.cat([weights, weights])
