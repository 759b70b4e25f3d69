"""Masked sequence to sequence: the encoder reads a row with one masked span, and the decoder writes that span."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from headstart.core.config import Section
from headstart.core.data import Batch, Rows, RowShape, Vocabulary
from headstart.core.lazy import torch
from headstart.core.randomness import generator
from headstart.objectives.chunked import TextObjective
from headstart.objectives.positions import scatter_to_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class MaskedSeq2Seq(TextObjective):
    """Mask one contiguous span in the encoder and let the decoder write exactly that span (MASS).

    The span is half of the row by default and starts at a random token. In the encoder, each of its tokens becomes
    [MASK] (80 %), a random token (10 %) or itself (10 %). The decoder has as many positions as the row and predicts
    those of the span. Its input is shifted right as transformers shifts labels: it reads the previous tokens of the
    span, and padding at the positions outside the span, which only the encoder shows. With `span: 1` the decoder is a
    plain language model; with a span of one token the objective is close to BERT's. Special tokens are not masked, and
    of them only [SEP], which ends a document, is predicted.
    """

    paper: ClassVar[str] = "Song et al. 2019, MASS"
    families: ClassVar[tuple[str, ...]] = ("encoder-decoder",)
    auto_class: ClassVar[str] = "AutoModelForSeq2SeqLM"

    class Config(Section):
        """The length of the span, and the replacements of its tokens in the encoder."""

        name: Literal["masked_seq2seq"] = "masked_seq2seq"
        span: float = Field(0.5, gt=0, le=1, description="length of the span as a fraction of the row; MASS used 0.5")
        mask: float = Field(
            0.8,
            ge=0,
            le=1,
            description="fraction of the span's tokens replaced by [MASK] in the encoder; MASS used 0.8",
        )
        random: float = Field(
            0.1, ge=0, le=1, description="fraction of the span's tokens replaced by a random token; MASS used 0.1"
        )
        chunk: int = Field(512, ge=1, description="number of positions whose logits are in memory at a time")

        @model_validator(mode="after")
        def _check_fractions(self) -> Self:
            if self.mask + self.random > 1 + 1e-9:
                raise ValueError(
                    f"mask + random is {self.mask + self.random:g}; it must be at most 1. MASS used 0.8 + 0.1."
                )
            return self

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Accept a `Config` or its fields as keyword arguments."""
        self.config = config or MaskedSeq2Seq.Config(**settings)

    def row_shape(self, seq_length: int) -> RowShape:
        """Return text that ends with [SEP], with [SEP] between documents."""
        return RowShape(seq_length, add_cls=False)

    def span_length(self, length: int) -> int:
        """Return the number of tokens in the span of a row of `length` tokens."""
        return max(1, round(self.config.span * length))

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Mask a span of each row; returns input_ids, and positions, labels and weights of the span's tokens.

        Weights are 0 for special tokens that are not predicted.
        """
        ids, ordinary = rows.ids.copy(), vocabulary.ordinary
        count, length = ids.shape
        size = self.span_length(length)
        starts, draws = np.zeros((count, 1), dtype=np.int64), np.zeros((count, size))
        random_ids = np.zeros((count, size), dtype=np.int64)
        for row, sample in enumerate(rows.samples):
            rng = generator(seed, sample.epoch, sample.index, "masked_seq2seq")
            starts[row] = rng.integers(0, length - size + 1)
            draws[row], random_ids[row] = rng.random(size), ordinary[rng.integers(0, len(ordinary), size=size)]
        positions = starts + np.arange(size)  # (rows, span)
        labels = np.take_along_axis(ids, positions, axis=1)
        special, mask = vocabulary.special[labels], self.config.mask
        random_or_kept = np.where(draws < mask + self.config.random, random_ids, labels)
        shown = np.where(draws < mask, vocabulary.require("mask") if mask else -1, random_or_kept)
        np.put_along_axis(ids, positions, np.where(special, labels, shown), axis=1)
        weights = (~special | (labels == vocabulary.sep)).astype(np.float32)
        arrays = {"input_ids": ids, "positions": positions, "labels": labels, "weights": weights}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def tokens(self, batch: Batch) -> int:
        """Return the number of positions of the encoder and the decoder."""
        return 2 * batch["input_ids"].numel()

    def predictions(self, model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Run the network without its head and return the decoder's states in the span, the labels and the weights."""
        states, *_ = super().predictions(model, {**batch, "labels": scatter_to_rows(batch, "labels", -100)})
        index = batch["positions"].unsqueeze(-1).expand(-1, -1, states.shape[-1])
        return states.gather(1, index), batch["labels"], batch["weights"]

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return input_ids and labels of shape (rows, length), with -100 where nothing is predicted."""
        return {"input_ids": batch["input_ids"], "labels": scatter_to_rows(batch, "labels", -100)}
