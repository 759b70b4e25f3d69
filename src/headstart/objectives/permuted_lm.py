"""Permuted language modeling: predict some tokens of a row one after the other, in a random order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from headstart.core.config import Section
from headstart.core.data import Batch, Ints, Rows, Vocabulary
from headstart.core.lazy import torch
from headstart.core.randomness import generator
from headstart.objectives.base import BaseObjective
from headstart.objectives.positions import count_correct, summed_loss

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class PermutedLM(BaseObjective):
    """Predict a sixth of the tokens in a random order, each from the context and the preceding targets (XLNet).

    Targets are spans of 1 to 5 tokens, each within a context K times as long (Yang et al. 2019, section 3.1). Every row
    has the same number of targets, as in XLNet's code, so shapes are static, and the query stream's output and the head
    run on targets only. The order covers the whole row. XLNet orders each half separately, because its memory passes
    the first half on; there is no memory here. Special tokens belong to the context.

    transformers' DataCollatorForPermutationLanguageModeling draws spans and order in the same way, but also replaces
    the targets by [MASK], so a target cannot see the tokens of the preceding ones. Here tokens are not replaced, as in
    the paper; the attention mask alone hides them.
    """

    paper: ClassVar[str] = "Yang et al. 2019, XLNet"
    families: ClassVar[tuple[str, ...]] = ("xlnet",)
    auto_class: ClassVar[str] = "AutoModelForCausalLM"

    class Config(Section):
        """The number of tokens to predict and the lengths of their spans."""

        name: Literal["permuted_lm"] = "permuted_lm"
        rate: float = Field(
            1 / 6, gt=0, lt=1, description="fraction of a row's tokens to predict, 1/K; XLNet used K = 6"
        )
        max_span: int = Field(
            5, ge=1, le=64, description="length of the longest span; shorter ones are equally likely; XLNet used 5"
        )

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Accept a `Config` or its fields as keyword arguments."""
        self.config = config or PermutedLM.Config(**settings)

    def predictions_per_row(self, seq_length: int) -> int:
        """Return the number of targets in a row, which depends only on its length."""
        return max(1, round(self.config.rate * seq_length))

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Draw the targets of each row and their order, without changing the tokens.

        Returns input_ids, token_type_ids (the index of a token's document in the row; XLNet only compares them for
        equality), order (the rank of a target, -1 for context), positions, labels and weights (0 for an unused slot).
        """
        ids = rows.ids
        count = self.predictions_per_row(ids.shape[1])
        order = np.full(ids.shape, -1, dtype=np.int64)
        positions = np.zeros((len(ids), count), dtype=np.int64)
        weights = np.zeros((len(ids), count), dtype=np.float32)
        for row, sample in enumerate(rows.samples):
            rng = generator(seed, sample.epoch, sample.index, "permuted_lm")
            ordinary = np.flatnonzero(~vocabulary.special[ids[row]])
            targets = ordinary[self._spans(len(ordinary), min(count, len(ordinary)), rng)]
            order[row, targets] = rng.permutation(len(targets))
            positions[row, : len(targets)], weights[row, : len(targets)] = targets, 1.0
        separators = ids == vocabulary.sep
        arrays = {
            "input_ids": ids.copy(),
            "token_type_ids": np.cumsum(separators, axis=1) - separators,
            "order": order,
            "positions": positions,
            "labels": np.take_along_axis(ids, positions, axis=1),
            "weights": weights,
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy in nats, summed over the targets."""
        return summed_loss(self._logits(model, batch), batch)

    def measure(self, model: PreTrainedModel, batch: Batch) -> dict[str, float]:
        """Return loss in nats and correct predictions, summed over the targets."""
        logits = self._logits(model, batch)
        return {"loss": float(summed_loss(logits, batch)), "accuracy": float(count_correct(logits, batch))}

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the arguments of XLNetLMHeadModel, including both masks."""
        labels = batch["labels"].masked_fill(batch["weights"] == 0, -100)
        return {**_model_inputs(batch), "labels": labels}

    def _logits(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        logits: torch.Tensor = model(**_model_inputs(batch)).logits
        return logits

    def _spans(self, length: int, count: int, rng: np.random.Generator) -> Ints:
        """Return `count` of `length` indices in spans, each at a random place within its context."""
        if count == 0:
            return np.zeros(0, dtype=np.int64)
        lengths = self._lengths(count, rng)
        ends = np.cumsum(lengths)
        contexts = np.concatenate([[0], ends]) * length // count
        starts = contexts[:-1] + rng.integers(0, np.diff(contexts) - lengths + 1)
        return np.repeat(starts - (ends - lengths), lengths) + np.arange(count)

    def _lengths(self, count: int, rng: np.random.Generator) -> Ints:
        """Return random span lengths that sum to `count`, by rejection sampling, so that no span is truncated."""
        while True:
            lengths = rng.integers(1, min(self.config.max_span, count) + 1, size=count)
            ends = np.cumsum(lengths)
            last = int(np.searchsorted(ends, count))
            if ends[last] == count:
                return lengths[: last + 1]


def _model_inputs(batch: Batch) -> dict[str, torch.Tensor]:
    """Return tokens, segments, `perm_mask` (1 where attention is not allowed) and `target_mapping` of a batch.

    The masks are computed here, on the model's device, because they have the size of one head's attention weights;
    the batch contains only ranks and positions.
    """
    order, positions = batch["order"], batch["positions"]
    hidden = (order.unsqueeze(2) <= order.unsqueeze(1)) & (order >= 0).unsqueeze(1)  # (rows, from, to)
    mapping = positions.unsqueeze(2) == torch.arange(order.shape[1], device=order.device)  # (rows, slots, length)
    return {
        "input_ids": batch["input_ids"],
        "token_type_ids": batch["token_type_ids"],
        "perm_mask": hidden.float(),
        "target_mapping": mapping * batch["weights"].unsqueeze(2),
    }
