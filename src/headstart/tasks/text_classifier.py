"""Shared parts of the tasks that give a text, or a pair of texts, one or several labels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, field_validator

from headstart.core import registry
from headstart.core.config import Section
from headstart.core.data import Examples, Feature, InputSpec
from headstart.tasks import decision
from headstart.tasks.base import BaseTask
from headstart.tasks.encoding import encode_texts


class TextColumns(Section):
    """The settings that name the task and its text columns."""

    kind: str
    text: list[str] = Field(
        ["text"], min_length=1, max_length=2, description="the text column, or two columns for pairs"
    )

    language: str | None = Field(
        None, description="the language of the texts, for a checkpoint whose `corpus` had `language`"
    )

    @field_validator("text", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class TextClassifier(BaseTask):
    """A task with one output for each label; the threshold and the temperature may be chosen after training."""

    head: ClassVar[str] = "AutoModelForSequenceClassification"
    pipeline: ClassVar[str | None] = "text-classification"
    families: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "encoder-decoder", "xlnet", "bilm")
    default_threshold: ClassVar[float | None] = None
    """The threshold of a task whose recipe sets none, or tunes it, before it is tuned."""

    def __init__(self, config: Any) -> None:
        """Store the config; a threshold may be tuned after training."""
        super().__init__(config)
        self.threshold: float | None = None
        self.set_decision({})

    def encode(self, examples: Examples, spec: InputSpec, training: bool = False) -> list[Feature]:
        """Tokenize texts or pairs, truncated to max_length (the longer text first), and convert the labels."""
        texts = [list(examples.columns[name]) for name in self.config.text]
        encoded = encode_texts(texts, spec, self.config.language)
        return [{**feature, "labels": target} for feature, target in zip(encoded, self._targets(examples), strict=True)]

    @property
    def has_decision(self) -> bool:
        """True if the threshold or the temperature is chosen on the validation rows."""
        return self.config.threshold == "tuned" or self.config.temperature_scaling

    def fit_decision(self, outputs: Sequence[Any], gold: Sequence[Any]) -> dict[str, Any]:
        """Choose the temperature, then the threshold, on validation rows."""
        chosen: dict[str, Any] = {}
        logits = np.asarray(outputs, dtype=np.float64)
        if self.config.temperature_scaling:
            chosen["temperature"] = decision.fit_temperature(
                lambda scaled: self._negative_log_likelihood(scaled, gold), logits
            )
            logits = logits / chosen["temperature"]
        if self.config.threshold == "tuned":
            measure = registry.resolve("metrics", self.metrics()[0])
            probabilities = self._probabilities(logits)
            chosen["threshold"] = decision.best_threshold(
                self._threshold_range(probabilities),
                lambda value: float(measure(gold, self._decide(probabilities, value))),
            )
        return chosen

    def set_decision(self, chosen: Mapping[str, Any]) -> None:
        """Use the threshold that `fit_decision` returned; without one, that of the recipe."""
        fixed = self.config.threshold if isinstance(self.config.threshold, float) else self.default_threshold
        self.threshold = chosen.get("threshold", fixed)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the label set and the threshold."""
        super().restore(state)
        self.set_decision(state.get("decision", {}))

    @abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """Return the metrics, the selection metric first."""

    @abstractmethod
    def _targets(self, examples: Examples) -> Sequence[Any]:
        """Return the value of `labels` for each row."""

    @abstractmethod
    def _probabilities(self, logits: decision.Array) -> decision.Array:
        """Return the probabilities that `_decide` compares with the threshold."""

    def _threshold_range(self, probabilities: decision.Array) -> decision.Array:
        """Return the probabilities between which thresholds are tried."""
        return probabilities

    @abstractmethod
    def _decide(self, probabilities: decision.Array, threshold: float) -> list[Any]:
        """Return the prediction of each row."""

    @abstractmethod
    def _negative_log_likelihood(self, logits: decision.Array, gold: Sequence[Any]) -> float:
        """Return the mean negative log-likelihood of the gold labels."""
