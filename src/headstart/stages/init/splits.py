"""Stratified splits and folds: every class in all of them, and equal texts or groups never in two."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headstart.core.randomness import permute
from headstart.stages.finetune.leakage import normalize

NAMES = ("train", "validation", "test")
_SHARES = {"test": 0.2, "validation": 0.1}


@dataclass(frozen=True)
class Split:
    """The rows of the three splits, and what was found about duplicates."""

    rows: dict[str, list[int]]
    duplicates: int
    """Rows whose text occurs in an earlier row too."""
    contradictions: int
    """Texts that occur with more than one label."""


def split(texts: Sequence[str], labels: Sequence[Hashable], groups: Sequence[Hashable] | None, seed: int = 0) -> Split:
    """Divide rows into train (70 %), validation (10 %) and test (20 %), class by class.

    Args:
        texts: one text per row; rows whose texts are equal without case and punctuation stay together.
        labels: one label per row; rows are divided within each label.
        groups: one group per row, such as a person or a document, whose rows stay together; None for none.
        seed: the seed of the random order.
    """
    keys: list[Hashable] = normalize(texts).to_pylist()
    first: dict[Hashable, int] = {}
    seen_labels: dict[Hashable, set[Hashable]] = defaultdict(set)
    for row, (key, label) in enumerate(zip(keys, labels, strict=True)):
        first.setdefault(key, row)
        seen_labels[key].add(label)
    rows: dict[str, list[int]] = {name: [] for name in NAMES}
    for units in _units_by_label(keys, labels, groups, seed, "init"):
        _deal(units, rows)
    return Split(
        {name: sorted(members) for name, members in rows.items()},
        len(texts) - len(first),
        sum(len(found) > 1 for found in seen_labels.values()),
    )


def folds(
    texts: Sequence[str], labels: Sequence[Hashable], groups: Sequence[Hashable] | None, count: int, seed: int = 0
) -> list[list[int]]:
    """Divide rows into `count` folds of about equal size, class by class; arguments are those of `split`."""
    parts: list[list[int]] = [[] for _ in range(count)]
    for units in _units_by_label(normalize(texts).to_pylist(), labels, groups, seed, "folds"):
        taken = [0] * count
        for unit in units:
            smallest = min(range(count), key=lambda part: (taken[part], len(parts[part])))
            parts[smallest] += unit
            taken[smallest] += len(unit)
    return [sorted(part) for part in parts]


def _units_by_label(
    keys: Sequence[Hashable], labels: Sequence[Hashable], groups: Sequence[Hashable] | None, seed: int, purpose: str
) -> Iterator[list[list[int]]]:
    """Yield for each label its units in random order: rows that must stay together."""
    units: dict[Hashable, list[int]] = defaultdict(list)
    for row, key in enumerate(keys):
        # A group that is missing is a group of its own.
        units[key if groups is None or groups[row] is None else ("group", groups[row])].append(row)
    by_label: dict[Hashable, list[list[int]]] = defaultdict(list)
    for unit in units.values():
        by_label[labels[unit[0]]].append(unit)
    for label, members in sorted(by_label.items(), key=lambda item: str(item[0])):
        order = permute(np.arange(len(members)), len(members), seed, 0, f"{purpose} {label}").tolist()
        yield [members[i] for i in order]


def _deal(units: Sequence[list[int]], rows: dict[str, list[int]]) -> None:
    """Give the units of one class to the splits by their shares; a class with few units is in train first."""
    total = sum(len(unit) for unit in units)
    wanted = {name: share * total for name, share in _SHARES.items()}
    taken = dict.fromkeys(_SHARES, 0)
    for number, unit in enumerate(units):
        for name in _SHARES:
            # The first unit of a class is for training, however small the class.
            if number and taken[name] + len(unit) / 2 <= wanted[name]:
                rows[name] += unit
                taken[name] += len(unit)
                break
        else:
            rows["train"] += unit
