"""Bidirectional language modeling: predict each token from the tokens on its left, and from those on its right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from headstart.core.config import Section
from headstart.core.data import Batch, Rows, Vocabulary
from headstart.core.lazy import F, torch
from headstart.objectives.base import BaseObjective

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class BidirectionalLM(BaseObjective):
    """Predict every token twice, from its left and from its right context, with one output layer (ELMo).

    The loss of a token is the mean of both predictions, so it is comparable to that of a causal model. Batches involve
    no randomness. Rows are `[CLS] … [SEP]`: the first token is predicted from [CLS] and the last one from [SEP].
    """

    paper: ClassVar[str] = "Peters et al. 2018, ELMo"
    families: ClassVar[tuple[str, ...]] = ("bilm",)
    auto_class: ClassVar[str] = "AutoModelForPreTraining"

    class Config(Section):
        """The memory used by the logits."""

        name: Literal["bilm"] = "bilm"
        chunk: int = Field(512, ge=1, description="number of positions whose logits are in memory at a time")

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Accept a `Config` or its fields as keyword arguments."""
        self.config = config or BidirectionalLM.Config(**settings)

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Return the unchanged rows; labels are the same tokens except special ones and those at the ends of a row."""
        ids = torch.from_numpy(rows.ids.copy())  # (rows, length)
        predicted = torch.from_numpy(~vocabulary.special[rows.ids])
        predicted[:, [0, -1]] = False
        return {"input_ids": ids, "labels": ids.masked_fill(~predicted, -100), "weights": predicted.float()}

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy in nats, averaged over both directions and summed over the predicted tokens."""
        from headstart.objectives.chunked_loss import chunked_loss

        return chunked_loss(model.get_output_embeddings(), *self._predictions(model, batch), self.config.chunk)

    def measure(self, model: PreTrainedModel, batch: Batch) -> dict[str, float]:
        """Return loss in nats and correct predictions, averaged over both directions and summed over the tokens."""
        loss = correct = 0.0
        with torch.no_grad():
            chunks = (tensor.flatten(0, 1).split(self.config.chunk) for tensor in self._predictions(model, batch))
            for states, labels, weights in zip(*chunks, strict=True):
                logits = model.get_output_embeddings()(states).float()
                loss += float((F.cross_entropy(logits, labels, reduction="none", ignore_index=-100) * weights).sum())
                correct += float(((logits.argmax(-1) == labels) * weights).sum())
        return {"loss": loss, "accuracy": correct}

    def _predictions(self, model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the predicting states (2 · rows, length - 2, hidden / 2) with their labels and weights.

        The forward direction comes first. The forward state at position i - 1 and the backward state at position
        i + 1 predict the token at position i.
        """
        states = model.base_model(batch["input_ids"], attention_mask=batch.get("attention_mask")).last_hidden_state
        forward, backward = states.chunk(2, dim=-1)
        labels, weights = batch["labels"][:, 1:-1], batch["weights"][:, 1:-1] / 2
        return torch.cat([forward[:, :-2], backward[:, 2:]]), torch.cat([labels, labels]), torch.cat([weights, weights])
