"""Translation language modeling: mask tokens of a sentence and of its translation, and predict them from both."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from headstart.core.config import Section
from headstart.core.data import Batch, Ints, Rows, RowShape, Vocabulary
from headstart.core.lazy import torch
from headstart.objectives.masked_lm import MaskedLM


class TranslationLM(MaskedLM):
    """Masked LM on pairs of a sentence and its translation, so that one language helps to predict the other (XLM).

    A document of the corpus is one pair: a sentence and, on the next line, its translation. It becomes a row
    `[CLS] A [SEP] B [SEP]`, padded. The shards know sentences and not lines: if a line has several sentences, the first
    [SEP] may be between two of them. A pair that is longer than a row gives several rows. Unlike in XLM, positions do
    not start again in B, and there is no embedding of the language.
    """

    paper: ClassVar[str] = "Conneau & Lample 2019, XLM, section 3.4"

    class Config(Section):
        """The fraction of tokens to predict, in both languages together."""

        name: Literal["translation_lm"] = "translation_lm"
        rate: float = Field(0.15, gt=0, lt=1, description="fraction of a pair's tokens to predict; XLM used 0.15")

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Accept a `Config` or its fields as keyword arguments."""
        super().__init__(rate=(config or TranslationLM.Config(**settings)).rate)

    def row_shape(self, seq_length: int) -> RowShape:
        """Return `[CLS] A [SEP] B [SEP]` of whole sentences."""
        return RowShape(seq_length, segments=True, whole_sentences=True)

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Mask random positions of both sentences; returns the inputs of the network, positions, labels and weights."""
        is_token = (rows.ids != vocabulary.pad).astype(np.int64)  # (rows, length)
        return {**super().corrupt(rows, vocabulary, seed), "attention_mask": torch.from_numpy(is_token)}

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return input_ids, attention_mask and labels of shape (rows, length)."""
        return {**super().as_inputs(batch), "attention_mask": batch["attention_mask"]}

    def _choose(
        self, row: Ints, candidates: Ints, vocabulary: Vocabulary, count: int, rng: np.random.Generator
    ) -> Ints:
        """Return random positions; the number of predictions follows the tokens of a pair, not its padding."""
        own = max(1, round(self.config.rate * int((row != vocabulary.pad).sum())))
        return super()._choose(row, candidates, vocabulary, min(count, own), rng)
