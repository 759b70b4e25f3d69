"""Next-sentence prediction: does the second segment follow the first, or is it of another document?"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from headstart.core.data import Ints
from headstart.core.errors import DataError
from headstart.objectives.sentence_pairs import PairSection, SentencePairs


class NextSentence(SentencePairs):
    """Tell whether a segment follows another or is of another document, with masked tokens or alone (BERT).

    In half of the rows B is replaced by tokens of another document from a sentence's start. In every row B is cut to
    the shorter of the two, so that its length tells nothing. Label 1 is another document, as in transformers.
    """

    paper: ClassVar[str] = "Devlin et al. 2019, BERT"

    class Config(PairSection):
        """Whether tokens are masked too, and how many."""

        name: Literal["next_sentence"] = "next_sentence"

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Take the section of a recipe, or its settings as keywords."""
        self.config = config or NextSentence.Config(**settings)
        super().__init__(self.config)

    def arrange(self, first: Ints, second: Ints, stranger: Ints, chance: np.random.Generator) -> tuple[Ints, Ints, int]:
        """Return A, then B or a stranger, and which it is."""
        if not len(stranger):
            raise DataError(
                "there is no other document to take a second segment from",
                allowed="next_sentence needs two documents; its collator needs examples with `negative_input_ids`",
                do="Set corpus.documents so that a file is more than one, or choose sentence_order",
            )
        length, label = min(len(second), len(stranger)), int(chance.random() < 0.5)
        return first, (stranger if label else second)[:length], label
