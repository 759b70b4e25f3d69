"""The labeled rows of a run: reading the three files, sampling training rows, and encoding each split once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headstart.core import config, registry
from headstart.core.contracts import Task
from headstart.core.data import Examples, Feature, InputSpec, Split
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
    """Read the three splits and let the task learn its label set from the whole training file."""
    train = labelled.read(data.train, task.columns("train"))
    test = labelled.fixed_subset(labelled.read(data.test, task.columns("test")), data.test_rows)
    if isinstance(data.validation, str):
        validation = labelled.read(data.validation, task.columns("validation"))
    else:
        # Read again with the columns of a validation file: a task may need other columns there than for training.
        rows = labelled.read(data.train, task.columns("validation"))
        train, _ = labelled.split_off(train, data.validation)
        _, validation = labelled.split_off(rows, data.validation)
    task.fit_labels(train)
    for name in task.metrics():
        registry.target("metrics", name)
    return Splits(train, validation, test)


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
        self._last: dict[Split, _Encoded] = {}

    def encode(self, split: Split, rows: Examples) -> Sequence[Feature]:
        """Return the features of a split; training rows include what the loss needs."""
        state = config.fingerprint(self.task.state(), length=64)
        last = self._last.get(split)
        if last is None or last.rows is not rows or last.state != state:
            # Free the old features first: two encodings of a large file may not fit into memory.
            self._last.pop(split, None)
            features = self.task.encode(rows, self.spec, training=split == "train")
            last = self._last[split] = _Encoded(rows, state, features)
        return last.features
