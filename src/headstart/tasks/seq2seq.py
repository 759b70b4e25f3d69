"""Sequence to sequence: summarization, translation, data-to-text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from headstart.core.data import ColumnKind, Examples, Feature, InputColumn, InputSpec, Split
from headstart.tasks.labelled import TEXT
from headstart.tasks.writing import WritingSettings, WritingTask, text_of

METRICS = ("bleu", "rouge1", "rouge2", "rougeL")
REFERENCES = ColumnKind(
    "a text, or a list of reference texts",
    lambda value: isinstance(value, str) or (isinstance(value, list) and bool(value) and all_texts(value)),
    is_text=True,
)


def all_texts(values: Sequence[Any]) -> bool:
    """Return whether all values are texts."""
    return all(isinstance(value, str) for value in values)


class Seq2Seq(WritingTask):
    """Text generation from a source text: summarization, translation, data-to-text."""

    paper: ClassVar[str] = "Lewis et al. 2020, BART, section 3.3; Raffel et al. 2020, T5"
    families: ClassVar[tuple[str, ...]] = ("encoder-decoder",)

    class Config(WritingSettings):
        """The columns of source and target, the generation settings, and the metric."""

        kind: Literal["seq2seq"] = "seq2seq"
        source: str = Field("source", description="the column with the source text")
        target: str = Field("target", description="the column with the target text, or a list of reference texts")
        prefix: str = Field("", description='added before every source; T5 used "summarize: "')
        metric: Literal["bleu", "rouge1", "rouge2", "rougeL"] = Field(
            "bleu", description="the metric that selects models"
        )

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Return the columns of source and target."""
        target = InputColumn(self.config.target, REFERENCES, "task.target", is_gold=True)
        return [InputColumn(self.config.source, TEXT, "task.source"), target]

    def fit_labels(self, train: Examples) -> None:
        """Do nothing: there is no label set."""

    def encode(self, examples: Examples, spec: InputSpec, training: bool = False) -> list[Feature]:
        """Tokenize the sources and, for training, the targets (of several references, the first)."""
        sources = [self.config.prefix + text for text in examples.columns[self.config.source]]
        targets = [text if isinstance(text, str) else text[0] for text in examples.labels] if training else None
        return self.features_of(sources, targets, spec)

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Return the generated texts."""
        return [text_of(ids, spec) for ids in outputs]

    def metrics(self) -> tuple[str, ...]:
        """Return all four metrics, the selection metric first."""
        return (self.config.metric, *(name for name in METRICS if name != self.config.metric))

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Use the first five words of each text as its target."""
        targets = [" ".join(text.split()[:5]) for text in texts]
        return Examples({self.config.source: list(texts)}, targets, "toy rows")
