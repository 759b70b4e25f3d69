"""The labeled rows of a run: reading the three files, sampling training rows, and encoding each split once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headstart.core import config, registry
from headstart.core.contracts import Task
from headstart.core.data import Examples, Feature, InputSpec, Split
from headstart.core.errors import DataError
from headstart.core.log import logger
from headstart.stages.finetune.leakage import require_other_rows
from headstart.stages.finetune.recipe import LabeledData
from headstart.tasks import labelled


@dataclass(frozen=True)
class Splits:
    """Labelled rows to train on, to select by and to test on."""

    train: Examples
    validation: Examples
    test: Examples

    def sample_train(self, count: int | None, seed: int) -> Splits:
        """Return the splits with `count` training rows sampled by the seed; None keeps them all."""
        return replace(self, train=labelled.sample_rows(self.train, count, seed, "labels"))


def read_data(data: LabeledData, task: Task) -> Splits:
    """Read the three splits and let the task learn its label set from the whole training file.

    A validation or test file with the rows of the training file is refused, unless `allow_overlap` is set.
    """
    train = _read(data, task, "train")
    test = _held_out(data, task, "test", train)
    validation = _held_out(data, task, "validation", train)
    train = _without_held_out(data, train)
    for setting, wanted, rows in (("train_rows", data.train_rows, train), ("test_rows", data.test_rows, test)):
        if wanted is not None and wanted > len(rows):
            logger.warning("data.%s is %d, but there are only %d rows", setting, wanted, len(rows))
    task.fit_labels(train)
    if task.labels:
        for sentence in labelled.doubtful_labels(train):
            logger.warning("%s", sentence)
    for name in task.metrics():
        registry.target("metrics", name)
    return Splits(train, validation, labelled.fixed_subset(test, data.test_rows))


def _held_out(data: LabeledData, task: Task, split: Literal["validation", "test"], train: Examples) -> Examples:
    """Read a file of held-out rows, or split rows off from the training file."""
    if data.source(split) is not None:
        rows = _read(data, task, split)
        if not data.allow_overlap:
            require_other_rows(train, rows, split)
        return rows
    # Read again with the columns of this split: a task may need other columns there than for training.
    rows = _read(data, task, split, "train")
    if len(rows) != len(train):
        raise DataError(
            f"{train.source} has {len(train):,} complete rows for training and {len(rows):,} for {split}",
            allowed="Rows can be split off only if the same rows are complete for both",
            do=f"Set data.{split} to a file",
        )
    return _split_off(data, rows, split)


def read_held_out(data: LabeledData, task: Task, split: Literal["validation", "test"]) -> Examples:
    """Read the validation or test rows of a finished run, whose training rows were compared with them then."""
    if data.source(split) is not None:
        rows = _read(data, task, split)
    else:
        rows = _split_off(data, _read(data, task, split, "train"), split)
    return labelled.fixed_subset(rows, data.test_rows) if split == "test" else rows


def _split_off(data: LabeledData, rows: Examples, split: Literal["validation", "test"]) -> Examples:
    """Return the rows of the training file that are split off for `split`."""
    if split == "test":
        return labelled.split_off(rows, getattr(data, split), "test")[1]
    rest = labelled.split_off(rows, data.test, "test")[0] if isinstance(data.test, float) else rows
    return labelled.split_off(rest, getattr(data, split), "validation")[1]


def _without_held_out(data: LabeledData, train: Examples) -> Examples:
    """Return the rows of the training file that are not split off."""
    if isinstance(data.test, float):
        train = labelled.split_off(train, data.test, "test")[0]
    if isinstance(data.validation, int | float):
        train = labelled.split_off(train, data.validation, "validation")[0]
    return train


def _read(data: LabeledData, task: Task, split: Split, source: Split | None = None) -> Examples:
    """Read the columns of a split, from its own rows or from those of `source`."""
    located = data.source(source or split)
    assert located is not None
    return labelled.read(located, task.columns(split), data.skip_incomplete)


@dataclass(frozen=True)
class _Encoded:
    rows: Examples
    state: str
    features: Sequence[Feature]


class EncodedRows:
    """Encodes the splits of a run and keeps the last result of each, so that its cells share them.

    Rows are encoded again only if they are other rows or if the state of the task has changed. `Task.state` is all
    that encoding depends on besides the recipe: it includes the examples that a prompt shows, which change with the
    seed.
    """

    def __init__(self, task: Task, spec: InputSpec) -> None:
        """Encode with this task, for a checkpoint that reads text in this way."""
        self.task, self.spec = task, spec
        self._last: dict[str, _Encoded] = {}

    def encode(self, split: Split | Literal["unlabeled"], rows: Examples) -> Sequence[Feature]:
        """Return the features of a split; training rows include what the loss needs."""
        state = config.fingerprint(self.task.state(), length=64)
        last = self._last.get(split)
        if last is None or last.rows is not rows or last.state != state:
            # Free the old features first: two encodings of a large file may not fit into memory.
            self._last.pop(split, None)
            features = self.task.encode(rows, self.spec, training=split == "train")
            last = self._last[split] = _Encoded(rows, state, features)
        return last.features
