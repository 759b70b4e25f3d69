"""Prefix language modelling: the beginning of a row is read from both sides, the rest is predicted left to right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from transformers import PreTrainedModel

from headstart.core.config import Section
from headstart.core.contracts import ModelMaker
from headstart.core.data import Batch, Rows, RowShape, Vocabulary
from headstart.core.errors import RecipeError
from headstart.core.randomness import generator
from headstart.objectives.attention import additive
from headstart.objectives.chunked import TextObjective


class PrefixLM(TextObjective):
    """Predict the rest of a row, left to right, from a beginning that is read from both sides.

    An encoder-decoder reads the beginning by its encoder, and a fixed share of a row is beginning, so that shapes are
    static. A decoder reads both, its attention open within the beginning and causal after it; where a row is divided is
    drawn anew for each row and epoch, all places as likely. Both read `seq_length` tokens of a row in all. [SEP] ends a
    document and is predicted where it stands.
    """

    paper: ClassVar[str] = "Liu et al. 2018, prefix LM as in Raffel et al. 2020, T5; modes: Tay et al. 2023, UL2"
    families: ClassVar[tuple[str, ...]] = ("encoder-decoder", "decoder")

    class Config(Section):
        """Which family, how much is beginning, and how it is marked."""

        name: Literal["prefix_lm"] = "prefix_lm"
        family: Literal["encoder-decoder", "decoder"] = Field(
            "encoder-decoder", description="what it trains, since a batch looks different; the same as backbone.family"
        )
        prefix: float = Field(
            0.5, gt=0, lt=1, description="share of a row that an encoder reads; T5 drew it, 0.5 on average"
        )
        mode: str | None = Field(None, min_length=1, description="token in front of the beginning; UL2: [S]")
        chunk: int = Field(512, ge=1, description="positions whose logits stand in memory at a time")

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Take the section of a recipe, or its settings as keywords."""
        self.config = config or PrefixLM.Config(**settings)
        self.families = (self.config.family,)  # type: ignore[misc]  # the class fits both, a section one of them

    def special_tokens(self) -> Sequence[str]:
        """Name the mode, if there is one."""
        return [self.config.mode] if self.config.mode else []

    def row_shape(self, seq_length: int) -> RowShape:
        """Ask for text with [SEP] between documents, and for a decoder with [CLS] in front; room is left for a mode."""
        return RowShape(seq_length - bool(self.config.mode), opens=self._one_stack, closes=False)

    def assemble(self, make: ModelMaker) -> torch.nn.Module:
        """Return the network with its head; raises where some of its layers see a window of the row alone."""
        model = make("AutoModelForCausalLM" if self._one_stack else "AutoModelForSeq2SeqLM")
        if "sliding_attention" in (getattr(model.config, "layer_types", None) or ()):
            raise RecipeError(
                "some layers of the backbone see a window of the row alone",
                allowed="prefix_lm opens attention within the whole beginning of a row",
                do="Set backbone.max_length to 512 or less, or choose another backbone.kind",
            )
        return model

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Divide rows; returns input_ids, labels and weights, and for a decoder how much of a row is beginning."""
        added = [vocabulary.added[token] for token in self.special_tokens()]
        mode = np.tile(np.asarray(added, dtype=np.int64), (len(rows.ids), 1))
        counted = ~vocabulary.special[rows.ids] | (rows.ids == vocabulary.sep)
        length = rows.ids.shape[1]
        if not self._one_stack:
            cut = min(max(round(self.config.prefix * length), 1), length - 1)
            inputs, labels, weights = np.hstack([mode, rows.ids[:, :cut]]), rows.ids[:, cut:], counted[:, cut:]
            return _tensors(input_ids=inputs, labels=labels, weights=weights.astype(np.float32))
        draws = [generator(seed, sample.epoch, sample.index, "prefix_lm") for sample in rows.samples]
        cuts = np.asarray([chance.integers(1, max(length, 2)) for chance in draws])
        counted &= np.arange(length) >= cuts[:, None]
        inputs = np.hstack([rows.ids[:, :1], mode, rows.ids[:, 1:]])
        counted = np.hstack([counted[:, :1], np.zeros(mode.shape, dtype=bool), counted[:, 1:]])
        labels = np.where(counted, inputs, -100)
        prefixes = cuts + mode.shape[1]
        return _tensors(input_ids=inputs, labels=labels, weights=counted.astype(np.float32), prefixes=prefixes)

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens read, by the encoder and by the decoder."""
        return batch["input_ids"].numel() + (0 if self._one_stack else batch["labels"].numel())

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy in nats, summed over the predicted positions."""
        return super().loss(model, self._with_mask(batch))

    def measure(self, model: PreTrainedModel, batch: Batch) -> dict[str, float]:
        """Return sums over the batch's predictions: loss in nats and correct guesses."""
        return super().measure(model, self._with_mask(batch))

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the batch as the plain model takes it; for a decoder with the mask of who sees whom."""
        inputs = super().as_inputs(self._with_mask(batch))
        inputs.pop("prefixes", None)
        return inputs

    @property
    def _one_stack(self) -> bool:
        return self.config.family == "decoder"

    def _with_mask(self, batch: Batch) -> Batch:
        if not self._one_stack:
            return batch
        return {**batch, "attention_mask": prefix_mask(batch["prefixes"], batch["input_ids"].shape[1])}


def prefix_mask(prefixes: torch.Tensor, length: int) -> torch.Tensor:
    """Return what is added to attention scores, shape (rows, 1, length, length): 0 where a place sees another.

    All see the beginning, whose length is given for each row, and what stands before them. Numbers and not a mask of
    true and false, because transformers' plain attention adds what it is given.
    """
    places = torch.arange(length, device=prefixes.device)
    return additive((places <= places[:, None]) | (places < prefixes[:, None, None]))


def _tensors(**arrays: Any) -> Batch:
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
