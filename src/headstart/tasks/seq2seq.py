"""From text to text: summaries, translations, descriptions of data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from headstart.core.data import ColumnKind, Examples, Feature, InputColumn, InputSpec, Split
from headstart.tasks.labelled import TEXT
from headstart.tasks.writing import WritingSettings, WritingTask, text_of

METRICS = ("bleu", "rouge1", "rouge2", "rougeL")
REFERENCES = ColumnKind(
    "a text, or a list of texts where several are right",
    lambda value: isinstance(value, str) or (isinstance(value, list) and bool(value) and all_texts(value)),
    is_text=True,
)


def all_texts(values: Sequence[Any]) -> bool:
    """Say whether all values are texts."""
    return all(isinstance(value, str) for value in values)


class Seq2Seq(WritingTask):
    """A text written out of another: summaries, translation, data-to-text."""

    paper: ClassVar[str] = "Lewis et al. 2020, BART, section 4.3; Raffel et al. 2020, T5"
    families: ClassVar[tuple[str, ...]] = ("encoder-decoder",)

    class Config(WritingSettings):
        """Which columns hold both texts, how the second is written and how it is judged."""

        kind: Literal["seq2seq"] = "seq2seq"
        source: str = Field("source", description="the column with the text to read")
        target: str = Field("target", description="the column with the text to write, or a list of right ones")
        prefix: str = Field("", description='put before every source; T5 has "summarize: "')
        metric: Literal["bleu", "rouge1", "rouge2", "rougeL"] = Field("bleu", description="selects models")

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Name the two texts, the same in every split."""
        target = InputColumn(self.config.target, REFERENCES, "task.target", is_gold=True)
        return [InputColumn(self.config.source, TEXT, "task.source"), target]

    def fit_labels(self, train: Examples) -> None:
        """Learn nothing: any text may be written."""

    def encode(self, examples: Examples, reading: InputSpec, training: bool = False) -> list[Feature]:
        """Tokenise the sources, and to train on the targets, of several the first."""
        sources = [self.config.prefix + text for text in examples.columns[self.config.source]]
        targets = [text if isinstance(text, str) else text[0] for text in examples.labels] if training else None
        return self.written(sources, targets, reading)

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], reading: InputSpec) -> list[Any]:
        """Return what was written as text."""
        return [text_of(ids, reading) for ids in outputs]

    def metrics(self) -> tuple[str, ...]:
        """Name all four metrics, the selecting one first."""
        return (self.config.metric, *(name for name in METRICS if name != self.config.metric))

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Write the first five words of each text."""
        targets = [" ".join(text.split()[:5]) for text in texts]
        return Examples({self.config.source: list(texts)}, targets, "toy rows")
