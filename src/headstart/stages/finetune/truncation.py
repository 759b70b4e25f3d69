"""The limit `training.max_length`: what the network can read, and how many texts are longer and so lose their end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headstart.checkpoint.input_length import max_positions
from headstart.core.contracts import Task
from headstart.core.data import Examples, Feature, InputSpec, Split
from headstart.core.errors import HeadstartError, RecipeError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def require_length(max_length: int, config: PreTrainedConfig, name: object) -> None:
    """Raise unless the network with this config can read texts of `max_length` tokens; `name` is that of its model."""
    # The tokenizer's own limit is not that of the network: after fine-tuning it is the max_length of that task.
    limit = max_positions(config)
    if limit is not None and max_length > limit:
        raise RecipeError(
            f"training.max_length is {max_length}, but {name} reads at most {limit} tokens",
            do="Lower training.max_length",
        )


def count_truncated(
    task: Task, rows: Examples, features: Sequence[Feature], spec: InputSpec, training: bool = False
) -> int | None:
    """Return how many rows have a truncated text; None if the task gives no feature per row, such as windows.

    Only rows whose features have the maximum length can be truncated. They are encoded again with one token more: a
    text that becomes longer was truncated. `training` says how they were encoded, as in `Task.encode`.
    """
    if len(features) != len(rows):
        return None
    if features and "cut" in features[0]:
        return sum(bool(feature["cut"]) for feature in features)
    full = [i for i, feature in enumerate(features) if task.length(feature) >= spec.max_length]
    if not full:
        return 0
    try:
        longer = task.encode(rows.take(full), replace(spec, max_length=spec.max_length + 1), training)
    except HeadstartError:  # the rows fit only as they are
        return None
    if len(longer) != len(full):
        return None
    return sum(task.length(after) > task.length(features[i]) for i, after in zip(full, longer, strict=True))


@dataclass
class TruncationCounts:
    """Counts the truncated rows of the splits; the cells of a run that read the same rows share the counts."""

    _last: dict[Split, tuple[Examples, int | None]] = field(default_factory=dict)

    def count(
        self, task: Task, spec: InputSpec, splits: dict[Split, tuple[Examples, Sequence[Feature]]]
    ) -> dict[str, int]:
        """Return the number of truncated rows of each split for which it is known."""
        for split, (rows, features) in splits.items():
            last = self._last.get(split)
            if last is None or last[0] is not rows:
                self._last[split] = (rows, count_truncated(task, rows, features, spec, split == "train"))
        counts = {split: self._last[split][1] for split in splits}
        return {split: count for split, count in counts.items() if count is not None}
