"""Masked language modeling: mask some tokens of a row and predict them from both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from headstart.core.config import Section
from headstart.core.data import Batch, Ints, Rows, Vocabulary
from headstart.core.lazy import torch
from headstart.core.randomness import generator
from headstart.objectives.attention import DIRECTIONS, additive_mask, attention_mask, with_attention_mask
from headstart.objectives.base import BaseObjective
from headstart.objectives.positions import count_correct, scatter_to_rows, summed_loss

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class MaskedLM(BaseObjective):
    """Predict masked tokens from both sides; 80 % become [MASK], 10 % a random token, 10 % are kept (BERT).

    Every row has the same number of predictions, so shapes are static. The output head runs only on the predicted
    positions: at 15 % this saves 85 % of the vocabulary-sized matrix product.
    """

    paper: ClassVar[str] = "Devlin et al. 2019, BERT; dynamic masks: Liu et al. 2019, RoBERTa"
    families: ClassVar[tuple[str, ...]] = ("encoder",)

    class Config(Section):
        """The fraction of tokens to predict, and their replacements in the input."""

        name: Literal["masked_lm"] = "masked_lm"
        rate: float = Field(0.15, gt=0, lt=1, description="fraction of a row's tokens to predict; BERT used 0.15")
        mask: float = Field(0.8, ge=0, le=1, description="fraction of those replaced by [MASK]; BERT used 0.8")
        random: float = Field(
            0.1, ge=0, le=1, description="fraction of those replaced by a random token; BERT used 0.1"
        )
        masks: Literal["dynamic", "static"] = Field(
            "dynamic", description="dynamic: new masks in each epoch (RoBERTa); static: always the same masks (BERT)"
        )
        whole_words: bool = Field(False, description="mask all tokens of a word together")
        attention: Literal["both", "left", "right", "prefix"] = Field(
            "both",
            description="what a token attends to: the row, one side, or its left and the first half of the row (UniLM)",
        )

        @model_validator(mode="after")
        def _check_fractions(self) -> MaskedLM.Config:
            if self.mask + self.random > 1 + 1e-9:
                raise ValueError(
                    f"mask + random is {self.mask + self.random:g}; it must be at most 1. BERT used 0.8 + 0.1."
                )
            return self

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Accept a `Config` or its fields as keyword arguments."""
        self.config = config or MaskedLM.Config(**settings)

    def predictions_per_row(self, seq_length: int) -> int:
        """Return the number of predicted positions in a row, which depends only on its length."""
        return max(1, round(self.config.rate * seq_length))

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Mask random positions; returns input_ids, positions, labels and weights (0 for an unused slot).

        If the attention is not bidirectional, `attention` (rows,) holds the index of its direction for each row.
        """
        ids, ordinary = rows.ids.copy(), vocabulary.ordinary
        shape = len(ids), self.predictions_per_row(ids.shape[1])  # (rows, slots)
        positions, random_ids = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        weights, draws = np.zeros(shape, dtype=np.float32), np.zeros(shape)
        # Each row draws from its own generator; the draws are then applied to all rows at once.
        candidates = ~vocabulary.special[ids]
        for row, sample in enumerate(rows.samples):
            epoch = sample.epoch if self.config.masks == "dynamic" else 0
            rng = generator(seed, epoch, sample.index, "masked_lm")
            selected = self._choose(ids[row], candidates[row].nonzero()[0], vocabulary, shape[1], rng)
            count = len(selected)
            positions[row, :count], weights[row, :count] = selected, 1.0
            draws[row, :count] = rng.random(count)
            random_ids[row, :count] = rng.integers(0, len(ordinary), size=count)
        used = weights.nonzero()
        targets = used[0], positions[used]
        labels = np.zeros(shape, dtype=np.int64)
        labels[used] = tokens = ids[targets]
        draw, mask = draws[used], self.config.mask
        random_or_kept = np.where(draw < mask + self.config.random, ordinary[random_ids[used]], tokens)
        ids[targets] = np.where(draw < mask, vocabulary.require("mask") if mask else -1, random_or_kept)
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
        """Return loss in nats and correct predictions, summed over the predicted positions."""
        logits = masked_logits(model, batch)
        return {"loss": float(summed_loss(logits, batch)), "accuracy": float(count_correct(logits, batch))}

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return input_ids and labels of shape (rows, length), with -100 where nothing is predicted.

        If the attention is not bidirectional, a four-dimensional attention mask is included, which every kind of
        encoder except deberta-v2 accepts.
        """
        inputs = {"input_ids": batch["input_ids"], "labels": scatter_to_rows(batch, "labels", -100)}
        if "attention" in batch:
            inputs["attention_mask"] = additive_mask(attention_mask(batch["attention"], batch["input_ids"].shape[1]))
        return inputs

    def _choose(
        self, row: Ints, candidates: Ints, vocabulary: Vocabulary, count: int, rng: np.random.Generator
    ) -> Ints:
        """Return up to `count` random positions in ascending order, drawn from the candidates."""
        if not self.config.whole_words:
            selected = rng.permutation(candidates)[:count]
            selected.sort()
            return selected
        word = np.cumsum(vocabulary.word_starts(row))[candidates]
        _, first, length = np.unique(word, return_index=True, return_counts=True)
        words: list[Ints] = []
        room = count
        for index in rng.permutation(len(first)):
            if length[index] <= room:
                words.append(candidates[first[index] : first[index] + length[index]])
                room -= int(length[index])
            if room == 0:
                break
        return np.sort(np.concatenate(words)) if words else np.zeros(0, dtype=np.int64)


def masked_logits(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """Return the logits of a masked-LM model at the predicted positions, shape (rows, slots, vocabulary)."""
    logits: torch.Tensor = masked_outputs(model, batch).logits
    return logits


def masked_outputs(model: PreTrainedModel, batch: Batch, **record: Any) -> Any:
    """Run a masked-LM model of transformers with its head on the predicted positions only.

    A hook, active during this call only, reduces the body's output to those positions before the head reads it, so
    every masked-LM class works unmodified. `record` may contain `output_hidden_states` or `output_attentions`.
    """
    positions = batch["positions"]  # (rows, slots)

    def select_positions(_: torch.nn.Module, __: Any, output: Any) -> Any:
        hidden = output[0]
        output[next(iter(output))] = hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        return output

    handle = model.base_model.register_forward_hook(select_positions)
    try:
        if "attention" not in batch:
            return model(input_ids=batch["input_ids"], attention_mask=batch.get("attention_mask"), **record)
        mask = attention_mask(batch["attention"], batch["input_ids"].shape[1])
        with with_attention_mask(model, mask) as model_mask:
            return model(input_ids=batch["input_ids"], attention_mask=model_mask, **record)
    finally:
        handle.remove()
