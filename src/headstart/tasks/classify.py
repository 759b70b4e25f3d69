"""Classification and regression over one text or a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from headstart.core import registry
from headstart.core.data import Batch, Examples, Feature, InputColumn, InputSpec, Split
from headstart.core.errors import DataError, RecipeError
from headstart.core.lazy import F, torch
from headstart.tasks import decision
from headstart.tasks.base import label_set, named_labels, softmax
from headstart.tasks.labelled import LABEL, TEXT
from headstart.tasks.text_classifier import TextClassifier, TextColumns

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_OF_LABELS = ("accuracy", "f1", "macro_f1", "matthews")
_OF_NUMBERS = ("spearman", "pearson")
_DECISION = ("class_weight", "threshold", "temperature_scaling")

_REGRESSION_HEAD_SCALE = 0.1
"""At the default initialization, the outputs of a new head spread four to five times as widely as the labels."""


class Classify(TextClassifier):
    """Text classification or regression: one label or number for a text or a pair of texts."""

    paper: ClassVar[str] = "Devlin et al. 2019, BERT, section 4.1; Wang et al. 2018, GLUE"

    class Config(TextColumns):
        """The columns of the texts and the label, and the metric."""

        kind: Literal["classify"] = "classify"
        newer: ClassVar[tuple[str, ...]] = (*_DECISION, "language")
        label: str = "label"
        regression: bool = Field(False, description="predict the label as a number")
        metric: str | None = Field(
            None, description="the metric that selects models; default: accuracy, or spearman for regression"
        )

        class_weight: decision.ClassWeight = decision.CLASS_WEIGHT
        threshold: decision.Threshold = Field(
            None,
            description="for two labels: the probability of the second one (in sorted order) from which it is "
            "predicted, instead of 0.5; `tuned` chooses it by the metric on the validation rows",
        )
        temperature_scaling: bool = decision.TEMPERATURE_SCALING

        @model_validator(mode="after")
        def _metric_fits(self) -> Classify.Config:
            kinds = {**dict.fromkeys(_OF_NUMBERS, "numbers"), **dict.fromkeys(_OF_LABELS, "labels")}
            needs = "numbers" if self.regression else "labels"
            # Metrics of plugins are not known here.
            if self.metric in registry.TABLES["metrics"] and self.metric not in kinds:
                allowed = ", ".join(_OF_NUMBERS if self.regression else _OF_LABELS)
                raise ValueError(f"metric is {self.metric!r}, which compares no {needs}. Choose one of {allowed}.")
            if self.metric is not None and kinds.get(self.metric, needs) != needs:
                allowed = ", ".join(_OF_NUMBERS if self.regression else _OF_LABELS)
                raise ValueError(
                    f"metric is {self.metric!r}, which compares {kinds[self.metric]}, but regression is "
                    f"{str(self.regression).lower()}. Choose one of {allowed}, or change regression."
                )
            return self

        @model_validator(mode="after")
        def _probabilities_exist(self) -> Classify.Config:
            used = [name for name in _DECISION if getattr(self, name)]
            if self.regression and used:
                raise ValueError(f"{used[0]} needs labels, but regression is true. Remove {used[0]}.")
            return self

    def __init__(self, config: Any) -> None:
        """Store the config; `fit_labels` sets the weights of the labels."""
        super().__init__(config)
        self._weights: list[float] | None = None

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
        if self.config.threshold is not None and len(self.labels) != 2:
            raise RecipeError(
                f"task.threshold is set, but {train.source} has {len(self.labels)} labels",
                allowed="A threshold decides between two labels",
                do="Remove task.threshold",
            )
        weights = self.config.class_weight
        if weights is not None:
            is_balanced = weights == "balanced"
            self._weights = (
                decision.balanced_weights(self.labels, train.labels)
                if is_balanced
                else decision.given_weights(self.labels, weights)
            )

    def head_settings(self) -> dict[str, Any]:
        """Return the config settings of the head."""
        if self.config.regression:
            return {"num_labels": 1, "problem_type": "regression"}
        return {"problem_type": "single_label_classification", **named_labels(self.labels)}

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the summed cross-entropy, weighted by class_weight, or the summed squared error of regression.

        Squared errors are divided by the variance of the training labels.
        """
        logits = self.logits(model, batch)
        if self.config.regression:
            return (((logits.squeeze(-1) - batch["labels"]) / self.scale) ** 2).sum()
        weights = None if self._weights is None else torch.tensor(self._weights, device=logits.device)
        return F.cross_entropy(logits, batch["labels"], weights, reduction="sum")

    def logits(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Run the model; a regression output is computed in float32, since bf16 cannot represent every year."""
        last = decision.output_layer(model, 1) if self.config.regression else None
        if last is None:
            return super().logits(model, batch)
        hook = last.register_forward_hook(_in_full_precision)
        try:
            return super().logits(model, batch)
        finally:
            hook.remove()

    def prepare_head(self, model: PreTrainedModel) -> None:
        """Initialize a regression head to predict the mean of the training labels."""
        last = decision.output_layer(model, 1) if self.config.regression else None
        if last is not None and last.bias is not None:
            with torch.no_grad():
                last.weight.mul_(_REGRESSION_HEAD_SCALE)
                last.bias.fill_(self.center)

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Convert logits to labels, in the type of the data, or to numbers."""
        if self.config.regression:
            return [float(logits[0]) for logits in outputs]
        if self.threshold is not None:
            return self._decide(self._probabilities(np.asarray(outputs)), self.threshold)
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

    def _probabilities(self, logits: decision.Array) -> decision.Array:
        """Return the probability of the second label."""
        return np.array([softmax(row)[1] for row in logits])

    def _decide(self, probabilities: decision.Array, threshold: float) -> list[Any]:
        return [self.labels[int(probability >= threshold)] for probability in probabilities]

    def _negative_log_likelihood(self, logits: decision.Array, gold: Sequence[Any]) -> float:
        indices = {label: index for index, label in enumerate(self.labels)}
        targets = torch.tensor([indices[label] for label in gold])
        return float(F.cross_entropy(torch.from_numpy(logits), targets))

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


def _in_full_precision(linear: torch.nn.Linear, inputs: tuple[torch.Tensor], _: torch.Tensor) -> torch.Tensor:
    """Recompute a linear layer's output in float32, as a forward hook."""
    bias = None if linear.bias is None else linear.bias.float()
    with torch.autocast(inputs[0].device.type, enabled=False):
        return F.linear(inputs[0].float(), linear.weight.float(), bias)
