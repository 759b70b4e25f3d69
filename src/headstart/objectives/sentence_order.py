"""Sentence-order prediction: do two consecutive segments stand in their order, or were they swapped?"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from headstart.core.data import Ints, RowShape
from headstart.objectives.sentence_pairs import PairSection, SentencePairs


class SentenceOrder(SentencePairs):
    """Tell whether two consecutive segments were swapped, with masked tokens or alone (ALBERT).

    Half of the rows are swapped; label 1 says so, as in transformers. Segments hold whole sentences where they fit,
    since a segment that starts inside a sentence would tell which was first. Masks are BERT's, not ALBERT's n-grams.
    """

    paper: ClassVar[str] = "Lan et al. 2020, ALBERT"

    class Config(PairSection):
        """Whether tokens are masked too, and how many."""

        name: Literal["sentence_order"] = "sentence_order"

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Take the section of a recipe, or its settings as keywords."""
        self.config = config or SentenceOrder.Config(**settings)
        super().__init__(self.config)

    def row_shape(self, seq_length: int) -> RowShape:
        """Ask for `[CLS] A [SEP] B [SEP]` of whole sentences."""
        return RowShape(seq_length, segments=True, whole_sentences=True)

    def arrange(self, first: Ints, second: Ints, stranger: Ints, chance: np.random.Generator) -> tuple[Ints, Ints, int]:
        """Return both segments, swapped or not."""
        return (second, first, 1) if chance.random() < 0.5 else (first, second, 0)
