"""Next-sentence prediction: does the second segment follow the first, or is it from another document?"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from headstart.core.data import Ints
from headstart.core.errors import DataError
from headstart.objectives.sentence_pairs import PairConfig, SentencePairs


class NextSentence(SentencePairs):
    """Predict whether a segment follows another or is from another document, with or without masked LM (BERT).

    In half of the rows, B is replaced by tokens of another document, from the start of a sentence. In every row, B is
    cut to the shorter of the two, so its length does not reveal the label. Label 1 means another document, as in
    transformers.
    """

    paper: ClassVar[str] = "Devlin et al. 2019, BERT"

    class Config(PairConfig):
        """Whether tokens are masked too, and how many."""

        name: Literal["next_sentence"] = "next_sentence"

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Accept a `Config` or its fields as keyword arguments."""
        self.config = config or NextSentence.Config(**settings)
        super().__init__(self.config)

    def arrange(self, first: Ints, second: Ints, negative: Ints, rng: np.random.Generator) -> tuple[Ints, Ints, int]:
        """Return A, then B or the negative, and the label."""
        if not len(negative):
            raise DataError(
                "there is no other document to take a second segment from",
                allowed="next_sentence needs two documents; its collator needs examples with `negative_input_ids`",
                do="Set `corpus.documents` so that a file contains several documents, or use sentence_order",
            )
        length, label = min(len(second), len(negative)), int(rng.random() < 0.5)
        return first, (negative if label else second)[:length], label
