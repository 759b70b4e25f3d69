"""A quality rule by name: what it needs counted, and when it drops a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headstart.core.data import Bools

Values = dict[str, npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Rule:
    """One named rule over measures of a text."""

    name: str
    measure: str
    """What is held against the threshold, by its name among the values."""
    fails: Callable[[npt.NDArray[np.float64]], Bools]


def at_least(name: str, measure: str, least: float) -> Rule:
    """Return a rule that drops what has less."""
    return Rule(name, measure, lambda values: values < least)


def at_most(name: str, measure: str, most: float) -> Rule:
    """Return a rule that drops what has more."""
    return Rule(name, measure, lambda values: values > most)


def verdict(rules: Sequence[Rule], values: Values, rows: int) -> pa.Array:
    """Return for each row the name of the first rule that it fails, or null."""
    decided = np.full(rows, -1, dtype=np.int64)
    for number, rule in enumerate(rules):
        decided[(decided < 0) & rule.fails(values[rule.measure])] = number
    names = pa.array([*(rule.name for rule in rules), None], pa.string())
    return names.take(pa.array(np.where(decided < 0, len(rules), decided)))


def share(part: npt.NDArray[np.float64], whole: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Divide, with 0 where there is nothing to divide by."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
