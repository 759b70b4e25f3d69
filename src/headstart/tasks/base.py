"""Shared parts of the tasks: padding and stacking, running a model, grouping the features of an example."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from headstart.core.data import Batch, Examples, Feature, InputSpec
from headstart.core.lazy import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PRETRAINING_HEADS = {
    "encoder": "AutoModelForMaskedLM",
    "decoder": "AutoModelForCausalLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
}
"""The auto class of the pre-training head, by family."""
MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class Padding:
    """How the values of one feature key are padded to a common shape."""

    fill: int | float | None = None
    """The padding value; None is the tokenizer's padding token."""
    side: Literal["right", "left"] = "right"
    mask: str | None = None
    """If set, the batch gets a mask of this name: 1 for values, 0 for padding."""


class BaseTask:
    """Defaults for a task that reads `input_ids` and predicts in one forward pass; subclasses override them."""

    pipeline: ClassVar[str | None] = None
    usage: ClassVar[str | None] = None
    learns: ClassVar[bool] = True
    head: ClassVar[str] = ""
    """The transformers auto class of the head, if it is the same for all families."""
    paddings: ClassVar[Mapping[str, Padding]] = {
        "input_ids": Padding(mask="attention_mask"),
        "token_type_ids": Padding(0),
        "labels": Padding(-100),
    }
    """The feature keys that go into a batch; `decode` reads the others."""

    def __init__(self, config: Any) -> None:
        """Store the config; `fit_labels` sets the label set."""
        self.config = config
        self.labels: list[Any] = []

    def auto_class(self, family: str) -> str:
        """Return the transformers auto class of the head."""
        return self.head

    def scores(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Return nothing: a task without labels has no probabilities."""
        return []

    @property
    def has_decision(self) -> bool:
        """False: decoding is the same whatever the validation rows are."""
        return False

    def fit_decision(self, outputs: Sequence[Any], gold: Sequence[Any]) -> dict[str, Any]:
        """Return nothing: there is nothing to choose."""
        return {}

    def set_decision(self, chosen: Mapping[str, Any]) -> None:
        """Do nothing: there is nothing to choose."""

    def state(self) -> dict[str, Any]:
        """Return the label set."""
        return {"labels": self.labels}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the label set."""
        self.labels = list(state["labels"])

    def show(self, train: Examples, seed: int) -> None:
        """Do nothing: predictions do not depend on the training rows."""

    def head_settings(self) -> dict[str, Any]:
        """Return no settings: the checkpoint's own head is used."""
        return {}

    def prepare_head(self, model: PreTrainedModel) -> None:
        """Leave the head unchanged."""

    def length(self, feature: Feature) -> int:
        """Return the number of tokens, or that of the longest text if the feature holds several."""
        ids = feature["input_ids"]
        return max(map(len, ids)) if isinstance(ids[0], list) else len(ids)

    def collate(self, features: Sequence[Feature], spec: InputSpec) -> Batch:
        """Pad the keys in `paddings` to the longest value and stack them."""
        batch: dict[str, torch.Tensor] = {}
        for key, padding in self.paddings.items():
            if key in features[0]:
                values = [feature[key] for feature in features]
                batch[key] = stack(values, spec.pad if padding.fill is None else padding.fill, padding.side)
                if padding.mask is not None:
                    batch[padding.mask] = stack([_ones(value) for value in values], 0, padding.side)
        return batch

    def notes(self, features: Sequence[Feature]) -> list[str]:
        """Return no notes."""
        return []

    def weight(self, batch: Batch) -> float:
        """Return the number of labels, without ignored ones (-100)."""
        labels = batch["labels"]
        return float(labels.numel() if labels.is_floating_point() else (labels != -100).sum())

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens, padding included."""
        return batch["input_ids"].numel()

    def logits(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Run the model on the batch and return its logits in float32."""
        output: torch.Tensor = model(**{name: batch[name] for name in MODEL_INPUTS if name in batch}).logits.float()
        return output

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """Return the logits of each feature."""
        return list(self.logits(model, batch).detach().cpu().numpy())

    def save(self, model: PreTrainedModel, spec: InputSpec, folder: Path) -> None:
        """Save the model with `save_pretrained`: all weights, or the adapter alone for a peft model."""
        model.save_pretrained(str(folder))


def stack(values: Sequence[Any], fill: float, side: Literal["right", "left"] = "right") -> torch.Tensor:
    """Stack numbers, or nested lists of numbers, into one tensor; shorter lists are padded on `side`."""
    shape = [len(values)]
    level: list[Any] = list(values)
    while level and isinstance(level[0], list | tuple):
        shape.append(max(map(len, level)))
        level = [item for items in level for item in items]
    is_float = isinstance(fill, float) or any(isinstance(value, float) for value in level)
    array = np.full(shape, fill, dtype=np.float32 if is_float else np.int64)
    _fill(array, values, side)
    return torch.from_numpy(array)


def softmax(logits: Any) -> list[float]:
    """Return the probabilities of logits, computed in double precision."""
    shifted = np.asarray(logits, dtype=np.float64) - np.max(logits)
    exponentials = np.exp(shifted)
    return [float(value) for value in exponentials / exponentials.sum()]


def label_set(labels: Iterable[Any]) -> list[Any]:
    """Return the distinct labels in an order that does not depend on the order of the rows."""
    return sorted(set(labels), key=lambda value: (str(type(value)), value))


def named_labels(labels: Sequence[Any]) -> dict[str, Any]:
    """Return the config settings of a head with one output per label."""
    names = [str(label) for label in labels]
    return {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
    }


def by_example(outputs: Sequence[Any], features: Sequence[Feature]) -> Iterator[list[tuple[Any, Feature]]]:
    """Yield for each example its features, each with its output."""
    grouped: dict[int, list[tuple[Any, Feature]]] = {}
    for i, (output, feature) in enumerate(zip(outputs, features, strict=True)):
        grouped.setdefault(feature.get("example", i), []).append((output, feature))
    yield from (grouped[example] for example in range(len(grouped)))


def _fill(array: np.ndarray[Any, Any], values: Any, side: str) -> None:
    """Copy nested values into an array of their padded shape."""
    if array.ndim == 1:
        if len(values):
            array[: len(values)] = values
        return
    for row, value in zip(array, values, strict=False):
        if row.ndim == 1 and side == "left":
            row = row[row.shape[0] - len(value) :]
        _fill(row, value, side)


def _ones(value: Any) -> Any:
    """Return nested lists of ones in the shape of a value."""
    return [_ones(item) for item in value] if isinstance(value, list | tuple) else 1
