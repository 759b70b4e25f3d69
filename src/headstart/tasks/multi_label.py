"""Multi-label classification: any number of labels for a text or a pair of texts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from headstart.core.data import Batch, ColumnKind, Examples, Feature, InputColumn, InputSpec, Split
from headstart.core.errors import DataError
from headstart.core.lazy import F, torch
from headstart.tasks import decision
from headstart.tasks.base import label_set, named_labels
from headstart.tasks.labelled import TEXT, is_label
from headstart.tasks.text_classifier import TextClassifier, TextColumns

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_METRICS = ("multi_label_macro_f1", "multi_label_micro_f1", "subset_accuracy")


class MultiLabel(TextClassifier):
    """Multi-label classification: every label is predicted on its own, so a text has any number of them, or none."""

    paper: ClassVar[str] = "Demszky et al. 2020, GoEmotions, section 5"
    default_threshold: ClassVar[float | None] = 0.5
    threshold: float

    class Config(TextColumns):
        """The columns of the texts and the labels, the metric, and how probabilities become labels."""

        newer: ClassVar[tuple[str, ...]] = ("language",)
        kind: Literal["multi_label"] = "multi_label"
        label: str = Field("labels", description="the column with the list of labels of each row")
        separator: str = Field(
            ";", min_length=1, description="what separates labels where the column has text instead of lists, as in CSV"
        )
        metric: Literal["multi_label_macro_f1", "multi_label_micro_f1", "subset_accuracy"] = Field(
            "multi_label_macro_f1", description="the metric that selects models"
        )
        class_weight: decision.ClassWeight = decision.CLASS_WEIGHT
        threshold: decision.Threshold = Field(
            0.5,
            description="the probability from which a label is predicted; `tuned`: one for all labels, chosen by the "
            "metric on the validation rows",
        )
        temperature_scaling: bool = decision.TEMPERATURE_SCALING

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Return the text columns and the label column."""
        texts = [InputColumn(name, TEXT, "task.text") for name in self.config.text]
        kind = ColumnKind("a list of labels, or a text with a label or several", _is_labels, convert=self._labels_of)
        return [*texts, InputColumn(self.config.label, kind, "task.label", is_gold=True)]

    def fit_labels(self, train: Examples) -> None:
        """Collect the label set from the training rows, and the weights of the labels."""
        self.labels = label_set(label for labels in train.labels for label in labels)
        if not self.labels:
            raise DataError(f"no training row of {train.source} has a label", do="Check task.label")
        if len(self.labels) > 50 and len(self.labels) > len(train) / 2:
            raise DataError(
                f"{train.source} has {len(self.labels)} different labels in {len(train)} rows",
                do="Check task.label and task.separator",
            )
        self._weights = self._class_weights(train)
        self._log_odds = self._starting_log_odds(train)

    def head_settings(self) -> dict[str, Any]:
        """Return the config settings of the head."""
        return {"problem_type": "multi_label_classification", **named_labels(self.labels)}

    def prepare_head(self, model: PreTrainedModel) -> None:
        """Initialize the biases of a new head so that it predicts the frequencies of the labels.

        Most labels are rare. A head that starts at a probability of one half spends hundreds of steps on learning that.

        Paper: Lin et al. 2017, Focal Loss for Dense Object Detection, section 3.3
        """
        last = decision.output_layer(model, len(self.labels))
        if last is not None and last.bias is not None and not last.bias.any():
            with torch.no_grad():
                last.bias.copy_(torch.tensor(self._log_odds))

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """Return the binary cross-entropy, averaged over the labels of a row and summed over the rows."""
        logits, targets = self.logits(model, batch), batch["labels"]
        weights = None
        if self._weights is not None:
            absent, present = (torch.tensor(values, device=logits.device) for values in self._weights)
            weights = torch.where(targets > 0, present, absent)
        return F.binary_cross_entropy_with_logits(logits, targets, weights, reduction="sum") / len(self.labels)

    def weight(self, batch: Batch) -> float:
        """Return the number of rows."""
        return float(len(batch["labels"]))

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Return the labels whose probability reaches the threshold, for each row."""
        return self._decide(self._probabilities(np.asarray(outputs)), self.threshold)

    def scores(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Return the probability of each label; they do not add up to one."""
        return [dict(zip(self.labels, row, strict=True)) for row in self._probabilities(np.asarray(outputs)).tolist()]

    def metrics(self) -> tuple[str, ...]:
        """Return the metrics, the selection metric first."""
        return (self.config.metric, *(name for name in _METRICS if name != self.config.metric))

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Label texts "long", "with e", both or neither; the second text of a pair is the first one reversed."""
        columns = {name: [t[:: 1 - 2 * i] for t in texts] for i, name in enumerate(self.config.text)}
        median = sorted(map(len, texts))[len(texts) // 2]
        labels = [["long"] * (len(text) >= median) + ["with e"] * ("e" in text) for text in texts]
        return Examples(columns, labels, "toy rows")

    def _labels_of(self, value: Any) -> list[Any]:
        """Return the labels of a cell, sorted and without repetitions."""
        if isinstance(value, str):
            value = [part.strip() for part in value.split(self.config.separator) if part.strip()]
        return label_set(value if isinstance(value, list) else [value])

    def _class_weights(self, train: Examples) -> tuple[list[float], list[float]] | None:
        """Return the weights of an absent and of a present label, for each label; None for equal weights."""
        given = self.config.class_weight
        if given is None:
            return None
        if given != "balanced":
            weights = decision.given_weights(self.labels, given)
            return weights, weights
        pairs = [
            decision.balanced_weights([False, True], [label in labels for labels in train.labels])
            if any(label not in labels for labels in train.labels)
            else [1.0, 1.0]
            for label in self.labels
        ]
        return [absent for absent, _ in pairs], [present for _, present in pairs]

    def _starting_log_odds(self, train: Examples) -> list[float]:
        """Return the weighted log-odds of each label among the training rows; half a row is added to both counts."""
        absent, present = self._weights or ([1.0] * len(self.labels),) * 2
        counts = Counter(label for labels in train.labels for label in labels)
        return [
            math.log(present[i] * (counts[label] + 0.5)) - math.log(absent[i] * (len(train) - counts[label] + 0.5))
            for i, label in enumerate(self.labels)
        ]

    def _probabilities(self, logits: decision.Array) -> decision.Array:
        return decision.sigmoid(logits)

    def _threshold_range(self, probabilities: decision.Array) -> decision.Array:
        """Return the probabilities of each row's three likeliest labels: below them, most labels are wrong."""
        return np.sort(probabilities, axis=1)[:, -min(3, len(self.labels)) :]

    def _decide(self, probabilities: decision.Array, threshold: float) -> list[Any]:
        return [
            [label for label, probability in zip(self.labels, row, strict=True) if probability >= threshold]
            for row in probabilities.tolist()
        ]

    def _negative_log_likelihood(self, logits: decision.Array, gold: Sequence[Any]) -> float:
        targets = np.array(self._indicators(gold))
        return float(np.mean(np.logaddexp(0.0, logits) - targets * logits))

    def _indicators(self, gold: Sequence[Any]) -> list[list[float]]:
        return [[float(label in labels) for label in self.labels] for labels in gold]

    def _targets(self, examples: Examples) -> list[list[float]]:
        known = set(self.labels)
        for row, labels in enumerate(examples.labels):
            new = next((label for label in labels if label not in known), None)
            if new is not None:
                raise DataError(
                    f"{examples.source}, row {row + 1} has the label {new!r}, which no training row has",
                    allowed=f"Labels of the training rows: {', '.join(map(repr, self.labels[:20]))}",
                    do="Correct the label, or add training rows with it",
                )
        return self._indicators(examples.labels)


def _is_labels(value: Any) -> bool:
    return is_label(value) or (isinstance(value, list) and all(is_label(item) for item in value))
