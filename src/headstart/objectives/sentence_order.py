"""Sentence-order prediction: are two consecutive segments in their original order, or were they swapped?"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from headstart.core.data import Ints, RowShape
from headstart.objectives.sentence_pairs import PairConfig, SentencePairs


class SentenceOrder(SentencePairs):
    """Predict whether two consecutive segments were swapped, with or without masked LM (ALBERT).

    Half of the rows are swapped; label 1 means swapped, as in transformers. Segments contain whole sentences where they
    fit, because a segment that starts inside a sentence would reveal the order. Masks are BERT's, not ALBERT's n-grams.
    """

    paper: ClassVar[str] = "Lan et al. 2020, ALBERT"

    class Config(PairConfig):
        """Whether tokens are masked too, and how many."""

        name: Literal["sentence_order"] = "sentence_order"

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Accept a `Config` or its fields as keyword arguments."""
        self.config = config or SentenceOrder.Config(**settings)
        super().__init__(self.config)

    def row_shape(self, seq_length: int) -> RowShape:
        """Return `[CLS] A [SEP] B [SEP]` of whole sentences."""
        return RowShape(seq_length, segments=True, whole_sentences=True)

    def arrange(self, first: Ints, second: Ints, negative: Ints, rng: np.random.Generator) -> tuple[Ints, Ints, int]:
        """Return both segments, swapped in half of the cases, and the label."""
        return (second, first, 1) if rng.random() < 0.5 else (first, second, 0)
