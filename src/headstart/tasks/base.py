"""What tasks have in common: padding and stacking, running a model, and gathering the pieces of an example."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from headstart.core.data import Batch, Examples, Feature, InputSpec

MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class Padding:
    """How the values of one key are brought to one shape: what fills the gaps, and on which side they are."""

    fill: int | float | None = None
    """None is the tokenizer's padding token."""
    side: Literal["right", "left"] = "right"
    mask: str | None = None
    """Under this name the batch tells tokens (1) from padding (0)."""


class BaseTask:
    """The answers of a task that reads `input_ids` and predicts by one forward pass; each may be given anew."""

    pipeline: ClassVar[str | None] = None
    usage: ClassVar[str | None] = None
    learns: ClassVar[bool] = True
    head: ClassVar[str] = ""
    """The class of transformers that holds the head, where it is the same in all families."""
    paddings: ClassVar[Mapping[str, Padding]] = {
        "input_ids": Padding(mask="attention_mask"),
        "token_type_ids": Padding(0),
        "labels": Padding(-100),
    }
    """What goes into a batch; other keys of a feature are notes for `decode`."""

    def __init__(self, config: Any) -> None:
        """Remember the section of the recipe; the label set comes with `fit_labels`."""
        self.config = config
        self.labels: list[Any] = []

    def auto_class(self, family: str) -> str:
        """Name the class of transformers that holds the head."""
        return self.head

    def state(self) -> dict[str, Any]:
        """Return the label set."""
        return {"labels": self.labels}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the label set back."""
        self.labels = list(state["labels"])

    def show(self, train: Examples, seed: int) -> None:
        """Leave the rows alone: what they teach is in the weights."""

    def head_settings(self) -> dict[str, Any]:
        """Return nothing: the head is the checkpoint's own."""
        return {}

    def prepare_head(self, model: PreTrainedModel) -> None:
        """Leave the head as it is."""

    def length(self, feature: Feature) -> int:
        """Return the number of tokens, of the longest text where there are several side by side."""
        ids = feature["input_ids"]
        return max(map(len, ids)) if isinstance(ids[0], list) else len(ids)

    def collate(self, features: Sequence[Feature], reading: InputSpec) -> Batch:
        """Pad the keys that `paddings` names to their longest and stack them."""
        batch: dict[str, torch.Tensor] = {}
        for key, how in self.paddings.items():
            if key in features[0]:
                values = [feature[key] for feature in features]
                batch[key] = stack(values, reading.pad if how.fill is None else how.fill, how.side)
                if how.mask is not None:
                    batch[how.mask] = stack([_ones(value) for value in values], 0, how.side)
        return batch

    def notes(self, features: Sequence[Feature]) -> list[str]:
        """Say nothing."""
        return []

    def weight(self, batch: Batch) -> float:
        """Return the number of labels, those that are not predicted (-100) left out."""
        labels = batch["labels"]
        return float(labels.numel() if labels.is_floating_point() else (labels != -100).sum())

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens, padding included."""
        return batch["input_ids"].numel()

    def logits(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Run the model on what it reads of a batch."""
        output: torch.Tensor = model(**{name: batch[name] for name in MODEL_INPUTS if name in batch}).logits.float()
        return output

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """Return the logits of each feature."""
        return list(self.logits(model, batch).detach().cpu().numpy())

    def save(self, model: PreTrainedModel, reading: InputSpec, folder: Path) -> None:
        """Write the model as transformers does, or as peft does where it is an adapter."""
        model.save_pretrained(str(folder))


def stack(values: Sequence[Any], fill: float, side: Literal["right", "left"] = "right") -> torch.Tensor:
    """Stack numbers, or lists of them nested to any depth, into one tensor; shorter lists are padded at `side`."""
    shape = [len(values)]
    level: list[Any] = list(values)
    while level and isinstance(level[0], list | tuple):
        shape.append(max(map(len, level)))
        level = [item for items in level for item in items]
    kind = np.float32 if isinstance(fill, float) or any(isinstance(value, float) for value in level) else np.int64
    array = np.full(shape, fill, dtype=kind)
    _place(array, values, side)
    return torch.from_numpy(array)


def label_set(labels: Iterable[Any]) -> list[Any]:
    """Return the different labels in an order that does not depend on that of the rows."""
    return sorted(set(labels), key=lambda value: (str(type(value)), value))


def named_labels(labels: Sequence[Any]) -> dict[str, Any]:
    """Return what a config says of a head with one output for each label."""
    names = [str(label) for label in labels]
    return {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
    }


def by_example(outputs: Sequence[Any], features: Sequence[Feature]) -> Iterator[list[tuple[Any, Feature]]]:
    """Yield for each example its features with their outputs."""
    gathered: dict[int, list[tuple[Any, Feature]]] = {}
    for place, (output, feature) in enumerate(zip(outputs, features, strict=True)):
        gathered.setdefault(feature.get("example", place), []).append((output, feature))
    yield from (gathered[example] for example in range(len(gathered)))


def _place(array: np.ndarray[Any, Any], values: Any, side: str) -> None:
    if array.ndim == 1:
        if len(values):
            array[: len(values)] = values
        return
    for row, value in zip(array, values, strict=False):
        if row.ndim == 1 and side == "left":
            row = row[row.shape[0] - len(value) :]
        _place(row, value, side)


def _ones(value: Any) -> Any:
    return [_ones(item) for item in value] if isinstance(value, list | tuple) else 1
