"""A word in two contexts: does it have the same meaning in both sentences?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from headstart.core.data import ColumnKind, Examples, Feature, InputColumn, InputSpec, Split
from headstart.core.errors import DataError
from headstart.tasks.classify import Classify

_POSITIONS = re.compile(r"\s*(\d+)\s*-\s*(\d+)\s*")
POSITIONS = ColumnKind(
    'two positions of words, counted from 0, such as "2-0"',
    lambda value: isinstance(value, str) and _POSITIONS.fullmatch(value) is not None,
    is_text=True,
)


class WordInContext(Classify):
    """Word in context (WiC): one label for a word that occurs in two sentences.

    Both sentences are read as a pair, with a marker before and after the word in each, so that any classifier of pairs
    can solve the task and is saved as a plain model.
    """

    paper: ClassVar[str] = "Pilehvar & Camacho-Collados 2019, WiC; markers: Baldini Soares et al. 2019"
    pipeline: ClassVar[str | None] = None

    class Config(Classify.Config):
        """The columns of the sentences, the word's positions and the label."""

        kind: Literal["word_in_context"] = "word_in_context"  # type: ignore[assignment]
        text: list[str] = Field(
            ["sentence1", "sentence2"],
            min_length=2,
            max_length=2,
            description="the two columns with sentences, whose words are separated by spaces",
        )
        positions: str = Field(
            "indexes", description='the column with the position of the word in each sentence, counted from 0: "2-0"'
        )
        marker: str = Field('"', min_length=1, description="written before and after the word")

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Return the columns of the sentences, of the positions and of the label."""
        *texts, label = super().columns(split)
        return [*texts, InputColumn(self.config.positions, POSITIONS, "task.positions"), label]

    def encode(self, examples: Examples, spec: InputSpec, training: bool = False) -> list[Feature]:
        """Mark the words, and tokenize the sentences as pairs."""
        return super().encode(self._marked(examples), spec, training)

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Compare the first words of each text and of the text reversed, labeled by length."""
        rows = super().toy_examples([text.strip() or "nothing" for text in texts])
        return Examples({**rows.columns, self.config.positions: ["0-0"] * len(rows)}, rows.labels, rows.source)

    def _marked(self, examples: Examples) -> Examples:
        positions = [_POSITIONS.fullmatch(value) for value in examples.columns[self.config.positions]]
        columns: dict[str, Sequence[Any]] = {}
        for side, name in enumerate(self.config.text, start=1):
            marked = []
            for row, (text, match) in enumerate(zip(examples.columns[name], positions, strict=True)):
                words, index = text.split(), int(match[side]) if match else 0
                if index >= len(words):
                    raise DataError(
                        f"{examples.source}, row {row + 1} has the position {index} in {name!r}, which has "
                        f"{len(words)} words",
                        allowed=f"Positions in {self.config.positions!r} are counted from 0",
                        do="Correct the position",
                    )
                words[index] = f"{self.config.marker} {words[index]} {self.config.marker}"
                marked.append(" ".join(words))
            columns[name] = marked
        return Examples(columns, examples.labels, examples.source)
