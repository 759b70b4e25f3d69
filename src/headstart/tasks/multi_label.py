"""Multi-label classification: any number of labels for a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from headstart.core import registry
from headstart.core.config import Section
from headstart.core.data import Batch, ColumnKind, Examples, Feature, InputColumn, InputSpec, Split
from headstart.core.errors import DataError
from headstart.core.lazy import F, torch
from headstart.tasks import decision
from headstart.tasks.base import BaseTask, label_set, named_labels
from headstart.tasks.encoding import encode_texts
from headstart.tasks.labelled import TEXT, is_label

_METRICS = ("multi_label_macro_f1", "multi_label_micro_f1", "subset_accuracy")


class MultiLabel(BaseTask):
    """Multi-label classification: every label is predicted on its own, so a text has any number of them, or none."""

    paper: ClassVar[str] = "Demszky et al. 2020, GoEmotions, section 5"
    head: ClassVar[str] = "AutoModelForSequenceClassification"
    pipeline: ClassVar[str | None] = "text-classification"
    families: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "encoder-decoder", "xlnet", "bilm")

    class Config(Section):
        """The columns of the texts and the labels, the metric, and how probabilities become labels."""

        kind: Literal["multi_label"] = "multi_label"
        text: list[str] = Field(
            ["text"], min_length=1, max_length=2, description="the text column, or two columns for pairs"
        )
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

        @field_validator("text", mode="before")
        @classmethod
        def _one_or_many(cls, value: Any) -> Any:
            return [value] if isinstance(value, str) else value

    def __init__(self, config: Any) -> None:
        """Store the config; the threshold is tuned after training."""
        super().__init__(config)
        self.threshold = self._initial_threshold()

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

    def head_settings(self) -> dict[str, Any]:
        """Return the config settings of the head."""
        return {"problem_type": "multi_label_classification", **named_labels(self.labels)}

    def encode(self, examples: Examples, spec: InputSpec, training: bool = False) -> list[Feature]:
        """Tokenize texts or pairs, truncated to max_length, and convert labels to one 0 or 1 for each label."""
        texts = [list(examples.columns[name]) for name in self.config.text]
        targets = self._targets(examples)
        return [
            {**feature, "labels": target} for feature, target in zip(encode_texts(texts, spec), targets, strict=True)
        ]

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
        return self._above(decision.sigmoid(np.asarray(outputs)), self.threshold)

    def scores(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Return the probability of each label; they do not add up to one."""
        return [dict(zip(self.labels, row, strict=True)) for row in decision.sigmoid(np.asarray(outputs)).tolist()]

    @property
    def has_decision(self) -> bool:
        """True if the threshold or the temperature is chosen on the validation rows."""
        return self.config.threshold == "tuned" or self.config.temperature_scaling

    def fit_decision(self, outputs: Sequence[Any], gold: Sequence[Any]) -> dict[str, Any]:
        """Choose the temperature, then the threshold, on validation rows."""
        chosen: dict[str, Any] = {}
        logits = np.asarray(outputs, dtype=np.float64)
        if self.config.temperature_scaling:
            targets = np.array(self._indicators(gold))
            chosen["temperature"] = decision.fit_temperature(
                lambda scaled: float(np.mean(np.logaddexp(0.0, scaled) - targets * scaled)), logits
            )
            logits = logits / chosen["temperature"]
        if self.config.threshold == "tuned":
            measure = registry.resolve("metrics", self.metrics()[0])
            probabilities = decision.sigmoid(logits)
            # Thresholds between the probabilities of each row's likeliest labels; below them, most labels are wrong.
            likely = np.sort(probabilities, axis=1)[:, -min(3, len(self.labels)) :]
            chosen["threshold"] = decision.best_threshold(
                likely, lambda value: float(measure(gold, self._above(probabilities, value)))
            )
        return chosen

    def set_decision(self, chosen: Mapping[str, Any]) -> None:
        """Use the threshold that `fit_decision` returned; without one, that of the recipe."""
        self.threshold = chosen.get("threshold") or self._initial_threshold()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the label set and the threshold."""
        super().restore(state)
        self.set_decision(state.get("decision", {}))

    def metrics(self) -> tuple[str, ...]:
        """Return the metrics, the selection metric first."""
        return (self.config.metric, *(name for name in _METRICS if name != self.config.metric))

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Label texts "long", "with e", both or neither; the second text of a pair is the first one reversed."""
        columns = {name: [t[:: 1 - 2 * i] for t in texts] for i, name in enumerate(self.config.text)}
        median = sorted(map(len, texts))[len(texts) // 2]
        labels = [["long"] * (len(text) >= median) + ["with e"] * ("e" in text) for text in texts]
        return Examples(columns, labels, "toy rows")

    def _initial_threshold(self) -> float:
        return self.config.threshold if isinstance(self.config.threshold, float) else 0.5

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

    def _above(self, probabilities: Any, threshold: float) -> list[list[Any]]:
        return [
            [label for label, probability in zip(self.labels, row, strict=True) if probability >= threshold]
            for row in probabilities.tolist()
        ]

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
