"""Masked language modelling: hide some tokens of a row and predict them from both sides."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from transformers import PreTrainedModel

from headstart.core.config import Section
from headstart.core.data import Batch, Ints, Rows, Vocabulary
from headstart.core.randomness import generator
from headstart.objectives.attention import DIRECTIONS, additive, seeing, sight
from headstart.objectives.base import BaseObjective
from headstart.objectives.positions import hits, spread, summed_loss


class MaskedLM(BaseObjective):
    """Predict hidden tokens from both sides; 80 % become [MASK], 10 % another token, 10 % stay.

    Every row gives the same number of predictions, so shapes are static, and the output head runs on the
    predicted positions alone: at 15 % that spares 85 % of the vocabulary-sized matrix product.
    """

    paper: ClassVar[str] = "Devlin et al. 2019, BERT; dynamic masks: Liu et al. 2019, RoBERTa"
    families: ClassVar[tuple[str, ...]] = ("encoder",)

    class Config(Section):
        """What share of the tokens is predicted, and what the model sees in their place."""

        name: Literal["masked_lm"] = "masked_lm"
        rate: float = Field(0.15, gt=0, lt=1, description="share of a row's tokens to predict; BERT used 0.15")
        mask: float = Field(0.8, ge=0, le=1, description="of those, the share shown as [MASK]; BERT used 0.8")
        random: float = Field(0.1, ge=0, le=1, description="of those, the share shown as a random token; BERT used 0.1")
        masks: Literal["dynamic", "static"] = Field(
            "dynamic", description="dynamic: a new mask each epoch (RoBERTa); static: the same mask each time (BERT)"
        )
        whole_words: bool = Field(False, description="choose all tokens of a word together")
        attention: Literal["both", "left", "right", "prefix"] = Field(
            "both", description="what a token sees: the row, one side, or the row's first half and what is left (UniLM)"
        )

        @model_validator(mode="after")
        def _shares_fit(self) -> MaskedLM.Config:
            if self.mask + self.random > 1 + 1e-9:
                raise ValueError(
                    f"mask + random is {self.mask + self.random:g}; it must be at most 1. BERT used 0.8 + 0.1."
                )
            return self

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Take the section of a recipe, or its settings as keywords."""
        self.config = config or MaskedLM.Config(**settings)

    def predictions_per_row(self, seq_length: int) -> int:
        """Return the fixed number of predicted positions in a row."""
        return max(1, round(self.config.rate * seq_length))

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Choose positions and hide them; returns input_ids, positions, labels and weights (0 where none fits).

        Unless tokens see the whole row, `attention` says by the number of its direction how each row is read.
        """
        ids, ordinary = rows.ids.copy(), vocabulary.ordinary
        shape = len(ids), self.predictions_per_row(ids.shape[1])
        positions, negative_ids = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        weights, draws = np.zeros(shape, dtype=np.float32), np.zeros(shape)
        # Rows draw one by one, each from its own chance; what the draws decide is worked out for all of them together.
        free = ~vocabulary.special[ids]
        for row, sample in enumerate(rows.samples):
            epoch = sample.epoch if self.config.masks == "dynamic" else 0
            chance = generator(seed, epoch, sample.index, "masked_lm")
            chosen = self._choose(ids[row], free[row].nonzero()[0], vocabulary, shape[1], chance)
            filled = len(chosen)
            positions[row, :filled], weights[row, :filled] = chosen, 1.0
            draws[row, :filled] = chance.random(filled)
            negative_ids[row, :filled] = chance.integers(0, len(ordinary), size=filled)
        counted = weights.nonzero()
        places = counted[0], positions[counted]
        labels = np.zeros(shape, dtype=np.int64)
        labels[counted] = tokens = ids[places]
        draw, masked = draws[counted], self.config.mask
        shown = np.where(draw < masked + self.config.random, ordinary[negative_ids[counted]], tokens)
        ids[places] = np.where(draw < masked, vocabulary.mask, shown)
        batch = {
            "input_ids": torch.from_numpy(ids),
            "positions": torch.from_numpy(positions),
            "labels": torch.from_numpy(labels),
            "weights": torch.from_numpy(weights),
        }
        if self.config.attention != "both":
            batch["attention"] = torch.full((len(ids),), DIRECTIONS.index(self.config.attention))
        return batch

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy in nats, summed over the predicted positions."""
        return summed_loss(masked_logits(model, batch), batch)

    def measure(self, model: PreTrainedModel, batch: Batch) -> dict[str, float]:
        """Return sums over the batch's predictions: loss in nats and correct guesses."""
        logits = masked_logits(model, batch)
        return {"loss": float(summed_loss(logits, batch)), "accuracy": float(hits(logits, batch))}

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return input_ids and labels as long as the rows, -100 wherever nothing is predicted.

        Unless tokens see the whole row, an attention mask of four dimensions comes with them, which all kinds of
        encoder but deberta-v2 take.
        """
        inputs = {"input_ids": batch["input_ids"], "labels": spread(batch, "labels", -100)}
        if "attention" in batch:
            inputs["attention_mask"] = additive(sight(batch["attention"], batch["input_ids"].shape[1]))
        return inputs

    def _choose(self, row: Ints, free: Ints, vocabulary: Vocabulary, count: int, chance: np.random.Generator) -> Ints:
        """Return the positions that are predicted, in order, out of those that are free to be."""
        if not self.config.whole_words:
            some = chance.permutation(free)[:count]
            some.sort()
            return some
        word = np.cumsum(vocabulary.word_starts(row))[free]
        _, first, length = np.unique(word, return_index=True, return_counts=True)
        chosen: list[Ints] = []
        room = count
        for index in chance.permutation(len(first)):
            if length[index] <= room:
                chosen.append(free[first[index] : first[index] + length[index]])
                room -= int(length[index])
            if room == 0:
                break
        return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, dtype=np.int64)


def masked_logits(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """Return the logits of a masked-LM model of transformers at the predicted positions only."""
    logits: torch.Tensor = masked_outputs(model, batch).logits
    return logits


def masked_outputs(model: PreTrainedModel, batch: Batch, **record: Any) -> Any:
    """Run a masked-LM model of transformers with its head on the predicted positions only; record states if told to.

    The body's output is narrowed to those positions before the head sees it, by a hook that lives for this
    one call, so every masked-LM class works as it is and stays plain.
    """
    positions = batch["positions"]

    def narrow(_: torch.nn.Module, __: Any, output: Any) -> Any:
        hidden = output[0]
        output[next(iter(output))] = hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        return output

    handle = model.base_model.register_forward_hook(narrow)
    try:
        if "attention" not in batch:
            return model(input_ids=batch["input_ids"], attention_mask=batch.get("attention_mask"), **record)
        with seeing(model, sight(batch["attention"], batch["input_ids"].shape[1])) as mask:
            return model(input_ids=batch["input_ids"], attention_mask=mask, **record)
    finally:
        handle.remove()
