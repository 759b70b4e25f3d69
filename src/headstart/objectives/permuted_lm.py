"""Permuted language modelling: predict some tokens of a row one after the other, in a random order."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from transformers import PreTrainedModel

from headstart.core.config import Section
from headstart.core.data import Batch, Ints, Rows, Vocabulary
from headstart.core.randomness import generator
from headstart.objectives.base import BaseObjective
from headstart.objectives.positions import hits, summed_loss


class PermutedLM(BaseObjective):
    """Predict a sixth of the tokens in a random order, each from the context and the targets before it.

    Targets are spans of 1 to 5 tokens, each somewhere in a context K times as long (Yang et al. 2019, section 3.1).
    Every row gives the same number, as in XLNet's own code, so that shapes are static and the query stream's output
    and the head run on targets alone. The order runs over the whole row: XLNet orders each half for itself, because
    its memory hands the first half on, and there is no memory here. Special tokens belong to the context.

    transformers' DataCollatorForPermutationLanguageModeling draws spans and order in the same way, but also writes
    [MASK] over the targets, so that none of them learns what the ones before it are. Here the tokens stay as they are,
    as in the paper: who may see them is up to the order.
    """

    paper: ClassVar[str] = "Yang et al. 2019, XLNet"
    families: ClassVar[tuple[str, ...]] = ("xlnet",)
    auto_class: ClassVar[str] = "AutoModelForCausalLM"

    class Config(Section):
        """How many tokens are predicted, and in how long runs."""

        name: Literal["permuted_lm"] = "permuted_lm"
        rate: float = Field(1 / 6, gt=0, lt=1, description="share of a row's tokens to predict, 1/K; XLNet used K = 6")
        max_span: int = Field(5, ge=1, le=64, description="longest run of targets; lengths up to it are as likely")

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Take the section of a recipe, or its settings as keywords."""
        self.config = config or PermutedLM.Config(**settings)

    def predictions_per_row(self, seq_length: int) -> int:
        """Return the fixed number of targets in a row."""
        return max(1, round(self.config.rate * seq_length))

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Choose targets and their order; the tokens stay as they are.

        Returns input_ids, token_type_ids (the document of a row that a token is of: XLNet compares them only),
        order (a target's rank, -1 for what all may see), positions, labels and weights (0 where no target fits).
        """
        ids = rows.ids
        count = self.predictions_per_row(ids.shape[1])
        order = np.full(ids.shape, -1, dtype=np.int64)
        positions = np.zeros((len(ids), count), dtype=np.int64)
        weights = np.zeros((len(ids), count), dtype=np.float32)
        for row, sample in enumerate(rows.samples):
            chance = generator(seed, sample.epoch, sample.index, "permuted_lm")
            free = np.flatnonzero(~vocabulary.special[ids[row]])
            chosen = free[self._spans(len(free), min(count, len(free)), chance)]
            order[row, chosen] = chance.permutation(len(chosen))
            positions[row, : len(chosen)], weights[row, : len(chosen)] = chosen, 1.0
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
        """Return sums over the batch's targets: loss in nats and correct guesses."""
        logits = self._logits(model, batch)
        return {"loss": float(summed_loss(logits, batch)), "accuracy": float(hits(logits, batch))}

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the batch as XLNetLMHeadModel takes it, with the two masks written out."""
        labels = batch["labels"].masked_fill(batch["weights"] == 0, -100)
        return {**_model_inputs(batch), "labels": labels}

    def _logits(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        logits: torch.Tensor = model(**_model_inputs(batch)).logits
        return logits

    def _spans(self, length: int, count: int, chance: np.random.Generator) -> Ints:
        """Choose `count` of `length` places in spans, each somewhere in its share of the length."""
        if count == 0:
            return np.zeros(0, dtype=np.int64)
        lengths = self._lengths(count, chance)
        ends = np.cumsum(lengths)
        contexts = np.concatenate([[0], ends]) * length // count
        starts = contexts[:-1] + chance.integers(0, np.diff(contexts) - lengths + 1)
        return np.repeat(starts - (ends - lengths), lengths) + np.arange(count)

    def _lengths(self, count: int, chance: np.random.Generator) -> Ints:
        """Draw spans' lengths until a draw adds up to the count, so that no last span is cut to fit."""
        while True:
            lengths = chance.integers(1, min(self.config.max_span, count) + 1, size=count)
            ends = np.cumsum(lengths)
            last = int(np.searchsorted(ends, count))
            if ends[last] == count:
                return lengths[: last + 1]


def _model_inputs(batch: Batch) -> dict[str, torch.Tensor]:
    """Return tokens, segments, who may not see whom (1), and the targets' places.

    The masks are made here, on the model's device, because they are as large as all attention weights of a head;
    the batch carries ranks and positions instead.
    """
    order, positions = batch["order"], batch["positions"]
    hidden = (order.unsqueeze(2) <= order.unsqueeze(1)) & (order >= 0).unsqueeze(1)
    places = positions.unsqueeze(2) == torch.arange(order.shape[1], device=order.device)
    return {
        "input_ids": batch["input_ids"],
        "token_type_ids": batch["token_type_ids"],
        "perm_mask": hidden.float(),
        "target_mapping": places * batch["weights"].unsqueeze(2),
    }
