"""Classification and regression over one text or a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, field_validator, model_validator
from transformers import PreTrainedModel

from headstart.core.config import Section
from headstart.core.data import Batch, Examples, Feature, InputColumn, InputSpec, Split
from headstart.core.errors import DataError
from headstart.tasks.base import BaseTask, label_set, named_labels
from headstart.tasks.encoding import encode_texts
from headstart.tasks.labelled import LABEL, TEXT

_OF_LABELS = ("accuracy", "f1", "macro_f1", "matthews")
_OF_NUMBERS = ("spearman", "pearson")

_REGRESSION_HEAD_SCALE = 0.1
"""At the usual scale a new head's outputs spread four to five times as widely as the labels do."""


class Classify(BaseTask):
    """One label (or, as regression, one number) for a text or a pair of texts."""

    paper: ClassVar[str] = "Devlin et al. 2019, BERT, section 4.1; Wang et al. 2018, GLUE"
    head: ClassVar[str] = "AutoModelForSequenceClassification"
    pipeline: ClassVar[str | None] = "text-classification"
    families: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "encoder-decoder", "xlnet", "bilm")

    class Config(Section):
        """Which columns hold the texts and the label, and how the result is judged."""

        kind: Literal["classify"] = "classify"
        text: list[str] = Field(["text"], min_length=1, max_length=2, description="one column, or two for pairs")
        label: str = "label"
        regression: bool = Field(False, description="the label is a number, to be predicted as such")
        metric: str | None = Field(None, description="selects models; accuracy or, for regression, spearman by default")

        @field_validator("text", mode="before")
        @classmethod
        def _one_or_many(cls, value: Any) -> Any:
            return [value] if isinstance(value, str) else value

        @model_validator(mode="after")
        def _metric_fits(self) -> Classify.Config:
            kinds = {**dict.fromkeys(_OF_NUMBERS, "numbers"), **dict.fromkeys(_OF_LABELS, "labels")}
            needs = "numbers" if self.regression else "labels"
            if self.metric is not None and kinds.get(self.metric, needs) != needs:
                fitting = ", ".join(_OF_NUMBERS if self.regression else _OF_LABELS)
                raise ValueError(
                    f"metric is {self.metric!r}, which compares {kinds[self.metric]}, and regression is "
                    f"{str(self.regression).lower()}. Choose one of {fitting}, or change regression."
                )
            return self

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Name the texts and the label, the same in every split."""
        texts = [InputColumn(name, TEXT, "task.text") for name in self.config.text]
        return [*texts, InputColumn(self.config.label, LABEL, "task.label", is_gold=True)]

    def fit_labels(self, train: Examples) -> None:
        """Take the label set from the training rows; regression wants numbers."""
        if self.config.regression:
            odd = next(
                (value for value in train.labels if isinstance(value, bool) or not isinstance(value, int | float)), None
            )
            if odd is not None:
                raise DataError(
                    f"{train.source} has the label {odd!r}; task.regression needs numbers",
                    do="Set task.regression to false",
                )
            values = np.asarray(train.labels, dtype=np.float64)
            self.center, self.scale = float(values.mean()), float(values.std()) or 1.0
            return
        self.labels = label_set(train.labels)
        if len(self.labels) < 2:
            raise DataError(
                f"{train.source} has the single label {self.labels[0]!r} in its {len(train)} training rows",
                allowed="Classification needs two or more",
                do="Raise data.train_rows or check task.label",
            )
        if len(self.labels) > 50 and len(self.labels) > len(train) / 2:
            raise DataError(
                f"{train.source} has {len(self.labels)} different labels in {len(train)} rows",
                do="If the label is a number to be predicted, set task.regression to true",
            )

    def head_settings(self) -> dict[str, Any]:
        """Return what the model's config must say about the head."""
        if self.config.regression:
            return {"num_labels": 1, "problem_type": "regression"}
        return {"problem_type": "single_label_classification", **named_labels(self.labels)}

    def encode(self, examples: Examples, reading: InputSpec, training: bool = False) -> list[Feature]:
        """Tokenise texts or pairs, cut to max_length from the longer side, and turn labels into numbers."""
        texts = [list(examples.columns[name]) for name in self.config.text]
        encoded = encode_texts(texts, reading)
        return [{**feature, "labels": target} for feature, target in zip(encoded, self._targets(examples), strict=True)]

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return cross-entropy, or the squared error in units of the training labels' variance, summed."""
        logits = self.logits(model, batch)
        if self.config.regression:
            return (((logits.squeeze(-1) - batch["labels"]) / self.scale) ** 2).sum()
        return F.cross_entropy(logits, batch["labels"], reduction="sum")

    def logits(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Run the model; a number comes in full precision, since bf16 tells no year from the next."""
        last = _last_linear(model) if self.config.regression else None
        if last is None:
            return super().logits(model, batch)
        exact = last.register_forward_hook(_in_full_precision)
        try:
            return super().logits(model, batch)
        finally:
            exact.remove()

    def prepare_head(self, model: PreTrainedModel) -> None:
        """Start a regression head at the mean of the training labels, so that no step is spent on finding it."""
        last = _last_linear(model) if self.config.regression else None
        if last is not None and last.bias is not None:
            with torch.no_grad():
                last.weight.mul_(_REGRESSION_HEAD_SCALE)
                last.bias.fill_(self.center)

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], reading: InputSpec) -> list[Any]:
        """Turn logits into labels of the data's own type, or numbers."""
        if self.config.regression:
            return [float(logits[0]) for logits in outputs]
        return [self.labels[int(logits.argmax())] for logits in outputs]

    def metrics(self) -> tuple[str, ...]:
        """Name the metrics, the selecting one first."""
        if self.config.regression:
            usual = ["spearman", "pearson"]
        else:
            usual = ["accuracy", "f1", "matthews"] if len(self.labels) == 2 else ["accuracy", "macro_f1"]
        first = self.config.metric or usual[0]
        return (first, *(name for name in usual if name != first))

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Tell long texts from short ones, or how long they are; the other text of a pair is the text reversed."""
        columns = {name: [t[:: 1 - 2 * place] for t in texts] for place, name in enumerate(self.config.text)}
        middle = sorted(map(len, texts))[len(texts) // 2]
        labels: list[Any] = ["long" if len(text) >= middle else "short" for text in texts]
        return Examples(columns, [len(t) / 100 for t in texts] if self.config.regression else labels, "toy rows")

    def _targets(self, examples: Examples) -> list[float] | list[int]:
        if self.config.regression:
            return [float(value) for value in examples.labels]
        numbers = {label: index for index, label in enumerate(self.labels)}
        for row, label in enumerate(examples.labels):
            if label not in numbers:
                known = ", ".join(repr(known) for known in self.labels[:20])
                raise DataError(
                    f"{examples.source}, row {row + 1} has the label {label!r}, which no training row has",
                    allowed=f"Labels seen in training: {known}",
                    do="Mend the label, or give training rows with it (data.validation may have taken the only ones)",
                )
        return [numbers[label] for label in examples.labels]


def _last_linear(model: PreTrainedModel) -> torch.nn.Linear | None:
    """Return what makes the one number of a regression head."""
    linear = (module for module in reversed(list(model.modules())) if isinstance(module, torch.nn.Linear))
    return next((module for module in linear if module.out_features == 1), None)


def _in_full_precision(linear: torch.nn.Linear, inputs: tuple[torch.Tensor], _: torch.Tensor) -> torch.Tensor:
    bias = None if linear.bias is None else linear.bias.float()
    with torch.autocast(inputs[0].device.type, enabled=False):
        return F.linear(inputs[0].float(), linear.weight.float(), bias)
