"""Classification and regression over one text or a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from headstart.core.config import Section
from headstart.core.data import Batch, Examples, Feature, InputColumn, InputSpec, Split
from headstart.core.errors import DataError
from headstart.core.lazy import F, torch
from headstart.tasks.base import BaseTask, label_set, named_labels, softmax
from headstart.tasks.encoding import encode_texts
from headstart.tasks.labelled import LABEL, TEXT

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_OF_LABELS = ("accuracy", "f1", "macro_f1", "matthews")
_OF_NUMBERS = ("spearman", "pearson")

_REGRESSION_HEAD_SCALE = 0.1
"""At the default initialization, the outputs of a new head spread four to five times as widely as the labels."""


class Classify(BaseTask):
    """Text classification or regression: one label or number for a text or a pair of texts."""

    paper: ClassVar[str] = "Devlin et al. 2019, BERT, section 4.1; Wang et al. 2018, GLUE"
    head: ClassVar[str] = "AutoModelForSequenceClassification"
    pipeline: ClassVar[str | None] = "text-classification"
    families: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "encoder-decoder", "xlnet", "bilm")

    class Config(Section):
        """The columns of the texts and the label, and the metric."""

        kind: Literal["classify"] = "classify"
        text: list[str] = Field(
            ["text"], min_length=1, max_length=2, description="the text column, or two columns for pairs"
        )
        label: str = "label"
        regression: bool = Field(False, description="predict the label as a number")
        metric: str | None = Field(
            None, description="the metric that selects models; default: accuracy, or spearman for regression"
        )

        @field_validator("text", mode="before")
        @classmethod
        def _one_or_many(cls, value: Any) -> Any:
            return [value] if isinstance(value, str) else value

        @model_validator(mode="after")
        def _metric_fits(self) -> Classify.Config:
            kinds = {**dict.fromkeys(_OF_NUMBERS, "numbers"), **dict.fromkeys(_OF_LABELS, "labels")}
            needs = "numbers" if self.regression else "labels"
            if self.metric is not None and kinds.get(self.metric, needs) != needs:
                allowed = ", ".join(_OF_NUMBERS if self.regression else _OF_LABELS)
                raise ValueError(
                    f"metric is {self.metric!r}, which compares {kinds[self.metric]}, but regression is "
                    f"{str(self.regression).lower()}. Choose one of {allowed}, or change regression."
                )
            return self

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Return the text columns and the label column."""
        texts = [InputColumn(name, TEXT, "task.text") for name in self.config.text]
        return [*texts, InputColumn(self.config.label, LABEL, "task.label", is_gold=True)]

    def fit_labels(self, train: Examples) -> None:
        """Collect the label set from the training rows; for regression, the mean and the standard deviation."""
        if self.config.regression:
            odd = next(
                (value for value in train.labels if isinstance(value, bool) or not isinstance(value, int | float)), None
            )
            if odd is not None:
                raise DataError(
                    f"{train.source} has the label {odd!r}, but task.regression needs numbers",
                    do="Set task.regression to false",
                )
            values = np.asarray(train.labels, dtype=np.float64)
            self.center, self.scale = float(values.mean()), float(values.std()) or 1.0
            return
        self.labels = label_set(train.labels)
        if len(self.labels) < 2:
            raise DataError(
                f"all {len(train)} training rows of {train.source} have the label {self.labels[0]!r}",
                allowed="Classification needs two or more labels",
                do="Raise data.train_rows or check task.label",
            )
        if len(self.labels) > 50 and len(self.labels) > len(train) / 2:
            raise DataError(
                f"{train.source} has {len(self.labels)} different labels in {len(train)} rows",
                do="If the label is a number to predict, set task.regression to true",
            )

    def head_settings(self) -> dict[str, Any]:
        """Return the config settings of the head."""
        if self.config.regression:
            return {"num_labels": 1, "problem_type": "regression"}
        return {"problem_type": "single_label_classification", **named_labels(self.labels)}

    def encode(self, examples: Examples, spec: InputSpec, training: bool = False) -> list[Feature]:
        """Tokenize texts or pairs, truncated to max_length (the longer text first), and convert labels to indices."""
        texts = [list(examples.columns[name]) for name in self.config.text]
        encoded = encode_texts(texts, spec)
        return [{**feature, "labels": target} for feature, target in zip(encoded, self._targets(examples), strict=True)]

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the summed cross-entropy, or the summed squared error divided by the training labels' variance."""
        logits = self.logits(model, batch)
        if self.config.regression:
            return (((logits.squeeze(-1) - batch["labels"]) / self.scale) ** 2).sum()
        return F.cross_entropy(logits, batch["labels"], reduction="sum")

    def logits(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Run the model; a regression output is computed in float32, since bf16 cannot represent every year."""
        last = _last_linear(model) if self.config.regression else None
        if last is None:
            return super().logits(model, batch)
        hook = last.register_forward_hook(_in_full_precision)
        try:
            return super().logits(model, batch)
        finally:
            hook.remove()

    def prepare_head(self, model: PreTrainedModel) -> None:
        """Initialize a regression head to predict the mean of the training labels."""
        last = _last_linear(model) if self.config.regression else None
        if last is not None and last.bias is not None:
            with torch.no_grad():
                last.weight.mul_(_REGRESSION_HEAD_SCALE)
                last.bias.fill_(self.center)

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Convert logits to labels, in the type of the data, or to numbers."""
        if self.config.regression:
            return [float(logits[0]) for logits in outputs]
        return [self.labels[int(logits.argmax())] for logits in outputs]

    def scores(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Return the probability of each label; a number has none."""
        if self.config.regression:
            return []
        return [dict(zip(self.labels, softmax(logits), strict=True)) for logits in outputs]

    def metrics(self) -> tuple[str, ...]:
        """Return the metrics, the selection metric first."""
        if self.config.regression:
            usual = ["spearman", "pearson"]
        else:
            usual = ["accuracy", "f1", "matthews"] if len(self.labels) == 2 else ["accuracy", "macro_f1"]
        first = self.config.metric or usual[0]
        return (first, *(name for name in usual if name != first))

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Label texts "long" or "short", or by their length; the second text of a pair is the first one reversed."""
        columns = {name: [t[:: 1 - 2 * i] for t in texts] for i, name in enumerate(self.config.text)}
        median = sorted(map(len, texts))[len(texts) // 2]
        labels: list[Any] = ["long" if len(text) >= median else "short" for text in texts]
        return Examples(columns, [len(t) / 100 for t in texts] if self.config.regression else labels, "toy rows")

    def _targets(self, examples: Examples) -> list[float] | list[int]:
        if self.config.regression:
            return [float(value) for value in examples.labels]
        indices = {label: index for index, label in enumerate(self.labels)}
        for row, label in enumerate(examples.labels):
            if label not in indices:
                known = ", ".join(repr(known) for known in self.labels[:20])
                raise DataError(
                    f"{examples.source}, row {row + 1} has the label {label!r}, which no training row has",
                    allowed=f"Labels of the training rows: {known}",
                    do="Correct the label, or add training rows with it (data.validation may have taken all of them)",
                )
        return [indices[label] for label in examples.labels]


def _last_linear(model: PreTrainedModel) -> torch.nn.Linear | None:
    """Return the last linear layer with one output: the output layer of a regression head."""
    linear = (module for module in reversed(list(model.modules())) if isinstance(module, torch.nn.Linear))
    return next((module for module in linear if module.out_features == 1), None)


def _in_full_precision(linear: torch.nn.Linear, inputs: tuple[torch.Tensor], _: torch.Tensor) -> torch.Tensor:
    """Recompute a linear layer's output in float32, as a forward hook."""
    bias = None if linear.bias is None else linear.bias.float()
    with torch.autocast(inputs[0].device.type, enabled=False):
        return F.linear(inputs[0].float(), linear.weight.float(), bias)
