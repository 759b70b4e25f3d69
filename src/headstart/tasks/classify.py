"""Classification and regression over one text or a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from pydantic import Field, field_validator, model_validator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headstart.core.config import Section
from headstart.core.contracts import Batch, Examples
from headstart.core.errors import DataError

_OF_LABELS = ("accuracy", "f1", "macro_f1", "matthews")
_OF_NUMBERS = ("spearman", "pearson")


_REGRESSION_HEAD_SCALE = 0.1
"""At the usual scale a new head's outputs spread four to five times as widely as the labels do."""


class Classify:
    """One label (or, as regression, one number) for a text or a pair of texts."""

    paper: ClassVar[str] = "Devlin et al. 2019, BERT, section 4.1; Wang et al. 2018, GLUE"
    auto_class: ClassVar[str] = "AutoModelForSequenceClassification"
    families: ClassVar[tuple[str, ...]] = ("encoder", "xlnet", "bilm")

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

    def __init__(self, config: Config) -> None:
        """Remember the section; the label set comes with `fit_labels`."""
        self.config = config
        self.labels: list[Any] = []

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
        self.labels = sorted(set(train.labels), key=lambda value: (str(type(value)), value))
        if len(self.labels) < 2:
            raise DataError(
                f"{train.source} has the single label {self.labels[0]!r} in its {len(train)} training rows",
                allowed="Classification needs two or more",
                do="Raise data.labels or check task.label",
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
        names = [str(label) for label in self.labels]
        return {
            "num_labels": len(names),
            "problem_type": "single_label_classification",
            "id2label": dict(enumerate(names)),
            "label2id": {name: index for index, name in enumerate(names)},
        }

    def encode(self, examples: Examples, tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[dict[str, Any]]:
        """Tokenise texts or pairs, cut to max_length from the longer side, and turn labels into numbers."""
        texts = [list(examples.columns[name]) for name in self.config.text]
        encoded = tokenizer(*texts, truncation=True, max_length=max_length, return_attention_mask=False)
        targets = self._targets(examples)
        keys = [key for key in ("input_ids", "token_type_ids") if key in encoded]
        return [{**{key: encoded[key][i] for key in keys}, "label": targets[i]} for i in range(len(examples))]

    def collate(self, encoded: Sequence[dict[str, Any]], pad: int) -> Batch:
        """Pad to the longest example of the batch."""
        longest = max(len(example["input_ids"]) for example in encoded)
        shape = (len(encoded), longest)
        batch = {"input_ids": np.full(shape, pad, dtype=np.int64), "attention_mask": np.zeros(shape, dtype=np.int64)}
        if "token_type_ids" in encoded[0]:
            batch["token_type_ids"] = np.zeros(shape, dtype=np.int64)
        for row, example in enumerate(encoded):
            length = len(example["input_ids"])
            batch["attention_mask"][row, :length] = 1
            for key in batch.keys() & example.keys():
                batch[key][row, :length] = example[key]
        kind = np.float32 if self.config.regression else np.int64
        tensors = {name: torch.from_numpy(values) for name, values in batch.items()}
        return tensors | {"labels": torch.from_numpy(np.asarray([e["label"] for e in encoded], dtype=kind))}

    def logits(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Run the model on a batch, labels left out."""
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        output: torch.Tensor = model(**inputs).logits.float()
        return output

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return cross-entropy, or the squared error in units of the training labels' variance, summed."""
        logits = self.logits(model, batch)
        if self.config.regression:
            return (((logits.squeeze(-1) - batch["labels"]) / self.scale) ** 2).sum()
        return F.cross_entropy(logits, batch["labels"], reduction="sum")

    def prepare_head(self, model: PreTrainedModel) -> None:
        """Start a regression head at the mean of the training labels, so that no step is spent on finding it."""
        if not self.config.regression:
            return
        last = next(
            (m for m in reversed(list(model.modules())) if isinstance(m, torch.nn.Linear) and m.out_features == 1), None
        )
        if last is not None and last.bias is not None:
            with torch.no_grad():
                last.weight.mul_(_REGRESSION_HEAD_SCALE)
                last.bias.fill_(self.center)

    def decode(self, logits: npt.NDArray[np.float32]) -> list[Any]:
        """Turn outputs into labels of the data's own type, or numbers."""
        if self.config.regression:
            return [float(value) for value in logits[:, 0]]
        return [self.labels[index] for index in logits.argmax(axis=1)]

    def metrics(self) -> tuple[str, ...]:
        """Name the metrics, the selecting one first."""
        if self.config.regression:
            usual = ["spearman", "pearson"]
        else:
            usual = ["accuracy", "f1", "matthews"] if len(self.labels) == 2 else ["accuracy", "macro_f1"]
        first = self.config.metric or usual[0]
        return (first, *(name for name in usual if name != first))

    def _targets(self, examples: Examples) -> list[float]:
        if self.config.regression:
            return [float(value) for value in examples.labels]
        numbers = {label: index for index, label in enumerate(self.labels)}
        for row, label in enumerate(examples.labels):
            if label not in numbers:
                known = ", ".join(repr(known) for known in self.labels[:20])
                raise DataError(
                    f"{examples.source}, row {row + 1} has the label {label!r}, which no training row has",
                    allowed=f"Labels seen in training: {known}",
                    do="Mend the label, or raise data.labels so that every label is seen",
                )
        return [numbers[label] for label in examples.labels]
